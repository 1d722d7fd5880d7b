"""Attention with linear biases, ALiBi (Press et al. 2022, arXiv:2108.12409)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device

from posenc_ref.attention import Spec
from posenc_ref.bias.offsets import ToeplitzBias, bias_dtype, offsets
from posenc_ref.checks import Array, check_flag, check_positions, check_size


def slopes(num_heads: int) -> Array:
    """Slopes of the heads, NumPy float64 ``(num_heads,)``.

    For n = 2^a heads s_h = 2^(−8h/n), h = 1 … n. For other counts: those of the power of two below, then every
    other one of its double. The order is part of trained models: not sorted on purpose.

    Source: Press et al. 2022, section 3; other counts from the authors' code, as BLOOM and MPT use them.

    >>> slopes(8)[:3]
    array([0.5  , 0.25 , 0.125])
    >>> slopes(6)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625, 0.5       , 0.125     ])
    """
    return np.asarray(_slopes(num_heads))


def alibi_bias(q_positions: Array, k_positions: Array, *, num_heads: int, causal: bool, dtype: Any = None) -> Array:
    """Linear bias by distance: ``s_h·(key − query)`` if ``causal``, else ``−s_h·|key − query|``.

    Parameters
    ----------
    q_positions, k_positions : ``(len,)`` or ``(batch, len)``, tokens. With a cache the queries are the last ones.
    num_heads : any count; see :func:`slopes`.
    causal : the causal form is the paper's. It is ≤ 0 for the past and **positive for the future**, so it needs
        the causal mask; without one it pays a query for looking ahead. Encoders take ``causal=False``.
    dtype : float32 (default) or float64.

    Returns
    -------
    ``(batch | 1, num_heads, q_len, k_len)``, natural-log units, to be added after the logit scale.

    Source: Press et al. 2022, section 3. The symmetric form is a later convention.

    >>> alibi_bias(np.array([1]), np.arange(3), num_heads=8, causal=True)[0, 0]      # key 2 is in the future
    array([[-0.5,  0. ,  0.5]], dtype=float32)
    >>> alibi_bias(np.array([1]), np.arange(3), num_heads=8, causal=False)[0, 0]
    array([[-0.5,  0. , -0.5]], dtype=float32)
    """
    offset = offsets(q_positions, k_positions)
    xp = array_namespace(offset)
    dtype = bias_dtype(xp, dtype)
    offset = xp.astype(offset if check_flag("causal", causal) else -xp.abs(offset), dtype)
    slope = xp.asarray(_slopes(num_heads), dtype=dtype, device=device(offset))[:, None, None]
    return slope * offset


def alibi_row_bias(k_positions: Array, *, num_heads: int, dtype: Any = None) -> Array:
    """Causal ALiBi in one row for all queries: s_h·(key − last key), ``(batch | 1, num_heads, 1, k_len)``.

    It differs from s_h·(key − query) by a constant in each row, which softmax cancels. So it is **valid only
    under a causal mask, and in no symmetric form**: ``−s_h·|key − query|`` has no such constant. Counting from the
    last key instead of from 0 keeps float32 exact to rounding at far positions.

    >>> alibi_row_bias(np.arange(3), num_heads=8)[0, 0]
    array([[-1. , -0.5,  0. ]], dtype=float32)
    """
    shape = tuple(check_positions(k_positions, "k_positions").shape)
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"k_positions must be (len,) or (batch, len), none 0, got shape {shape}")
    xp = array_namespace(k_positions)
    last = xp.max(k_positions, axis=-1, keepdims=True)
    return alibi_bias(last, k_positions, num_heads=num_heads, causal=True, dtype=dtype)


def _slopes(num_heads: int) -> list[float]:
    num_heads = check_size("num_heads", num_heads)
    power = 2 ** (num_heads.bit_length() - 1)
    first = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    second = [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * power, 2)]
    return (first + second)[:num_heads]


@dataclass(frozen=True)
class ALiBi(ToeplitzBias):
    """Adds :func:`alibi_bias` to the logits. ``causal`` has no default: the wrong form fails silently.

    >>> ALiBi(8, causal=True).bias_vector(1, 3, like=np.zeros(1))[0]
    array([-1. , -0.5,  0. ], dtype=float32)
    """

    num_heads: int
    causal: bool

    spec: ClassVar[Spec] = Spec(
        "alibi", "logits", shift_invariant=True, any_length=True, learned=False,
        source="Press et al. 2022, section 3, arXiv:2108.12409",
        cost="S²·H, or S·H as a row",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_size("num_heads", self.num_heads)
        check_flag("causal", self.causal)

    def __call__(self, q_positions: Array, k_positions: Array, *, dtype: Any = None) -> Array:
        """Return :func:`alibi_bias`."""
        return alibi_bias(q_positions, k_positions, num_heads=self.num_heads, causal=self.causal, dtype=dtype)
