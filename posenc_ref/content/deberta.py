"""DeBERTa's disentangled attention (He et al. 2021, section 3.1, arXiv:2006.03654).

Each word has a content vector and each relative position a vector of its own, with key and query projections::

    A_ij = Qc_i·Kc_j + Qc_i·Kr_δ(i,j) + Kc_j·Qr_δ(j,i)             (content, c2p, p2c)      equation 4

all divided by √(3·head_dim). **δ counts query − key**, the other way round than the offsets of this package:
δ(i, j) = clip(i − j + k, 0, 2k − 1), equation 3. Versions 2 and 3 put i − j into logarithmic buckets first.
"""

import math
from bisect import bisect_right
from typing import Any, Literal

from array_api_compat import array_namespace, device

from posenc_ref.bias.offsets import offsets
from posenc_ref.checks import Array, check_choice, check_floating, check_size
from posenc_ref.content.lookup import check_pair, check_table, check_whole, pick, rows_by_pair

P2CIndex = Literal["paper", "released"]
P2C_INDICES: tuple[str, ...] = ("paper", "released")


def log_bucket_ends(bucket_size: int, max_position: int) -> list[int]:
    """Largest distance of each bucket mid, mid + 1, … 2·mid − 1 with mid = ⌊bucket_size / 2⌋, in exact integers.

    The distance n > mid is in bucket mid + ⌈(mid − 1)·log(n/mid) / log((max_position − 1)/mid)⌉, so bucket mid + b
    ends at the largest n with n^(mid−1)·mid^b ≤ (max_position − 1)^b·mid^(mid−1). Smaller distances are
    their own bucket.

    Raises ValueError unless bucket_size ≥ 4 and max_position − 1 > mid.

    >>> log_bucket_ends(8, 33)
    [4, 8, 16, 32]
    """
    mid = check_size("bucket_size", bucket_size, minimum=4) // 2
    last = check_size("max_position", max_position) - 1
    if last <= mid:
        raise ValueError(f"max_position must exceed bucket_size // 2 + 1 = {mid + 1}, got {max_position}")
    bounds = [last**b * mid ** (mid - 1 - b) for b in range(mid)]
    return [bisect_right(range(last + 1), bound, key=lambda n: n ** (mid - 1)) - 1 for bound in bounds]


def deberta_bucket(relative: Array, *, bucket_size: int, max_position: int) -> Array:
    """Bucket of each relative position, with its sign: int64 of the same shape, at most 2·⌊bucket_size/2⌋ − 1.

    One bucket for each distance up to bucket_size / 2, then logarithmic up to max_position − 1 (the model's maximum,
    whatever the length of the text). Odd in its argument, so the sign of the offset does not matter. Beyond
    max_position − 1 the last bucket stays; the released code goes on counting there.

    Source: ``make_log_bucket_position`` of the authors' code (DeBERTa v2); the paper's models clip instead.

    >>> import numpy as np
    >>> deberta_bucket(np.array([0, 127, 128, 130, 300, 511, -200]), bucket_size=256, max_position=512)
    array([   0,  127,  128,  130,  207,  255, -169])
    """
    return _bucket(check_whole(relative), log_bucket_ends(bucket_size, max_position))


def deberta_index(q_positions: Array, k_positions: Array, *, span: int, max_position: int | None = None) -> Array:
    """δ(i, j): the row of a table of 2·span vectors for each pair, int64 ``(batch | 1, 1, q_len, k_len)``.

    clip(query − key + span, 0, 2·span − 1). With ``max_position`` (v2, v3) query − key is replaced by
    its :func:`deberta_bucket`, and span is the number of buckets. Row span is the query's own position; the
    rows *below* it belong to keys that come after the query.

    >>> import numpy as np
    >>> deberta_index(np.arange(3), np.arange(3), span=2)[0, 0]
    array([[2, 1, 0],
           [3, 2, 1],
           [3, 3, 2]])
    """
    check_size("span", span)
    relative = -check_whole(offsets(q_positions, k_positions))
    return _row(relative, span, None if max_position is None else log_bucket_ends(span, max_position))


def deberta_scale(head_dim: int, *, terms: int) -> float:
    """Factor of all logits, the content's too: 1/√((1 + terms)·head_dim), terms = 2 with c2p and p2c.

    >>> round(1 / deberta_scale(64, terms=2), 7)
    13.8564065
    """
    return 1 / math.sqrt((1 + check_size("terms", terms)) * check_size("head_dim", head_dim))


