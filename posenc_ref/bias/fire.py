"""FIRE, functional interpolation of relative positions (Li et al. 2024, arXiv:2310.04418)."""

from typing import Any

from array_api_compat import array_namespace

from posenc_ref.bias.offsets import bias_dtype, check_positive, offsets
from posenc_ref.checks import Array, check_floating, check_positions


def fire_bias(
    q_positions: Array,
    k_positions: Array,
    *,
    c: Array,
    threshold: Array,
    hidden_weight: Array,
    hidden_bias: Array,
    out_weight: Array,
    out_bias: Array,
    dtype: Any = None,
) -> Array:
    """Learned function of the normalised distance: f_θ(ψ(i − j) / ψ(max(L, i))) with ψ(x) = log(1 + c·x).

    Here i is the query's position and j the key's. The quotient lies in [0, 1] for every key from position 0 to
    the query, at any length ("progressive interpolation"). Below the threshold L the divisor is constant; beyond,
    it depends on i, so that **a common shift of all positions changes the bias**: count positions from the start
    of the text.

    Parameters
    ----------
    q_positions, k_positions : ``(len,)`` or ``(batch, len)``, tokens from 0.
    c, threshold : positive numbers or arrays ``()``; c of ψ, and L in tokens.
    hidden_weight, hidden_bias, out_weight, out_bias : f_θ, one hidden layer with ReLU, in the shapes of
        ``torch.nn.Linear``: ``(width, 1)``, ``(width,)``, ``(num_heads, width)``, ``(num_heads,)``.
    dtype : float32 or float64; default that of the weights, at least float32.

    Returns
    -------
    ``(batch | 1, num_heads, q_len, k_len)``, to be added after the logit scale. Keys after the query get the
    distance ``|i − j|``, as in the authors' code; the paper is about causal attention.

    Source: Li et al. 2024, section 3, and the code in the appendix (which adds 1e-6 to the divisor; L > 0 makes
    that needless).

    >>> import numpy as np
    >>> one, zero = np.ones((1, 1)), np.zeros(1)             # f_θ(x) = max(x, 0)
    >>> f = dict(hidden_weight=one, hidden_bias=zero, out_weight=one, out_bias=zero)
    >>> fire_bias(np.array([4, 9]), np.array([0, 4]), c=1.0, threshold=4.0, **f)[0, 0].round(4)
    array([[1.    , 0.    ],
           [1.    , 0.7782]])
    """
    if len(check_floating("out_weight", out_weight).shape) != 2:
        raise ValueError(f"out_weight must be (num_heads, width), got shape {tuple(out_weight.shape)}")
    num_heads, width = out_weight.shape
    for name, weight, shape in (
        ("hidden_weight", hidden_weight, (width, 1)),
        ("hidden_bias", hidden_bias, (width,)),
        ("out_bias", out_bias, (num_heads,)),
    ):
        if tuple(check_floating(name, weight).shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(weight.shape)}")
    for name, value in (("c", c), ("threshold", threshold)):
        if getattr(check_positive(name, value), "shape", ()) != ():
            raise ValueError(f"{name} must be a number or have shape (), got shape {tuple(value.shape)}")
    positions = check_positions(q_positions, "q_positions"), check_positions(k_positions, "k_positions")
    xp = array_namespace(*positions, hidden_weight, hidden_bias, out_weight, out_bias)
    dtype = bias_dtype(xp, dtype, hidden_weight, hidden_bias, out_weight, out_bias)
    distance = normalized_distance(q_positions, k_positions, c, threshold, dtype=dtype)
    return mlp(distance, hidden_weight, hidden_bias, out_weight, out_bias)


def normalized_distance(q_positions: Array, k_positions: Array, c: Array, threshold: Array, *, dtype: Any) -> Array:
    """ψ(|i − j|) / ψ(max(L, i)), ``(batch | 1, 1, q_len, k_len)``; see :func:`fire_bias`. Values unchecked."""
    offset = offsets(q_positions, k_positions)
    xp = array_namespace(offset)
    distance = xp.astype(xp.abs(offset), dtype)
    query = xp.astype(q_positions, dtype)[..., None, :, None]
    longest = xp.where(query > threshold, query, threshold)
    return xp.astype(xp.log1p(c * distance) / xp.log1p(c * longest), dtype)


def mlp(x: Array, hidden_weight: Array, hidden_bias: Array, out_weight: Array, out_bias: Array) -> Array:
    """f_θ of each number of x ``(batch | 1, 1, q_len, k_len)``: ``(batch | 1, num_heads, q_len, k_len)``."""
    xp = array_namespace(x, out_weight)
    hidden_weight, hidden_bias, out_weight, out_bias = (
        xp.astype(w, x.dtype) for w in (hidden_weight, hidden_bias, out_weight, out_bias)
    )
    hidden = x[:, 0, :, :, None] * hidden_weight[:, 0] + hidden_bias
    hidden = xp.where(hidden > 0, hidden, 0.0)
    return xp.moveaxis(hidden @ out_weight.T + out_bias, -1, 1)
