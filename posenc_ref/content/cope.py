"""CoPE, contextual position encoding (Golovneva et al. 2024, section 4, arXiv:2405.18719).

A query counts only the keys it opens a gate for. The key at j is p_ij counts away, a fraction, and gets a vector
between those of the two whole numbers around it::

    g_ij = σ(q_i·k_j)        p_ij = Σ_{t = j … i} g_it        logit = q_i·(k_j + e[p_ij])       equations 3, 4, 6
"""

import math
from typing import Any

from array_api_compat import array_namespace

from posenc_ref.checks import Array, check_broadcast, check_flag, check_lengths, dtype_name
from posenc_ref.content.lookup import check_by_head, check_pair, check_table, pick
from posenc_ref.positions import causal


def cope_bias(
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    table: Array,
    *,
    scaled: bool,
    mask: Array | None = None,
) -> Array:
    """Logits of the counted positions, q_i · e[p_ij], interpolated between whole positions (equations 5, 7, 8).

    Parameters
    ----------
    q, k : ``(batch, heads, len, head_dim)``.
    q_positions, k_positions : ``(len,)`` or ``(batch, len)``, tokens. Only their order matters: CoPE is causal, a gate
        is open for keys at the query's position or before.
    table : e, ``(num_positions, head_dim)`` or ``(heads, num_positions, head_dim)``. Counts beyond num_positions − 1
        stay there.
    scaled : True divides q·e by √head_dim like q·k, as the authors' training code does by default; False adds it as
        it is, as the listing in the paper's appendix B does. The gates see q·k / √head_dim in both.
    mask : boolean, broadcastable to ``(batch, heads, q_len, k_len)``, True keeps. **Needed with padding and packing**:
        a key that may not be attended to must not be counted either.

    Returns
    -------
    ``(batch, heads, q_len, k_len)`` of the dtype of q, at least float32, to be added to the scaled logits. Keys after
    the query have q·e[0] and must be masked.

    Source: Golovneva et al. 2024, equations 3 to 8.

    >>> import numpy as np
    >>> q, k = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 3, 1))       # q·k = 0: every gate is half open
    >>> table = np.array([[0.0], [1.0], [4.0]])
    >>> cope_bias(q, k, np.array([2]), np.arange(3), table, scaled=True)[0, 0]       # counts 1.5, 1, 0.5
    array([[2.5, 1. , 0.5]])
    """
    check_flag("scaled", scaled)
    xp, q, k = check_pair(q, k, q_positions, k_positions)
    table = check_table("table", table, q, q.shape[3])
    scale = 1 / math.sqrt(q.shape[-1])
    open_to = causal(q_positions, k_positions)
    if mask is not None:
        if (dtype := dtype_name("mask", mask)) != "bool":
            raise TypeError(f"mask must be boolean (True keeps), got {dtype}")
        open_to = open_to & check_broadcast("mask", mask, (*q.shape[:3], k.shape[2]))
    gates = 0.5 + 0.5 * xp.tanh(0.5 * scale * (q @ xp.matrix_transpose(k)))  # σ, without overflow
    counts = cope_counts(xp.where(open_to, gates, 0.0), k_positions)

    last = table.shape[-2] - 1
    counts = xp.where(counts < last, counts, float(last))
    whole = xp.floor(counts)
    below = xp.astype(whole, xp.int64)
    above = xp.where(below < last, below + 1, last)
    scores = q @ xp.matrix_transpose(table)  # (batch, heads, q_len, num_positions)
    low, high = pick(scores, below), pick(scores, above)
    return (low + (counts - whole) * (high - low)) * (scale if scaled else 1.0)


def cope_counts(gates: Array, k_positions: Array) -> Array:
    """p_ij: for each key the sum of the gates of the keys at its position and after, of the shape of ``gates``.

    ``gates`` are ``(batch, heads, q_len, k_len)``, 0 where a key may not be counted, so that each sum ends at
    the query. The keys may come in any order: they are sorted by position, summed from the last to the first,
    and put back. Keys with an open gate need distinct positions.

    >>> import numpy as np
    >>> cope_counts(np.array([[[[1.0, 0.5, 0.25]]]]), np.array([0, 2, 1]))
    array([[[[1.75, 0.5 , 0.75]]]])
    """
    xp, gates = _check_gates(gates, k_positions)
    order = xp.argsort(k_positions, axis=-1)
    back = xp.argsort(order, axis=-1)
    order, back = (i[:, None, None, :] if len(i.shape) == 2 else i[None, None, None, :] for i in (order, back))
    by_position = pick(gates, order)
    sums = xp.flip(xp.cumulative_sum(xp.flip(by_position, axis=-1), axis=-1), axis=-1)
    return pick(sums, back)


def cope_counts_by_pair(gates: Array, k_positions: Array) -> Array:
    """:func:`cope_counts` as equation 4 is written, one comparison for every pair of keys: the specification."""
    xp, gates = _check_gates(gates, k_positions)
    counted = k_positions[..., :, None] >= k_positions[..., None, :]
    counted = xp.astype(counted, gates.dtype)
    return gates @ (counted[:, None] if len(counted.shape) == 3 else counted)


def _check_gates(gates: Array, k_positions: Array) -> tuple[Any, Array]:
    gates = check_by_head("gates", gates, "batch, heads, q_len, k_len")
    check_lengths("k_positions", k_positions, gates.shape[0], gates.shape[3])
    return array_namespace(gates, k_positions), gates
