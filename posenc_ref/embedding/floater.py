"""FLOATER: position vectors that follow a learned differential equation (Liu et al. 2020, arXiv:2003.09229)."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

from posenc_ref.checks import Array, check_choice, check_floating, check_number, check_size
from posenc_ref.embedding.learned import check_integers, look_up
from posenc_ref.embedding.sinusoidal import Layout, frequencies

Field = Callable[[float, Array], Array]
"""h(t, p): the velocity of the position vector p at time t; it returns the shape and dtype of p."""

Method = Literal["euler", "midpoint", "rk4"]


def floater(
    positions: Array, start: Array, field: Field, *, delta: float, substeps: int, method: Method = "rk4"
) -> Array:
    """Position vectors p(iΔ) of the trajectory p(t) = p(0) + ∫₀ᵗ h(τ, p(τ)) dτ.

    Parameters
    ----------
    positions : integers of any shape ``(…)``, in any order, tokens from 0.
    start : p(0), ``(d_model,)``.
    field : h, called as ``field(t, p)`` with t a number.
    delta : Δ, the time between two tokens, any unit. The authors' code has 0.01.
    substeps : steps of the integrator from one token to the next. The authors' code has 5.
    method : ``"rk4"`` (the authors'), ``"midpoint"`` or ``"euler"``: errors that fall as the fourth, second and
        first power of the step, if the field is smooth.

    Returns
    -------
    ``(…, d_model)``, of the dtype of ``start``, float32 or better.

    The steps always start at position 0: the vector of a position does not depend on the positions beside it, and
    a chunk equals the slice of the whole. So one token at position i costs i · substeps steps, one after the other.
    For decoding, keep a :func:`trajectory` and look its rows up with :func:`posenc_ref.embedding.learned`.

    Raises
    ------
    IndexError : a negative position: the trajectory starts at 0. TypeError : positions that are no integers.
    ValueError : sizes out of range, a field of another shape, or a trajectory that leaves the range of its dtype.

    Source: Liu et al. 2020, section 3; step sizes from the authors' code.

    >>> doubling = lambda t, p: math.log(2) * p                       # p(t) = p(0) · 2ᵗ
    >>> floater(np.array([3, 0]), np.array([1.0]), doubling, delta=1.0, substeps=100).round(6)
    array([[8.],
           [1.]])
    """
    xp = array_namespace(check_integers(positions))
    if 0 in positions.shape:
        length = 1
    elif (low := int(xp.min(positions))) < 0:
        raise IndexError(f"positions must be at least 0, where the trajectory starts, got {low}")
    else:
        length = int(xp.max(positions)) + 1
    if len(check_floating("start", start).shape) != 1:
        raise ValueError(f"start must be (d_model,), got shape {tuple(start.shape)}")
    return look_up(positions, trajectory(length, start, field, delta=delta, substeps=substeps, method=method), 0)


def trajectory(
    num_positions: int, start: Array, field: Field, *, delta: float, substeps: int, method: Method = "rk4"
) -> Array:
    """p(0), p(Δ), …, p((num_positions − 1)Δ): ``(num_positions, *start.shape)``. See :func:`floater`.

    ``start`` may have more axes than one: the authors solve for all layers at once, ``(layers, d_model)``.

    >>> trajectory(3, np.array([0.0]), lambda t, p: np.array([2 * t]), delta=1.0, substeps=1)      # p(t) = t²
    array([[0.],
           [1.],
           [4.]])
    """
    check_size("num_positions", num_positions)
    check_size("substeps", substeps)
    check_choice("method", method, tuple(STEPS))
    check_number("delta", delta, 0, above=True)
    xp = array_namespace(check_floating("start", start))
    p = xp.astype(start, xp.float64 if start.dtype == xp.float64 else xp.float32)
    h, points = delta / substeps, [p]

    def checked(t: float, p: Array) -> Array:
        if (velocity := field(t, p)).shape != start.shape:
            raise ValueError(f"field must return the shape of p, {tuple(start.shape)}, got {tuple(velocity.shape)}")
        return velocity

    for i in range(num_positions - 1):
        for s in range(substeps):
            p = STEPS[method](checked, (i * substeps + s) * h, p, h)
        points.append(p)
    whole = xp.stack(points)
    if not bool(xp.all(xp.isfinite(whole))):
        how = f"delta = {delta} and start = {start}: take a smaller delta or a tamer field"
        raise ValueError(f"the trajectory must stay finite, got {whole} for {how}")
    return whole


def euler(field: Field, t: float, p: Array, h: float) -> Array:
    """One step from t to t + h along the velocity at t; error O(h²) a step, O(h) in all."""
    return p + h * field(t, p)


def midpoint(field: Field, t: float, p: Array, h: float) -> Array:
    """One step along the velocity halfway; error O(h³) a step, O(h²) in all."""
    return p + h * field(t + h / 2, p + h / 2 * field(t, p))


def rk4(field: Field, t: float, p: Array, h: float) -> Array:
    """One step of the classical Runge–Kutta method; error O(h⁵) a step, O(h⁴) in all."""
    k1 = field(t, p)
    k2 = field(t + h / 2, p + h / 2 * k1)
    k3 = field(t + h / 2, p + h / 2 * k2)
    k4 = field(t + h, p + h * k3)
    return p + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


STEPS = {"euler": euler, "midpoint": midpoint, "rk4": rk4}


def mlp_field(
    t: float, p: Array, *, hidden_weight: Array, hidden_bias: Array, out_weight: Array, out_bias: Array
) -> Array:
    """A field with one hidden layer, W₂ [relu(W₁ [p; t] + b₁); t] + b₂: both layers are told the time.

    ``p`` is ``(…, d_model)``; the weights have the shapes of ``torch.nn.Linear``: ``(width, d_model + 1)``,
    ``(width,)``, ``(d_model, width + 1)``, ``(d_model,)``, the last column for t. From the authors' code.

    >>> one, zero = np.array([[1.0, 1.0]]), np.zeros(1)
    >>> mlp_field(2.0, np.array([3.0]), hidden_weight=one, hidden_bias=zero, out_weight=one, out_bias=zero)
    array([7.])
    """
    weights = (hidden_weight, hidden_bias, out_weight, out_bias)
    for name, x in zip(("p", "hidden_weight", "hidden_bias", "out_weight", "out_bias"), (p, *weights), strict=True):
        if len(check_floating(name, x).shape) == 0:
            raise ValueError(f"{name} must have at least one axis, got {x}")
    if is_array_api_obj(t):
        if (shape := tuple(check_floating("t", t).shape)) != ():
            raise ValueError(f"t must be a number or have shape (), got shape {shape}")
    else:
        check_number("t", t, -math.inf)
    width, d_model = hidden_weight.shape[0], p.shape[-1]
    shapes = ((width, d_model + 1), (width,), (d_model, width + 1), (d_model,))
    got = tuple(tuple(w.shape) for w in weights)
    if got != shapes:
        raise ValueError(f"the weights must have shapes {shapes} for p of shape {tuple(p.shape)}, got {got}")
    xp = array_namespace(p, *weights)
    w1, b1, w2, b2 = (xp.astype(w, p.dtype) for w in weights)
    hidden = p @ w1[:, :-1].T + t * w1[:, -1] + b1
    return xp.where(hidden > 0, hidden, 0.0) @ w2[:, :-1].T + t * w2[:, -1] + b2


def oscillators(d_model: int, *, layout: Layout, delta: float, base: float = 10000.0) -> Array:
    """Matrix A of the linear field h(t, p) = A p that has the sinusoidal encoding as its trajectory.

    From p(0) = PE(0) the solution p(t) = exp(tA) p(0) is PE(i) at t = iΔ, exactly: each pair of sine and cosine is a
    harmonic oscillator, d sin(ωt/Δ)/dt = (ω/Δ) cos(ωt/Δ) and d cos(ωt/Δ)/dt = −(ω/Δ) sin(ωt/Δ). An integrator
    adds its error. d_model must be even: a sine alone does not close.

    Returns NumPy float64 ``(d_model, d_model)``.

    >>> oscillators(2, layout="interleaved", delta=0.5)
    array([[ 0.,  2.],
           [-2.,  0.]])
    """
    check_size("d_model", d_model, even=True)
    check_choice("layout", layout, ("interleaved", "concatenated"))
    omega = frequencies(d_model, base=base) / check_number("delta", delta, 0, above=True)
    i = np.arange(d_model // 2)
    sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + d_model // 2)
    a = np.zeros((d_model, d_model))
    a[sine, cosine], a[cosine, sine] = omega, -omega
    return a
