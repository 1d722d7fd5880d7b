"""RoPE over several axes: rows and columns of an image, or time, height and width of a video among text.

Each pair of channels turns by the position along one axis: angle_g = p[axis(g)] · θ_g. What differs between
models is which axis a pair belongs to, and whether the axes share one run of frequencies or have one each.
Positions carry the axes last: ``(seq, axes)`` or ``(batch, seq, axes)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import Array, check_base, check_choice, check_positions, check_size, compiling, dtype_name
from posenc_ref.rotary.layouts import LAYOUTS, Layout, check_rotary_dim
from posenc_ref.rotary.rope import check_frequencies, inv_freq, rotate_heads


def cos_sin_axes(positions: Array, inv_freq: Array, axis_of_pair: Array) -> tuple[Array, Array]:
    """Cosine and sine of the angles p[…, axis(g)] · θ_g, float64 ``(…, pairs)``.

    Parameters
    ----------
    positions : ``(…, axes)``, integers, float32 or float64.
    inv_freq, axis_of_pair : ``(pairs,)``: frequency of each pair, and its axis, integers from 0.

    >>> cos, sin = cos_sin_axes(np.array([3, 5]), np.array([1.0, 0.1, 1.0, 0.1]), np.array([0, 0, 1, 1]))
    >>> np.arctan2(sin, cos).round(4)             # 3, 0.3, 5 − 2π, 0.5
    array([ 3.    ,  0.3   , -1.2832,  0.5   ])
    """
    xp = array_namespace(check_positions(positions))
    if not compiling(xp):
        check_frequencies(inv_freq)
        last = positions.shape[-1] - 1 if positions.shape else -1
        listed = axis_of_pair
        if is_array_api_obj(axis_of_pair):
            dtype_name("axis_of_pair", axis_of_pair)  # raises if it holds no numbers
            listed = axis_of_pair.tolist()
        right = isinstance(listed, list | tuple) and all(type(axis) is int and 0 <= axis <= last for axis in listed)
        if not right or len(listed) != len(inv_freq):
            raise ValueError(f"axis_of_pair must be {len(inv_freq)} integers from 0 to {last}, got {axis_of_pair!r}")
    theta = xp.asarray(inv_freq, dtype=xp.float64, device=device(positions))
    axes = xp.asarray(axis_of_pair, device=device(positions))
    angles = xp.astype(xp.take(positions, axes, axis=-1), xp.float64) * theta
    return xp.cos(angles), xp.sin(angles)


def section_axes(sections: Sequence[int], *, interleaved: bool) -> Array:
    """Axis of each pair for multimodal sections: ``sections[a]`` pairs turn with axis a. int64 ``(Σ sections,)``.

    ``interleaved=False``: one run after the other (Qwen2-VL). ``True``: pair g has axis g mod 3 as long as that
    axis has pairs left to take, and axis 0 otherwise (Qwen3-VL), so that each axis gets fast and slow pairs.

    >>> section_axes([4, 2, 2], interleaved=False)
    array([0, 0, 0, 0, 1, 1, 2, 2])
    >>> section_axes([4, 2, 2], interleaved=True)
    array([0, 1, 2, 0, 1, 2, 0, 0])
    """
    if not isinstance(interleaved, bool):
        raise TypeError(f"interleaved must be True or False, got {interleaved!r}")
    if not isinstance(sections, list | tuple) or len(sections) == 0:
        raise ValueError(f"sections must be a list of numbers of pairs, not empty, got {sections!r}")
    sections = [check_size("sections", n) for n in sections]
    if not interleaved:
        return np.repeat(np.arange(len(sections)), sections)
    axes = np.zeros(sum(sections), dtype=np.int64)
    for axis, n in enumerate(sections[1:], start=1):
        places = np.arange(n) * len(sections) + axis
        if places[-1] >= len(axes):
            raise ValueError(f"sections must leave axis 0 the most pairs to be interleaved, got {sections}")
        axes[places] = axis
    return axes


class _AxesRoPE(Encoding):
    """What the two below share."""

    head_dim: int
    layout: Layout
    _tables: tuple[Array, Array, int]

    def __post_init__(self) -> None:
        check_size("head_dim", self.head_dim)
        check_choice("layout", self.layout, LAYOUTS)
        # made once, here, so that torch.compile traces no NumPy (which it does in float32 here and there)
        theta, axis_of_pair = self._pairs()
        object.__setattr__(self, "_tables", (theta, axis_of_pair, int(axis_of_pair.max()) + 1))

    def _pairs(self) -> tuple[Array, Array]:
        """Frequency and axis of each pair."""
        raise NotImplementedError

    @property
    def position_axes(self) -> tuple[int, ...]:
        """One axis, of as many numbers as there are axes to turn by."""
        return (self._tables[2],)

    def rotate(self, q: Array, k: Array, *, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        """Return q and k, ``(batch, heads, seq, head_dim)``, turned by positions ``([batch,] seq, axes)``."""
        return self._turn("q", q, q_positions), self._turn("k", k, k_positions)

    def _turn(self, name: str, x: Array, positions: Array) -> Array:
        theta, axis_of_pair, _ = self._tables

        def tables(p: Array) -> tuple[Array, Array]:
            return cos_sin_axes(p, theta, axis_of_pair)

        return rotate_heads(
            name, x, positions, tables, head_dim=self.head_dim, layout=self.layout, axes=self.position_axes
        )


@dataclass(frozen=True)
class AxialRoPE(_AxesRoPE):
    """RoPE for images (2 axes) or videos (3): each axis turns its own equal share of pairs.

    The share of an axis has the frequencies of a RoPE of rotary_dim/axes channels, so every axis has fast and slow
    pairs. ``rotary_dim`` is head_dim by default and must be a multiple of 2·axes.

    Source: Qwen2-VL's vision tower (Wang et al. 2024, section 2.1, arXiv:2409.12191); rotary-embedding-torch.

    >>> axial = AxialRoPE(8, "half")
    >>> k = np.ones((1, 1, 1, 8))
    >>> turned, _ = axial.rotate(k, k, q_positions=np.array([[3, 0]]), k_positions=np.array([[0, 0]]))
    >>> turned[0, 0, 0, [2, 3, 6, 7]]           # the pairs of the second axis, which is at 0
    array([1., 1., 1., 1.])
    """

    head_dim: int
    layout: Layout
    axes: int = 2
    base: float = 10000.0
    rotary_dim: int | None = None

    spec: ClassVar[Spec] = Spec(
        "axial_rope", "queries and keys", shift_invariant=True, any_length=True, learned=False,
        source="Wang et al. 2024, section 2.1, arXiv:2409.12191",
        cost="S·H·d",
    )  # fmt: skip

    def _pairs(self) -> tuple[Array, Array]:
        axes = check_size("axes", self.axes)
        rotary_dim = check_rotary_dim(self.head_dim if self.rotary_dim is None else self.rotary_dim, self.head_dim)
        if rotary_dim % (2 * axes):
            raise ValueError(f"rotary_dim must be a multiple of 2·axes with axes = {axes}, got {rotary_dim}")
        theta = inv_freq(rotary_dim // axes, base=self.base)
        return np.tile(theta, axes), np.repeat(np.arange(axes), len(theta))


@dataclass(frozen=True)
class MultimodalRoPE(_AxesRoPE):
    """M-RoPE: pairs of one RoPE shared out among time, height and width, by :func:`section_axes`.

    Twice the sum of ``sections`` is the rotary dimension; the other channels pass through. A text token has the same
    position on every axis, and is then turned as plain RoPE would turn it.

    Source: Qwen2-VL (Wang et al. 2024, section 2.1, arXiv:2409.12191), sections (16, 24, 24), not interleaved;
    Qwen3-VL (arXiv:2511.21631), sections (24, 20, 20), interleaved.

    >>> mrope = MultimodalRoPE(8, "half", sections=(2, 1, 1), interleaved=False)
    >>> k = np.ones((1, 1, 1, 8))
    >>> turned, _ = mrope.rotate(k, k, q_positions=np.array([[0, 0, 3]]), k_positions=np.array([[0, 0, 0]]))
    >>> (turned != 1)[0, 0, 0].astype(int)      # width turns the last pair, channels 3 and 7
    array([0, 0, 0, 1, 0, 0, 0, 1])
    """

    head_dim: int
    layout: Layout
    sections: Sequence[int]
    interleaved: bool
    base: float = 10000.0

    spec: ClassVar[Spec] = Spec(
        "multimodal_rope", "queries and keys", shift_invariant=True, any_length=True, learned=False,
        source="Wang et al. 2024, section 2.1, arXiv:2409.12191",
        cost="S·H·d",
    )  # fmt: skip

    def _pairs(self) -> tuple[Array, Array]:
        axes = section_axes(self.sections, interleaved=self.interleaved)
        return inv_freq(check_rotary_dim(2 * len(axes), self.head_dim), base=check_base(self.base)), axes
