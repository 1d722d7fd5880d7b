"""Turning all heads at once, for the relatives of RoPE that make their cosines and sines in another way."""

from collections.abc import Callable

from array_api_compat import array_namespace

from posenc_ref.checks import Array, check_floating, check_positions
from posenc_ref.rotary.layouts import Layout
from posenc_ref.rotary.rope import rotate


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

    Positions are ``(seq, *axes)`` or ``(batch, seq, *axes)``; the tables are float64, ``(seq, pairs)`` or
    ``(batch, seq, pairs)``, and are cast last: to float64 for such an ``x``, else to float32. Returns the shape
    and dtype of ``x``. Errors name ``x`` as ``name``.

    >>> import numpy as np
    >>> rotate_heads("k", np.ones((1, 1, 2)), np.arange(1), np.cos, head_dim=2, layout="half")
    Traceback (most recent call last):
    ValueError: k must be (batch, heads, seq, head_dim = 2), got shape (1, 1, 2)
    """
    check_floating(name, x)
    if len(x.shape) != 4 or x.shape[3] != head_dim:
        raise ValueError(f"{name} must be (batch, heads, seq, head_dim = {head_dim}), got shape {tuple(x.shape)}")
    check_positions(positions, f"{name}_positions")
    allowed = (x.shape[2], *axes), (x.shape[0], x.shape[2], *axes)
    if tuple(positions.shape) not in allowed:
        raise ValueError(f"{name}_positions must have shape {allowed[0]} or {allowed[1]}, got {tuple(positions.shape)}")
    xp = array_namespace(x, positions)
    dtype = xp.float64 if x.dtype == xp.float64 else xp.float32
    cos, sin = (xp.astype(table, dtype)[..., None, :, :] for table in tables(positions))
    return rotate(x, cos, sin, layout=layout)
