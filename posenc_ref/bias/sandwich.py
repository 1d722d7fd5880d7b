"""Sandwich, the inner product of two sinusoidal position vectors as a bias (Chi et al. 2023, arXiv:2212.10356)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace, device

from posenc_ref.attention import Spec
from posenc_ref.bias.offsets import ToeplitzBias, bias_dtype, offsets
from posenc_ref.checks import Array, check_base, check_size
from posenc_ref.embedding.sinusoidal import sinusoidal


def sandwich_bias(
    q_positions: Array,
    k_positions: Array,
    *,
    num_heads: int,
    d_bar: int = 128,
    base: float = 10000.0,
    dtype: Any = None,
) -> Array:
    """PE(query)·PE(key) over the compression ratio 8h/n of head h = 1 … n, without any content.

    PE(m)·PE(n) = Σ_i cos((m − n)·base^(−2i/d̄)), i = 0 … d̄/2 − 1: a function of the distance, d̄/2 at 0, that falls
    roughly with its logarithm. All heads share the shape; the first feels it n times as strongly as the last.

    Parameters
    ----------
    q_positions, k_positions : ``(len,)`` or ``(batch, len)``, tokens.
    num_heads : n. d_bar : d̄, even; 128 in the paper. It has nothing to do with the width of the model.
    dtype : float32 (default) or float64; angles and sums are float64 in any case.

    Returns
    -------
    ``(batch | 1, num_heads, q_len, k_len)``, to be added after the logit scale.

    Source: Chi et al. 2023, appendix E. NVIDIA NeMo lets i run from 1 to d̄/2 and
    subtracts d̄/2: the constant cancels in softmax, the other frequencies do not.

    >>> import numpy as np
    >>> sandwich_bias(np.array([2]), np.arange(3), num_heads=2, d_bar=4)[0, :, 0].round(4)   # cos x + cos(x/100)
    array([[0.1459, 0.3851, 0.5   ],
           [0.073 , 0.1925, 0.25  ]], dtype=float32)
    """
    offset = offsets(q_positions, k_positions)
    xp = array_namespace(offset)
    dtype = bias_dtype(xp, dtype)
    heads = range(1, check_size("num_heads", num_heads) + 1)
    check_size("d_bar", d_bar, even=True)
    q, k = (sinusoidal(p, d_bar, layout="concatenated", base=base) for p in (q_positions, k_positions))
    product = q @ xp.matrix_transpose(k)
    product = xp.reshape(product, offset.shape)
    ratio = xp.asarray([8 * h / num_heads for h in heads], dtype=xp.float64, device=device(product))
    return xp.astype(product / ratio[:, None, None], dtype)


@dataclass(frozen=True)
class Sandwich(ToeplitzBias):
    """Adds :func:`sandwich_bias` to the logits.

    >>> import numpy as np
    >>> Sandwich(2, d_bar=4).bias_vector(1, 3, like=np.zeros(1))[0].round(4)
    array([0.1459, 0.3851, 0.5   ], dtype=float32)
    """

    num_heads: int
    d_bar: int = 128
    base: float = 10000.0

    spec: ClassVar[Spec] = Spec(
        "sandwich", "logits", shift_invariant=True, any_length=True, learned=False,
        source="Chi et al. 2023, appendix E, arXiv:2212.10356",
        cost="S²·H, or S·H as a vector",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_size("num_heads", self.num_heads)
        check_size("d_bar", self.d_bar, even=True)
        check_base(self.base)

    def __call__(self, q_positions: Array, k_positions: Array, *, dtype: Any = None) -> Array:
        """Return :func:`sandwich_bias`."""
        return sandwich_bias(
            q_positions, k_positions, num_heads=self.num_heads, d_bar=self.d_bar, base=self.base, dtype=dtype
        )
