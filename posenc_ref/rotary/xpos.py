"""xPos: RoPE with a decay of its fast pairs (Sun et al. 2022, arXiv:2212.10554)."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from array_api_compat import array_namespace, device

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import Array, check_choice, check_number, check_size, compiling
from posenc_ref.rotary.layouts import LAYOUTS, Layout, check_rotary_dim
from posenc_ref.rotary.rope import cos_sin, inv_freq, rotate_heads


def decay(rotary_dim: int, *, gamma: float = 0.4) -> Array:
    """Decay of each pair, ζ_g = (2g/d + γ)/(1 + γ), NumPy float64 ``(rotary_dim/2,)``. xPos, equation 9.

    >>> decay(4).round(4)
    array([0.2857, 0.6429])
    """
    rotary_dim = check_size("rotary_dim", rotary_dim, even=True)
    gamma = check_number("gamma", gamma, 0, above=True)
    return (np.arange(0, rotary_dim, 2) / rotary_dim + gamma) / (1 + gamma)


@dataclass(frozen=True)
class XPos(Encoding):
    """Turns queries and keys like RoPE, and multiplies pair g by ζ_g^((m − r)/B) or ζ_g^((r − n)/B).

    A logit then holds ζ_g^((m − n)/B), a decay with the distance from query m back to key n. The ``reference`` r
    cancels in it, if it is one number for queries and keys. Published code takes the middle of the current text
    instead; keys that were cached after turning then meet queries of another reference, and each logit is off by a
    factor of ζ_g^(Δr/B) a pair. So r is an argument, to be fixed before the first key is cached. It should lie near
    the positions: farther away than about 35,000 tokens in float32, 4,000 in float16, the factors are no normal
    numbers any more (ValueError).

    ``scale_base`` B is 512 tokens in published code; the paper's equation 10 is B = 1.

    >>> q = k = np.ones((1, 1, 1, 4))
    >>> def logit(m, n, r):
    ...     q2, k2 = XPos(4, "half", reference=r).rotate(q, k, q_positions=np.array([m]), k_positions=np.array([n]))
    ...     return (q2 * k2).sum().round(6)
    >>> logit(900, 300, 0), logit(900, 300, 600), logit(1900, 1300, 1000)
    (np.float64(0.683943), np.float64(0.683943), np.float64(0.683943))
    """

    head_dim: int
    layout: Layout
    reference: float
    base: float = 10000.0
    rotary_dim: int | None = None
    scale_base: float = 512.0
    gamma: float = 0.4
    _tables: tuple[Array, Array] = field(init=False, repr=False, compare=False)

    spec: ClassVar[Spec] = Spec(
        "xpos", "queries and keys", shift_invariant=True, any_length=True, learned=False,
        source="Sun et al. 2022, equations 9 and 10, arXiv:2212.10554",
        cacheable="with one reference position", cost="S·H·d",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_size("head_dim", self.head_dim)
        check_choice("layout", self.layout, LAYOUTS)
        rotary_dim = check_rotary_dim(self.head_dim if self.rotary_dim is None else self.rotary_dim, self.head_dim)
        check_number("reference", self.reference, 0)
        check_number("scale_base", self.scale_base, 0, above=True)
        # made once, here, so that torch.compile traces no NumPy (which it does in float32 here and there)
        tables = inv_freq(rotary_dim, base=self.base), np.log(decay(rotary_dim, gamma=self.gamma))
        object.__setattr__(self, "_tables", tables)

    def rotate(self, q: Array, k: Array, *, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        """Return q and k, ``(batch, heads, seq, head_dim)``, turned and scaled by their own positions."""
        return self.rotate_queries(q, q_positions), self.rotate_keys(k, k_positions)

    def rotate_queries(self, q: Array, positions: Array) -> Array:
        """Return queries turned and multiplied by ζ^((m − r)/B)."""
        return self._turn("q", q, positions, 1.0)

    def rotate_keys(self, k: Array, positions: Array) -> Array:
        """Return keys turned and multiplied by ζ^((r − n)/B); these may be cached."""
        return self._turn("k", k, positions, -1.0)

    def _turn(self, name: str, x: Array, positions: Array, sign: float) -> Array:
        theta, log_decay = self._tables

        def tables(p: Array) -> tuple[Array, Array]:
            xp = array_namespace(x, p)
            distance = xp.astype(p, xp.float64) - self.reference
            if not compiling(xp):
                # where the factor of the first pair, or its inverse, is no normal number of the dtype of x
                limit = -self.scale_base * math.log(xp.finfo(x.dtype).smallest_normal)
                if (farthest := float(xp.max(xp.abs(distance)))) * -log_decay[0] > limit:
                    near = f"within {int(limit / -log_decay[0])} tokens of reference = {self.reference} in {x.dtype}"
                    raise ValueError(f"{name}_positions must lie {near}, got one {farthest:g} away")
            scale = xp.exp(sign * distance[..., None] * xp.asarray(log_decay, device=device(p)) / self.scale_base)
            cos, sin = cos_sin(p, theta)
            return cos * scale, sin * scale

        return rotate_heads(name, x, positions, tables, head_dim=self.head_dim, layout=self.layout)
