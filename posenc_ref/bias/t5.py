"""T5's bucketed relative bias (Raffel et al. 2020, section 2.1, arXiv:1910.10683)."""

from bisect import bisect_left
from typing import Any

from array_api_compat import array_namespace, device

from posenc_ref.bias.offsets import bias_dtype, offsets
from posenc_ref.checks import Array, check_flag, check_floating, check_size, dtype_name


def bucket_starts(num_buckets: int, max_distance: int) -> list[int]:
    """First distance of each of the ``num_buckets`` buckets of one direction, in exact integers.

    The first half of the buckets, E of them, holds one distance each. The other N = num_buckets − E divide E …
    max_distance evenly on a log scale: bucket E + k starts at the smallest integer ≥ E^(1 − k/N)·max_distance^(k/N),
    found without logarithms as the smallest n with n^N ≥ E^(N − k)·max_distance^k. Beyond, the last one stays.

    >>> bucket_starts(16, 128)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    """
    num_buckets = check_size("num_buckets", num_buckets)
    max_distance = check_size("max_distance", max_distance)
    if num_buckets < 2:
        raise ValueError(f"num_buckets must be at least 2 in each direction, got {num_buckets}")
    exact = num_buckets // 2
    if max_distance <= exact:
        raise ValueError(f"max_distance must exceed the exact range of {exact} distances, got {max_distance}")
    n = num_buckets - exact
    bounds = [exact ** (n - k) * max_distance**k for k in range(n)]
    return [*range(exact), *(bisect_left(range(max_distance), bound, key=lambda d: d**n) for bound in bounds)]


def t5_bucket(offset: Array, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> Array:
    """Bucket of each offset key − query: int64 of the same shape, 0 … num_buckets − 1.

    Bidirectional: half of the buckets for keys at or before the query, half for keys after it. Otherwise keys
    after the query fall into bucket 0 and must be masked. Equals T5's
    ``E + ⌊log(n/E) / log(max_distance/E) · (num_buckets − E)⌋``, whose float result can miss an exact boundary.

    Raises TypeError for offsets that are not integers, ValueError for sizes out of range.

    >>> import numpy as np
    >>> t5_bucket(np.array([-200, -12, -7, 0, 7, 12, 200]), bidirectional=True)
    array([15,  9,  7,  0, 23, 25, 31])
    """
    side = check_buckets(num_buckets, bidirectional)
    return _bucket(offset, bucket_starts(side, max_distance), bidirectional)


def t5_bias(
    q_positions: Array,
    k_positions: Array,
    table: Array,
    *,
    bidirectional: bool,
    max_distance: int = 128,
    dtype: Any = None,
) -> Array:
    """Learned bias of the bucket of each offset: b_h(key − query) = table[bucket, h].

    Parameters
    ----------
    q_positions, k_positions : integers, ``(len,)`` or ``(batch, len)``.
    table : ``(num_buckets, num_heads)``, as in T5's checkpoints (``relative_attention_bias.weight``).
    bidirectional, max_distance : see :func:`t5_bucket`. T5's encoder is bidirectional, its decoder is not.
    dtype : float32 or float64; default that of the table, at least float32.

    Returns
    -------
    ``(batch | 1, num_heads, q_len, k_len)``, to be added to logits that T5 does *not* scale by 1/√head_dim.

    Source: Raffel et al. 2020, section 2.1; the buckets from the authors' code.

    >>> import numpy as np
    >>> table = np.arange(4.0)[:, None]                      # the bias is the bucket
    >>> t5_bias(np.array([2]), np.arange(4), table, bidirectional=True, max_distance=2)[0, 0]
    array([[1., 1., 0., 3.]])
    """
    offset = offsets(q_positions, k_positions)
    if len(check_floating("table", table).shape) != 2:
        raise ValueError(f"table must be (num_buckets, num_heads), got shape {tuple(table.shape)}")
    starts = bucket_starts(check_buckets(table.shape[0], bidirectional), max_distance)
    return look_up(offset, table, starts, bidirectional=bidirectional, dtype=dtype)


def look_up(offset: Array, table: Array, starts: list[int], *, bidirectional: bool, dtype: Any = None) -> Array:
    """:func:`t5_bias` with the :func:`bucket_starts` already known, for code that is compiled."""
    xp = array_namespace(offset, table)
    bucket = _bucket(offset, starts, bidirectional)
    by_head = xp.astype(table, bias_dtype(xp, dtype, table)).T
    values = xp.take(by_head, xp.reshape(bucket, (-1,)), axis=1)
    values = xp.reshape(values, (table.shape[1], offset.shape[0], *offset.shape[2:]))
    return xp.moveaxis(values, 0, 1)


def _bucket(offset: Array, starts: list[int], bidirectional: bool) -> Array:
    dtype = dtype_name("offset", offset)
    xp = array_namespace(offset)
    if not xp.isdtype(offset.dtype, "signed integer"):
        raise TypeError(f"offsets and positions must be signed integers for T5's buckets, got offsets of {dtype}")
    offset = xp.astype(offset, xp.int64)  # the smallest int8 has no absolute value
    past = xp.abs(offset) if bidirectional else xp.where(offset < 0, -offset, 0)
    first = xp.asarray(starts, dtype=xp.int64, device=device(offset))
    bucket = xp.searchsorted(first, past, side="right") - 1  # of all buckets that start at or before it, the last
    return xp.where(offset > 0, bucket + len(starts), bucket) if bidirectional else bucket


def check_buckets(num_buckets: int, bidirectional: bool) -> int:
    """Return the number of buckets of one direction; raise if they cannot be halved.

    >>> check_buckets(31, True)
    Traceback (most recent call last):
    ValueError: num_buckets must be even, got 31
    """
    num_buckets = check_size("num_buckets", num_buckets, even=check_flag("bidirectional", bidirectional))
    return num_buckets // 2 if bidirectional else num_buckets