def deberta_bias(
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    *,
    keys: Array | None,
    queries: Array | None,
    p2c_index: P2CIndex,
    max_position: int | None = None,
) -> Array:
    """Both relative terms: (Qc_i·Kr_δ(i,j) + Kc_j·Qr_δ) · :func:`deberta_scale`.

    Parameters
    ----------
    q, k : Qc and Kc, ``(batch, heads, len, head_dim)``. Their own product must be scaled by the same
        :func:`deberta_scale`, not by 1/√head_dim.
    q_positions, k_positions : integers, ``(len,)`` or ``(batch, len)``, tokens.
    keys : Kr for c2p, ``(2·span, head_dim)`` or ``(heads, 2·span, head_dim)``: the relative embeddings after the key
        projection of the layer. None leaves the term out.
    queries : Qr for p2c, the same after the query projection. None leaves the term out.
    p2c_index : row of ``queries`` for the query at i and the key at j. ``"paper"``: δ(j, i), equation 4.
        ``"released"``: δ(i, j), what the authors' code and transformers compute and trained models need.
    max_position : None clips at the span (v1); a number makes logarithmic buckets (v2, v3).

    Returns
    -------
    ``(batch, heads, q_len, k_len)`` of the dtype of q, at least float32, to be added to the scaled logits.

    Source: He et al. 2021, equations 2 to 4 and the scale in section 3.1.

    >>> import numpy as np
    >>> q, k = np.zeros((1, 1, 3, 1)), np.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    >>> queries, p = np.array([[10.0], [20.0], [30.0], [40.0]]), np.arange(3)
    >>> b = deberta_bias(q, k, p, p, keys=queries, queries=queries, p2c_index="released")
    >>> (b * 3**0.5)[0, 0].round(9)
    array([[30., 40., 30.],
           [40., 60., 60.],
           [40., 80., 90.]])
    """
    span, ends = _span(keys, queries), None
    if max_position is not None:
        ends = log_bucket_ends(span, max_position)
    return disentangled(q, k, q_positions, k_positions, keys, queries, p2c_index=p2c_index, ends=ends)


def disentangled(
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    keys: Array | None,
    queries: Array | None,
    *,
    p2c_index: P2CIndex,
    ends: list[int] | None,
) -> Array:
    """:func:`deberta_bias` with the :func:`log_bucket_ends` already known, for code that is compiled."""
    xp, q, k, c2p_row, p2c_row = _rows(q, k, q_positions, k_positions, keys, queries, p2c_index, ends)
    total = 0.0
    if keys is not None:
        scores = q @ xp.matrix_transpose(check_table("keys", keys, q, q.shape[3]))  # (batch, heads, q_len, 2·span)
        total = pick(scores, c2p_row)
    if queries is not None:  # each key picks among the positions: transposed, then back
        scores = k @ xp.matrix_transpose(check_table("queries", queries, k, k.shape[3]))
        total = total + xp.matrix_transpose(pick(scores, xp.matrix_transpose(p2c_row)))
    return total * deberta_scale(q.shape[-1], terms=(keys is not None) + (queries is not None))


def deberta_bias_by_pair(
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    *,
    keys: Array,
    queries: Array,
    p2c_index: P2CIndex,
    max_position: int | None = None,
) -> Array:
    """:func:`deberta_bias` as equation 4 is written, with two vectors for every pair: the specification."""
    ends = None if max_position is None else log_bucket_ends(_span(keys, queries), max_position)
    xp, q, k, c2p_row, p2c_row = _rows(q, k, q_positions, k_positions, keys, queries, p2c_index, ends)
    keys, queries = check_table("keys", keys, q, q.shape[3]), check_table("queries", queries, k, k.shape[3])
    c2p = xp.sum(q[:, :, :, None, :] * rows_by_pair(keys, c2p_row), axis=-1)
    p2c = xp.sum(k[:, :, None, :, :] * rows_by_pair(queries, p2c_row), axis=-1)
    return (c2p + p2c) * deberta_scale(q.shape[-1], terms=2)


def _rows(
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    keys: Array | None,
    queries: Array | None,
    p2c_index: P2CIndex,
    ends: list[int] | None,
) -> tuple[Any, Array, Array, Array, Array]:
    """Check all; return the library, q, k, and the rows of both tables for each pair."""
    check_choice("p2c_index", p2c_index, P2C_INDICES)
    xp, q, k = check_pair(q, k, q_positions, k_positions)
    relative, span = -check_whole(offsets(q_positions, k_positions)), _span(keys, queries)  # i − j
    row = _row(relative, span, ends)
    return xp, q, k, row, row if p2c_index == "released" else _row(-relative, span, ends)


def _row(relative: Array, span: int, ends: list[int] | None) -> Array:
    relative = relative if ends is None else _bucket(relative, ends)
    return array_namespace(relative).clip(relative + check_size("span", span), 0, 2 * span - 1)


def _bucket(relative: Array, ends: list[int]) -> Array:
    xp, mid = array_namespace(relative), ends[0]
    distance = xp.abs(relative)
    inner = xp.asarray(ends[:-1], dtype=xp.int64, device=device(relative))  # beyond the last end the bucket stays
    bucket = xp.where(distance <= mid, distance, mid + xp.searchsorted(inner, distance))
    return xp.where(relative < 0, -bucket, bucket)


def _span(keys: Array | None, queries: Array | None) -> int:
    """Return half the number of rows, which both tables share."""
    for name, table in (("keys", keys), ("queries", queries)):
        if table is not None:
            check_floating(name, table)
    rows = sorted({int(table.shape[-2]) for table in (keys, queries) if table is not None and len(table.shape) > 1})
    if len(rows) != 1 or rows[0] % 2:
        raise ValueError(f"keys and queries, of which one may be None, need the same even number of rows, got {rows}")
    return rows[0] // 2
