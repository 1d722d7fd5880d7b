"""Position vectors that multiply the embeddings, element by element: x ⊙ p.

Where it comes from: memory networks weigh the words of a sentence so before they sum them, with fixed vectors
(Sukhbaatar et al. 2015, section 4.1, "position encoding", arXiv:1503.08895) or learned ones (Henaff et al. 2017,
equation 1, "learned multiplicative mask", arXiv:1612.03969); the Universal Transformer takes the learned ones over
for bAbI, summing as well (Dehghani et al. 2019, arXiv:1807.03819). In front of attention, in the place where others
add, we know of blog posts only (J. Su 2021, kexue.fm/archives/8130), and of no controlled comparison. RoPE, often
called multiplicative too, multiplies queries and keys by rotations, not embeddings by a diagonal.
"""

from dataclasses import dataclass
from typing import ClassVar

from posenc_ref.attention import Spec
from posenc_ref.checks import Array
from posenc_ref.embedding.learned import widened
from posenc_ref.embedding.sinusoidal import Sinusoidal, sinusoidal


def multiply(x: Array, vectors: Array, *, positions: Array) -> Array:
    """Embeddings times position vectors, ``x ⊙ vectors``, in the dtype of ``x``; the product is rounded once.

    ``x`` is ``(batch, seq, d_model)``, ``vectors`` ``(seq, d_model)`` or ``(batch, seq, d_model)``, one for each of
    ``positions``. Vectors of ones leave ``x`` alone. A zero erases its channel: no layer can bring it back.

    >>> import numpy as np
    >>> multiply(np.ones((1, 2, 2)), np.array([[0.0, 1.0], [2.0, 3.0]]), positions=np.arange(2))
    array([[[0., 1.],
            [2., 3.]]])
    """
    xp, wide, vectors_wide = widened(x, vectors, positions)
    return xp.astype(wide * vectors_wide, x.dtype)


@dataclass(frozen=True)
class MultiplicativeSinusoidal(Sinusoidal):
    """Multiplies the embeddings by :func:`posenc_ref.embedding.sinusoidal` vectors.

    At position 0 all sines are 0, so that half the channels of the first token are lost; so is, nearly, each sine
    of low frequency until its wavelength has passed. The learned form starts at ones instead:
    :class:`posenc_ref.embedding.modules.MultiplicativeEmbedding`.

    >>> import numpy as np
    >>> MultiplicativeSinusoidal(4, layout="interleaved").embed(np.ones((1, 1, 4)), positions=np.array([0]))
    array([[[0., 1., 0., 1.]]])
    """

    spec: ClassVar[Spec] = Spec(
        "multiplicative_sinusoidal", "embedding", shift_invariant=False, any_length=True, learned=False,
        source="Sukhbaatar et al. 2015, section 4.1, arXiv:1503.08895, with the vectors of arXiv:1706.03762",
        cost="S·d_model, once",
    )  # fmt: skip

    def embed(self, x: Array, *, positions: Array) -> Array:
        """Return ``x ⊙ PE(positions)``, of the dtype of ``x``; the product is rounded once."""
        pe = sinusoidal(positions, self.d_model, layout=self.layout, base=self.base, exponent=self.exponent)
        return multiply(x, pe, positions=positions)
