"""Sinusoidal position vectors (Vaswani et al. 2017, section 3.5, arXiv:1706.03762)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace, device

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import (
    Array,
    check_base,
    check_choice,
    check_floating,
    check_lengths,
    check_positions,
    check_size,
)

Layout = Literal["interleaved", "concatenated"]
Exponent = Literal["paper", "tensor2tensor"]


def frequencies(d_model: int, *, base: float = 10000.0, exponent: Exponent = "paper") -> Array:
    """Angular frequencies ω_i in radians a token, NumPy float64 ``(⌈d_model / 2⌉,)``.

    ``exponent="paper"``: ω_i = base^(−2i / d_model). ``"tensor2tensor"``: ω_i = base^(−i / (d_model/2 − 1)), so
    that the last one is exactly 1/base; it needs an even d_model. Models that were trained with one cannot use
    the other.

    >>> frequencies(8)
    array([1.   , 0.1  , 0.01 , 0.001])
    """
    d_model = check_size("d_model", d_model)
    base = check_base(base)
    check_choice("exponent", exponent, ("paper", "tensor2tensor"))
    i = np.arange((d_model + 1) // 2, dtype=np.float64)  # torch.compile divides integers in float32
    if exponent == "tensor2tensor":
        check_size("d_model", d_model, even=True)
        return base ** -(i / max(d_model // 2 - 1, 1))
    return base ** -(2 * i / d_model)


def wavelengths(d_model: int, *, base: float = 10000.0, exponent: Exponent = "paper") -> Array:
    """Tokens after which each pair repeats, 2π/ω_i, NumPy float64 ``(⌈d_model / 2⌉,)``.

    >>> wavelengths(4).round(2)
    array([  6.28, 628.32])
    """
    return 2 * math.pi / frequencies(d_model, base=base, exponent=exponent)


def sinusoidal(
    positions: Array,
    d_model: int,
    *,
    layout: Layout,
    base: float = 10000.0,
    exponent: Exponent = "paper",
) -> Array:
    """Position vectors PE(p): sin(ω_i p) and cos(ω_i p) for each frequency.

    Parameters
    ----------
    positions : any shape ``(…)``; integers, float32 or float64, in tokens. Fractions and negatives are fine.
    d_model : width. If it is odd there is one sine more than there are cosines.
    layout : ``"interleaved"`` puts sin ω_i p in column 2i and cos ω_i p in column 2i + 1 (the paper);
        ``"concatenated"`` puts all sines first. The same numbers in another order: not interchangeable in a
        trained model.
    base, exponent : see :func:`frequencies`.

    Returns
    -------
    float64 ``(…, d_model)``, of the library and device of ``positions``. Angles need float64: in float32 the
    phase is off by 2e-2 rad at position 999,999. Cast the result, not the positions.

    Raises
    ------
    TypeError : positions in half precision. ValueError : sizes, layout or base out of range.

    Source: Vaswani et al. 2017, section 3.5; ``"tensor2tensor"`` from that library's ``get_timing_signal_1d``.

    >>> sinusoidal(np.array([0, 1]), 4, layout="interleaved").round(3)
    array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.01 , 1.   ]])
    """
    xp = array_namespace(check_positions(positions))
    check_choice("layout", layout, ("interleaved", "concatenated"))
    omega = frequencies(d_model, base=base, exponent=exponent)
    omega = xp.asarray(omega, dtype=xp.float64, device=device(positions))
    angles = xp.astype(positions, xp.float64)[..., None] * omega
    sines, cosines = xp.sin(angles), xp.cos(angles)
    if layout == "concatenated":
        return xp.concat([sines, cosines[..., : d_model // 2]], axis=-1)
    pairs = xp.stack([sines, cosines], axis=-1)
    return xp.reshape(pairs, (*positions.shape, 2 * omega.shape[0]))[..., :d_model]


@dataclass(frozen=True)
class Sinusoidal(Encoding):
    """Adds :func:`sinusoidal` vectors to the embeddings.

    The paper multiplies the token embeddings by √d_model first; that belongs to the embedding layer and is
    not done here.

    >>> x = np.zeros((1, 2, 4), dtype=np.float32)
    >>> Sinusoidal(4, layout="interleaved").embed(x, positions=np.array([0, 1])).dtype
    dtype('float32')
    """

    d_model: int
    layout: Layout
    base: float = 10000.0
    exponent: Exponent = "paper"

    spec: ClassVar[Spec] = Spec(
        "sinusoidal", "embedding", shift_invariant=False, any_length=True, learned=False,
        source="Vaswani et al. 2017, section 3.5, arXiv:1706.03762",
        cost="S·d_model, once",
    )  # fmt: skip

    def __post_init__(self) -> None:
        frequencies(self.d_model, base=self.base, exponent=self.exponent)
        check_choice("layout", self.layout, ("interleaved", "concatenated"))

    def embed(self, x: Array, *, positions: Array) -> Array:
        """Return ``x + PE(positions)``, of the dtype of ``x``; the sum is rounded once."""
        check_floating("x", x)
        if len(x.shape) != 3 or x.shape[2] != self.d_model:
            raise ValueError(f"x must be (batch, seq, d_model = {self.d_model}), got shape {tuple(x.shape)}")
        xp = array_namespace(x, check_lengths("positions", positions, x.shape[0], x.shape[1]))
        pe = sinusoidal(positions, self.d_model, layout=self.layout, base=self.base, exponent=self.exponent)
        return xp.astype(xp.astype(x, xp.float64) + pe, x.dtype)
