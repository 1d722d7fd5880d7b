"""Rotary position embedding (Su et al. 2021, RoFormer, arXiv:2104.09864)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import (
    Array,
    check_base,
    check_broadcast,
    check_choice,
    check_floating,
    check_lengths,
    check_positions,
    check_size,
    compiling,
    dtype_name,
)
from posenc_ref.rotary.layouts import LAYOUTS, Layout, check_rotary_dim


def inv_freq(rotary_dim: int, *, base: float = 10000.0) -> Array:
    """Angular frequencies θ_g = base^(−2g / rotary_dim), radians a token, NumPy float64 ``(rotary_dim/2,)``.

    With partial rotary the exponent uses ``rotary_dim``, not head_dim. Source: RoFormer, section 3.2.2.

    >>> inv_freq(8)
    array([1.   , 0.1  , 0.01 , 0.001])
    """
    rotary_dim = check_size("rotary_dim", rotary_dim, even=True)
    twice_g = np.arange(0, rotary_dim, 2, dtype=np.float64)  # torch.compile divides integers in float32
    return check_base(base) ** -(twice_g / rotary_dim)


def check_frequencies(inv_freq: Array) -> Array:
    """Return ``inv_freq`` if it is a list of numbers or an array ``(pairs,)`` of float32 or float64; raise otherwise.

    >>> check_frequencies([1.0, None])
    Traceback (most recent call last):
    TypeError: inv_freq must be numbers, float32 or float64, got [1.0, None]
    """
    if isinstance(inv_freq, list | tuple):
        good = all(isinstance(w, int | float | np.floating) for w in inv_freq)
    else:
        good = is_array_api_obj(inv_freq) and dtype_name("inv_freq", inv_freq) in ("float32", "float64")
    if not good:
        got = inv_freq.dtype if is_array_api_obj(inv_freq) else repr(inv_freq)
        raise TypeError(f"inv_freq must be numbers, float32 or float64, got {got}")
    if not isinstance(inv_freq, list | tuple) and len(inv_freq.shape) != 1:
        raise ValueError(f"inv_freq must be (pairs,), got shape {tuple(inv_freq.shape)}")
    return inv_freq


def cos_sin(positions: Array, inv_freq: Array, *, dtype: Any = None) -> tuple[Array, Array]:
    """Cosine and sine of the angles p·θ_g, each ``(…, rotary_dim/2)`` for positions ``(…)``.

    Angles are computed in float64 and the results cast to ``dtype`` last (float64 by default): in float32 the
    phase is off by more than 1e-3 rad at position 131,071, in bfloat16 by whole turns. Both lie on the device of
    ``positions``.

    >>> cos, sin = cos_sin(np.array([0, 1]), inv_freq(4))
    >>> sin.round(4)
    array([[0.    , 0.    ],
           [0.8415, 0.01  ]])
    """
    xp = array_namespace(check_positions(positions))
    dtype = xp.float64 if dtype is None else dtype
    if not xp.isdtype(dtype, "real floating"):
        raise TypeError(f"dtype must be floating point, got {dtype}")
    if not compiling(xp):
        check_frequencies(inv_freq)
    theta = xp.asarray(inv_freq, dtype=xp.float64, device=device(positions))
    angles = xp.astype(positions, xp.float64)[..., None] * theta
    return xp.astype(xp.cos(angles), dtype), xp.astype(xp.sin(angles), dtype)


def rotate(x: Array, cos: Array, sin: Array, *, layout: Layout) -> Array:
    """Turn each pair of channels counter-clockwise: (x₁, x₂) → (x₁ cos − x₂ sin, x₂ cos + x₁ sin).

    Parameters
    ----------
    x : ``(…, head_dim)``. Not changed.
    cos, sin : ``(…, rotary_dim/2)``, from :func:`cos_sin`, broadcastable against ``x`` without its last axis.
        Channels from ``rotary_dim`` on pass through.
    layout : which channels form pair g: ``"interleaved"`` (2g, 2g + 1), ``"half"`` (g, g + rotary_dim/2).

    Returns
    -------
    The shape and dtype of ``x``. Products are taken in the wider of the two dtypes and rounded once.

    Source: RoFormer, equations 15 (the matrix) and 34 (this form), sections 3.2.2 and 3.4.2.

    >>> cos, sin = cos_sin(np.array(1), inv_freq(4))
    >>> x = np.array([1.0, 2.0, 3.0, 4.0])
    >>> rotate(x, cos, sin, layout="interleaved").round(4)
    array([-1.1426,  1.9221,  2.9599,  4.0298])
    >>> rotate(x, cos, sin, layout="half").round(4)
    array([-1.9841,  1.9599,  2.4624,  4.0198])
    """
    check_choice("layout", layout, LAYOUTS)
    for name, array in (("x", x), ("cos", cos), ("sin", sin)):
        if len(check_floating(name, array).shape) == 0:
            raise ValueError(f"{name} must have at least one axis, got {array}")
    xp = array_namespace(x, cos, sin)
    pairs = cos.shape[-1]
    check_rotary_dim(2 * pairs, x.shape[-1])
    if cos.shape != sin.shape:
        raise ValueError(f"cos and sin must share a shape, got {tuple(cos.shape)} and {tuple(sin.shape)}")
    check_broadcast("cos", cos, (*x.shape[:-1], pairs))
    if layout == "half":
        x1, x2 = x[..., :pairs], x[..., pairs : 2 * pairs]
    else:
        x1, x2 = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    y1 = xp.astype(x1 * cos - x2 * sin, x.dtype)
    y2 = xp.astype(x2 * cos + x1 * sin, x.dtype)
    if layout == "half":
        turned = xp.concat([y1, y2], axis=-1)
    else:
        turned = xp.reshape(xp.stack([y1, y2], axis=-1), (*x.shape[:-1], 2 * pairs))
    if 2 * pairs == x.shape[-1]:
        return turned
    return xp.concat([turned, x[..., 2 * pairs :]], axis=-1)


def rotate_heads(
    name: str,
    x: Array,
    positions: Array,
    tables: Callable[[Array], tuple[Array, Array]],
    *,
    head_dim: int,
    layout: Layout,
    axes: tuple[int, ...] = (),
) -> Array:
    """Turn ``x``, ``(batch, heads, seq, head_dim)``, by the cosines and sines ``tables(positions)``.

    What RoPE shares with its relatives, which make their tables in other ways. Positions are ``(seq, *axes)`` or
    ``(batch, seq, *axes)``; the tables are float64, ``(seq, pairs)`` or ``(batch, seq, pairs)``, and are cast last: to
    float64 for such an ``x``, else to float32. Returns the shape and dtype of ``x``. Errors name ``x`` as ``name``.

    >>> rotate_heads("k", np.ones((1, 1, 2)), np.arange(1), np.cos, head_dim=2, layout="half")
    Traceback (most recent call last):
    ValueError: k must be (batch, heads, seq, head_dim = 2), got shape (1, 1, 2)
    """
    check_floating(name, x)
    if len(x.shape) != 4 or x.shape[3] != head_dim:
        raise ValueError(f"{name} must be (batch, heads, seq, head_dim = {head_dim}), got shape {tuple(x.shape)}")
    xp = array_namespace(x, check_lengths(f"{name}_positions", positions, x.shape[0], x.shape[2], axes))
    dtype = xp.float64 if x.dtype == xp.float64 else xp.float32
    cos, sin = (xp.astype(table, dtype)[..., None, :, :] for table in tables(positions))
    return rotate(x, cos, sin, layout=layout)


@dataclass(frozen=True)
class RoPE(Encoding):
    """Rotates queries and keys, so that their logits depend on content and on n − m only.

    ``layout`` has no default: the field uses both, and a model trained in one fails silently in the other.

    >>> rope = RoPE(4, layout="half")
    >>> q = np.ones((1, 1, 1, 4)); k = np.ones((1, 1, 1, 4))
    >>> near = rope.rotate(q, k, q_positions=np.array([7]), k_positions=np.array([5]))
    >>> far = rope.rotate(q, k, q_positions=np.array([107]), k_positions=np.array([105]))
    >>> bool(abs((near[0] * near[1]).sum() - (far[0] * far[1]).sum()) < 1e-12)
    True
    """

    head_dim: int
    layout: Layout
    base: float = 10000.0
    rotary_dim: int | None = None

    spec: ClassVar[Spec] = Spec(
        "rope", "queries and keys", shift_invariant=True, any_length=True, learned=False,
        source="Su et al. 2021, equations 15 and 34, arXiv:2104.09864",
        cost="S·H·d",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_size("head_dim", self.head_dim)
        check_rotary_dim(self.head_dim if self.rotary_dim is None else self.rotary_dim, self.head_dim)
        check_base(self.base)
        check_choice("layout", self.layout, LAYOUTS)

    def rotate(self, q: Array, k: Array, *, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        """Return q and k, ``(batch, heads, seq, head_dim)``, turned by their own positions."""
        return self._turn("q", q, q_positions), self._turn("k", k, k_positions)

    def _turn(self, name: str, x: Array, positions: Array) -> Array:
        theta = inv_freq(self.rotary_dim or self.head_dim, base=self.base)

        def tables(p: Array) -> tuple[Array, Array]:
            return cos_sin(p, theta)

        return rotate_heads(name, x, positions, tables, head_dim=self.head_dim, layout=self.layout)
