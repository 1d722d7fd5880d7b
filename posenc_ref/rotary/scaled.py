"""RoPE with scaled frequencies: what :mod:`~posenc_ref.rotary.scaling` computes, kept as values and as an encoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import Array, check_choice, check_size
from posenc_ref.rotary.layouts import LAYOUTS, Layout, check_rotary_dim
from posenc_ref.rotary.rope import cos_sin, rotate_heads
from posenc_ref.rotary.scaling import (
    Frequencies,
    Ramp,
    by_parts,
    dynamic_ntk,
    llama3,
    longrope,
    ntk_aware,
    position_interpolation,
    proportional,
    yarn,
    yarn_mscale,
)


@dataclass(frozen=True)
class Scaling:
    """A scaling function with all its arguments but those of RoPE. Base class of those below."""

    function: ClassVar[Callable[..., Frequencies]]
    depends_on_length: ClassVar[bool] = False

    @property
    def logit_factor(self) -> float:
        """What multiplies the softmax scale, on top of the attention factor's square: 1 but for :class:`YaRN`."""
        return 1.0

    def inv_freq(self, rotary_dim: int, base: float = 10000.0, length: int | None = None) -> Frequencies:
        """Return the function's value; ``length`` is required where it matters and ignored elsewhere.

        >>> DynamicNTK(factor=2, original_max_position=2048).inv_freq(128)
        Traceback (most recent call last):
        ValueError: length must be given, as the frequencies of DynamicNTK depend on it, got None
        """
        arguments = dict(vars(self))
        if self.depends_on_length:
            if length is None:
                name = type(self).__name__
                raise ValueError(f"length must be given, as the frequencies of {name} depend on it, got None")
            arguments["length"] = length
        return type(self).function(rotary_dim, base=base, **arguments)


@dataclass(frozen=True)
class PI(Scaling):
    """See :func:`position_interpolation`."""

    factor: float
    function = staticmethod(position_interpolation)


@dataclass(frozen=True)
class NTK(Scaling):
    """See :func:`ntk_aware`."""

    factor: float
    function = staticmethod(ntk_aware)


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    """See :func:`dynamic_ntk`."""

    factor: float
    original_max_position: int
    function = staticmethod(dynamic_ntk)
    depends_on_length = True


@dataclass(frozen=True)
class ByParts(Scaling):
    """See :func:`by_parts`."""

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    ramp: Ramp = "dim"
    truncate: bool = True
    function = staticmethod(by_parts)


@dataclass(frozen=True)
class YaRN(ByParts):
    """See :func:`yarn`."""

    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    function = staticmethod(yarn)

    @property
    def logit_factor(self) -> float:
        """m(mscale_all_dim)², DeepSeek's; 1 in plain YaRN, where cos and sin carry everything.

        >>> round(YaRN(factor=40, original_max_position=4096, mscale_all_dim=1.0).logit_factor, 8)
        1.87385421
        """
        return yarn_mscale(self.factor, self.mscale_all_dim) ** 2


@dataclass(frozen=True)
class Llama3(Scaling):
    """See :func:`llama3`."""

    factor: float
    original_max_position: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    function = staticmethod(llama3)


@dataclass(frozen=True)
class LongRoPE(Scaling):
    """See :func:`longrope`."""

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    factor: float
    original_max_position: int
    attention_factor: float | None = None
    function = staticmethod(longrope)
    depends_on_length = True


@dataclass(frozen=True)
class Proportional(Scaling):
    """See :func:`proportional`; the encoding's ``rotary_dim`` must be the whole head."""

    rotated: int
    factor: float = 1.0
    function = staticmethod(proportional)


