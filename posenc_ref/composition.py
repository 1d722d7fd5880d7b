"""Several encodings in one layer, such as RoPE with a learned bias.

What needs nothing of its own: an encoding for each layer is a list of encodings, and a windowed layer is a mask
(:func:`posenc_ref.positions.window`).
"""

import math

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import Array


class Composition(Encoding):
    """All of ``parts``, each where it acts: embeddings and rotations one after the other, biases added up.

    At most one of them may act on values, and at most one may set its own logit scale (T5, DeBERTa, YaRN): two
    opinions about one number have no sum.

    >>> import numpy as np
    >>> from posenc_ref.bias import ALiBi
    >>> from posenc_ref.rotary import RoPE
    >>> both = Composition(RoPE(4, layout="half"), ALiBi(2, causal=True))
    >>> both.spec.name, both.spec.acts_on
    ('rope + alibi', 'queries and keys + logits')
    """

    def __init__(self, *parts: Encoding) -> None:
        for part in parts:
            if not isinstance(part, Encoding):
                raise TypeError(f"parts must be encodings, got {part!r}")
        if len(parts) < 2:
            raise ValueError(f"parts must be at least two encodings, got {parts}")
        if len({part.position_axes for part in parts}) > 1:
            raise ValueError(f"parts must read the same positions, got axes {[part.position_axes for part in parts]}")
        self.parts = parts
        self._values = self._only_one("act on values", [p for p in parts if "values" in p.spec.acts_on])
        plain = 1 / math.sqrt(64)
        self._scale = self._only_one("set the logit scale", [p for p in parts if p.logit_scale(64) != plain])
        specs = [part.spec for part in parts]

        def all_of(field: str) -> str:
            return " + ".join(getattr(s, field) for s in specs)

        self.spec = Spec(  # type: ignore[misc]  # of the instance: the class alone has no parts
            name=all_of("name"),
            acts_on=all_of("acts_on"),
            shift_invariant=all(s.shift_invariant for s in specs),
            any_length=all(s.any_length for s in specs),
            learned=any(s.learned for s in specs),
            source=all_of("source"),
            parameters=all_of("parameters"),
            cacheable=all_of("cacheable"),
            cost=all_of("cost"),
        )

    def _only_one(self, what: str, parts: list[Encoding]) -> Encoding:
        if len(parts) > 1:
            raise ValueError(f"at most one of the parts may {what}, got {[part.spec.name for part in parts]}")
        return parts[0] if parts else Encoding()

    @property
    def position_axes(self) -> tuple[int, ...]:
        """Those of all parts."""
        return self.parts[0].position_axes

    def embed(self, x: Array, *, positions: Array) -> Array:
        """Return the embeddings after all parts, in their order."""
        for part in self.parts:
            x = part.embed(x, positions=positions)
        return x

    def rotate(self, q: Array, k: Array, *, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        """Return queries and keys after all parts, in their order."""
        for part in self.parts:
            q, k = part.rotate(q, k, q_positions=q_positions, k_positions=k_positions)
        return q, k

    def bias(
        self, q: Array, k: Array, *, q_positions: Array, k_positions: Array, mask: Array | None = None
    ) -> Array | None:
        """Return the sum of the biases. Those that read q and k see them rotated."""
        at = {"q_positions": q_positions, "k_positions": k_positions, "mask": mask}
        biases = [b for part in self.parts if (b := part.bias(q, k, **at)) is not None]
        return sum(biases[1:], biases[0]) if biases else None

    def values(self, weights: Array, v: Array, *, q_positions: Array, k_positions: Array) -> Array:
        """Return the output of the part that acts on values, or weights @ v."""
        return self._values.values(weights, v, q_positions=q_positions, k_positions=k_positions)

    def logit_scale(self, head_dim: int) -> float:
        """Return the scale of the part that sets one, or 1/√head_dim."""
        return self._scale.logit_scale(head_dim)
