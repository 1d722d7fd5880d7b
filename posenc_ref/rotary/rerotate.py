"""Moving keys that were cached after they were turned."""

from array_api_compat import array_namespace

from posenc_ref.checks import Array, check_floating, check_positions
from posenc_ref.rotary.layouts import Layout
from posenc_ref.rotary.rope import cos_sin, rotate_heads


def rerotate(k: Array, *, old_positions: Array, new_positions: Array, inv_freq: Array, layout: Layout) -> Array:
    """Keys cached at ``old_positions``, as if they had been turned at ``new_positions``: R(new − old) k.

    Rotations compose, R(new − old) R(old) = R(new). Needed when tokens in the middle of a cache are evicted and the
    rest moves up. Each call rounds the keys once more; an attention factor is in them already and is not applied
    again.

    Parameters
    ----------
    k : ``(batch, heads, seq, head_dim)``, turned. Not changed.
    old_positions, new_positions : ``(seq,)`` or ``(batch, seq)``, tokens from 0.
    inv_freq : ``(rotary_dim/2,)``, those the keys were turned with. If these changed too (dynamic NTK), keep the
        keys unturned instead.
    layout : the layout they were turned in.

    Source: Xiao et al. 2023, section 3.2, arXiv:2309.17453, where positions are those within the cache.

    >>> import numpy as np
    >>> k9 = np.array([[[[-2.14748572, 1.63239127, -2.3212723, 4.16356803]]]])    # [1, 2, 3, 4] at position 9
    >>> rerotate(k9, old_positions=np.array([9]), new_positions=np.array([6]), inv_freq=[1, 0.01], layout="half")
    array([[[[1.79841678, 1.75654505, 2.60109536, 4.11273017]]]])
    """
    check_floating("k", k)
    check_positions(old_positions, "old_positions")
    check_positions(new_positions, "new_positions")
    if old_positions.shape != new_positions.shape:
        shapes = f"{tuple(old_positions.shape)} and {tuple(new_positions.shape)}"
        raise ValueError(f"old_positions and new_positions must share a shape, got {shapes}")
    xp = array_namespace(old_positions, new_positions)
    whole = all(xp.isdtype(p.dtype, "integral") for p in (old_positions, new_positions))
    old, new = (xp.astype(p, xp.int64 if whole else xp.float64) for p in (old_positions, new_positions))

    def tables(p: Array) -> tuple[Array, Array]:
        return cos_sin(p, inv_freq)

    return rotate_heads("k", k, new - old, tables, head_dim=k.shape[-1], layout=layout)