@dataclass(frozen=True)
class ScaledRoPE(Encoding):
    """RoPE with scaled frequencies. Channels beyond ``rotary_dim`` pass through unscaled.

    Where the frequencies depend on the length, :meth:`at` makes the encoding for one length; it is never guessed
    from the positions, for a batch would then change its shorter rows, and nothing is remembered between calls.

    >>> import numpy as np
    >>> rope = ScaledRoPE(4, layout="half", scaling=PI(factor=2))
    >>> k = np.ones((1, 1, 1, 4))
    >>> plain = ScaledRoPE(4, layout="half", scaling=PI(factor=1))
    >>> k2, k1 = rope.rotate_keys(k, np.array([4096])), plain.rotate_keys(k, np.array([2048]))
    >>> bool(abs(k2 - k1).max() < 1e-12)
    True
    """

    head_dim: int
    layout: Layout
    scaling: Scaling
    base: float = 10000.0
    rotary_dim: int | None = None
    length: int | None = None
    _frequencies: Frequencies | None = field(init=False, repr=False, compare=False)

    spec: ClassVar[Spec] = Spec(
        "scaled_rope", "queries and keys", shift_invariant=True, any_length=True, learned=False,
        source="Peng et al. 2023, arXiv:2309.00071",
        cacheable="while the frequencies stay the same", cost="S·H·d",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_size("head_dim", self.head_dim)
        check_choice("layout", self.layout, LAYOUTS)
        if not isinstance(self.scaling, Scaling):
            raise TypeError(f"scaling must be a Scaling such as YaRN(…), got {self.scaling!r}")
        known = self.length is not None or not self.scaling.depends_on_length
        frequencies = self.scaling.inv_freq(self._rotary_dim, self.base, self.length if known else 1)
        # made once, here, so that torch.compile traces no NumPy (which it does in float32 here and there)
        object.__setattr__(self, "_frequencies", frequencies if known else None)

    def at(self, length: int) -> "ScaledRoPE":
        """Return this encoding for texts of ``length`` tokens."""
        return replace(self, length=length)

    def inv_freq(self) -> Frequencies:
        """Return the frequencies and the attention factor, see :meth:`Scaling.inv_freq`."""
        if self._frequencies is None:
            return self.scaling.inv_freq(self._rotary_dim, self.base, None)  # says what is missing
        return self._frequencies[0].copy(), self._frequencies[1]

    def logit_scale(self, head_dim: int) -> float:
        """Return 1/√head_dim times :attr:`Scaling.logit_factor`."""
        return super().logit_scale(head_dim) * self.scaling.logit_factor

    def rotate(self, q: Array, k: Array, *, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        """Return q and k, ``(batch, heads, seq, head_dim)``, turned by their own positions."""
        return self._turn("q", q, q_positions), self._turn("k", k, k_positions)

    def rotate_queries(self, q: Array, positions: Array) -> Array:
        """Return queries turned by their positions, to meet keys from :meth:`rotate_keys`."""
        return self._turn("q", q, positions)

    def rotate_keys(self, k: Array, positions: Array) -> Array:
        """Return keys turned once, to be kept in a cache. Refused where the next length would turn them otherwise.

        >>> import numpy as np
        >>> rope = ScaledRoPE(4, layout="half", scaling=DynamicNTK(factor=2, original_max_position=8))
        >>> rope.at(9).rotate_keys(np.ones((1, 1, 1, 4)), np.array([0]))
        Traceback (most recent call last):
        ValueError: keys must be cached before they are rotated, as the frequencies depend on the length, got DynamicNTK
        """
        if self.scaling.depends_on_length:
            name = type(self.scaling).__name__
            raise ValueError(
                f"keys must be cached before they are rotated, as the frequencies depend on the length, got {name}"
            )
        return self._turn("k", k, positions)

    @property
    def _rotary_dim(self) -> int:
        return check_rotary_dim(self.head_dim if self.rotary_dim is None else self.rotary_dim, self.head_dim)

    def _turn(self, name: str, x: Array, positions: Array) -> Array:
        theta, factor = self.inv_freq()

        def tables(p: Array) -> tuple[Array, Array]:
            cos, sin = cos_sin(p, theta)
            return cos * factor, sin * factor

        return rotate_heads(name, x, positions, tables, head_dim=self.head_dim, layout=self.layout)
