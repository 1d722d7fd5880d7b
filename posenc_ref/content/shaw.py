"""Relative vectors for keys and values (Shaw et al. 2018, arXiv:1803.02155)."""

import math

from array_api_compat import array_namespace, device, is_torch_array

from posenc_ref.bias.offsets import offsets
from posenc_ref.checks import Array, check_lengths, check_size
from posenc_ref.content.lookup import check_by_head, check_table, check_whole, pick, relative_shift, rows_by_pair


def shaw_index(q_positions: Array, k_positions: Array, *, max_distance: int) -> Array:
    """Row of the table for each pair: clip(key − query, −K, K) + K with K = ``max_distance``.

    int64 ``(batch | 1, 1, q_len, k_len)``, values 0 … 2K. Clip first, then add K: the other order gives keys
    of the far past negative rows, and all keys from the query on the same row. Positions must be integers (TypeError).

    Source: Shaw et al. 2018, section 3.2.

    >>> import numpy as np
    >>> shaw_index(np.arange(4), np.arange(4), max_distance=2)[0, 0]
    array([[2, 3, 4, 4],
           [1, 2, 3, 4],
           [0, 1, 2, 3],
           [0, 0, 1, 2]])
    """
    reach = check_size("max_distance", max_distance, minimum=0)
    return _clip(check_whole(offsets(q_positions, k_positions)), reach)


def shaw_bias(q: Array, q_positions: Array, k_positions: Array, keys: Array) -> Array:
    """Logits of the relative key vectors: q_i · a^K_ij / √head_dim with a^K_ij = keys[:func:`shaw_index`].

    Parameters
    ----------
    q : ``(batch, heads, q_len, head_dim)``.
    q_positions, k_positions : integers, ``(len,)`` or ``(batch, len)``, tokens.
    keys : ``(2K + 1, head_dim)``, one table for all heads as in the paper, or ``(heads, 2K + 1, head_dim)``. Row K is
        the query's own position, row 0 everything at least K tokens back.

    Returns
    -------
    ``(batch, heads, q_len, k_len)`` of the dtype of q, at least float32, to be added to the scaled logits.

    Source: Shaw et al. 2018, equation 4 in the order of equation 5: q is multiplied by the 2K + 1 vectors once and
    the pairs pick their products, so that no ``(q_len, k_len, head_dim)`` array is made.

    >>> import numpy as np
    >>> q, keys = np.ones((1, 1, 2, 1)), np.array([[-1.0], [0.0], [1.0]])     # K = 1: the sign of the offset
    >>> shaw_bias(q, np.array([1, 2]), np.arange(4), keys)[0, 0]
    array([[-1.,  0.,  1.,  1.],
           [-1., -1.,  0.,  1.]])
    """
    q, keys, index = _check_keys(q, q_positions, k_positions, keys)
    scores = q @ array_namespace(q).matrix_transpose(keys)  # (batch, heads, q_len, 2K + 1)
    return pick(scores, index) / math.sqrt(q.shape[-1])


def shaw_bias_by_pair(q: Array, q_positions: Array, k_positions: Array, keys: Array) -> Array:
    """:func:`shaw_bias` as equation 4 is written, with a vector for every pair: the specification."""
    q, keys, index = _check_keys(q, q_positions, k_positions, keys)
    products = q[..., None, :] * rows_by_pair(keys, index)
    return array_namespace(q).sum(products, axis=-1) / math.sqrt(q.shape[-1])


def shaw_bias_skewed(q: Array, keys: Array, *, k_len: int) -> Array:
    """:func:`shaw_bias` of queries that are the last q_len of k_len neighbouring tokens, by skewing.

    The products with the vectors of all q_len + k_len − 1 offsets are moved into place by :func:`relative_shift`.
    No index array and no lookup, but more products; and no padding, packing or evicted keys.
    """
    q = check_by_head("q", q)
    xp, q_len = array_namespace(q), q.shape[2]
    if check_size("k_len", k_len) < q_len:
        raise ValueError(f"k_len must be at least q_len = {q_len}, got {k_len}")
    keys = check_table("keys", keys, q, q.shape[3])
    by_offset = xp.arange(1 - k_len, q_len, dtype=xp.int64, device=device(q))
    rows = xp.take(keys, _clip(by_offset, _reach("keys", keys)), axis=-2)
    return relative_shift(q @ xp.matrix_transpose(rows))[..., :k_len] / math.sqrt(q.shape[-1])


def shaw_values(weights: Array, q_positions: Array, k_positions: Array, values: Array) -> Array:
    """What the relative value vectors add to the output: Σ_j α_ij a^V_ij with a^V_ij = values[:func:`shaw_index`].

    Parameters
    ----------
    weights : attention weights α, ``(batch, heads, q_len, k_len)``.
    q_positions, k_positions : integers, ``(len,)`` or ``(batch, len)``, tokens.
    values : ``(2K + 1, head_dim)`` or ``(heads, 2K + 1, head_dim)``, head_dim that of the values.

    Returns
    -------
    ``(batch, heads, q_len, head_dim)``, to be added to α v.

    Source: Shaw et al. 2018, equation 3. The weights of equal rows are summed first.

    >>> import numpy as np
    >>> weights, values = np.array([[[[0.5, 0.3, 0.2]]]]), np.array([[1.0], [10.0], [100.0]])
    >>> shaw_values(weights, np.array([1]), np.arange(3), values)             # 0.5 before, 0.3 here, 0.2 after
    array([[[[23.5]]]])
    """
    weights, values, index = _check_values(weights, q_positions, k_positions, values)
    return _sum_by_row(weights, index, values.shape[-2]) @ values


def shaw_values_by_pair(weights: Array, q_positions: Array, k_positions: Array, values: Array) -> Array:
    """:func:`shaw_values` as equation 3 is written, with a vector for every pair: the specification."""
    weights, values, index = _check_values(weights, q_positions, k_positions, values)
    return array_namespace(weights).sum(weights[..., None] * rows_by_pair(values, index), axis=-2)


def _sum_by_row(weights: Array, index: Array, rows: int) -> Array:
    """Sum of the weights that share a row of the table: ``(batch, heads, q_len, rows)``."""
    if is_torch_array(weights):  # the array API has no scatter; this is many times faster than the line below
        zeros = weights.new_zeros((*weights.shape[:-1], rows))
        return zeros.scatter_add(-1, index.expand(weights.shape), weights)
    xp = array_namespace(weights)
    return xp.stack([xp.sum(xp.where(index == row, weights, 0.0), axis=-1) for row in range(rows)], axis=-1)


def _check_keys(q: Array, q_positions: Array, k_positions: Array, keys: Array) -> tuple[Array, Array, Array]:
    q = check_by_head("q", q)
    check_lengths("q_positions", q_positions, q.shape[0], q.shape[2])
    keys = check_table("keys", keys, q, q.shape[3])
    return q, keys, shaw_index(q_positions, k_positions, max_distance=_reach("keys", keys))


def _check_values(w: Array, q_positions: Array, k_positions: Array, values: Array) -> tuple[Array, Array, Array]:
    w = check_by_head("weights", w, "batch, heads, q_len, k_len")
    check_lengths("q_positions", q_positions, w.shape[0], w.shape[2])
    check_lengths("k_positions", k_positions, w.shape[0], w.shape[3])
    values = check_table("values", values, w)
    return w, values, shaw_index(q_positions, k_positions, max_distance=_reach("values", values))


def _clip(offset: Array, reach: int) -> Array:
    return array_namespace(offset).clip(offset, -reach, reach) + reach


def _reach(name: str, table: Array) -> int:
    rows: int = table.shape[-2]
    if rows % 2 == 0:
        raise ValueError(f"{name} must have an odd number of rows, 2K + 1, got {rows}")
    return rows // 2
