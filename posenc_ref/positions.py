"""Position ids and the masks that go with them: caches, padding, packed documents, windows.

Positions count tokens from 0; a mask is boolean and True keeps. Arrays of one library (NumPy, PyTorch, …) go in
and come out.
"""

from array_api_compat import array_namespace, device

from posenc_ref.checks import Array, check_positions, check_size, dtype_name


def decode_positions(q_len: int, cache_len: int) -> range:
    """Positions of ``q_len`` new tokens behind ``cache_len`` cached ones: cache_len … cache_len + q_len − 1.

    A range, for the array library of your choice: ``np.asarray(decode_positions(…))``.

    >>> list(decode_positions(2, cache_len=5))
    [5, 6]
    """
    check_size("q_len", q_len)
    check_size("cache_len", cache_len, minimum=0)
    return range(cache_len, cache_len + q_len)


def positions_from_mask(attention_mask: Array) -> Array:
    """Positions of the real tokens of padded rows, counted from 0; padding gets 0 and must be masked.

    ``p[b, t] = Σ_{u ≤ t} mask[b, u] − 1`` for real tokens. ``attention_mask`` is ``(batch, seq)``, 1 or
    True for real tokens, padded left, right or both. Returns int64 ``(batch, seq)``.

    >>> import numpy as np
    >>> positions_from_mask(np.array([[0, 0, 1, 1], [1, 1, 1, 0]]))
    array([[0, 0, 0, 1],
           [0, 1, 2, 0]])
    """
    dtype_name("attention_mask", attention_mask)  # raises if it is no array
    xp = array_namespace(attention_mask)
    if len(attention_mask.shape) != 2:
        raise ValueError(f"attention_mask must be (batch, seq), got shape {tuple(attention_mask.shape)}")
    if not bool(xp.all((attention_mask == 0) | (attention_mask == 1))):
        raise ValueError(f"attention_mask must hold 0 and 1 only, got {attention_mask}")
    real = xp.astype(attention_mask, xp.int64)
    return xp.cumulative_sum(real, axis=1) * real - real


def packed_positions(document_ids: Array) -> Array:
    """Positions of documents packed into one row: they start again at 0 where the document changes.

    ``document_ids`` is ``(seq,)`` or ``(batch, seq)``, one integer for each token, constant within a
    document; an id must not come back later in its row. Returns int64 of the same shape.
    Use it together with :func:`same_document`: the positions alone do not stop attention at the boundary.

    >>> import numpy as np
    >>> packed_positions(np.array([7, 7, 7, 9, 9]))
    array([0, 1, 2, 0, 1])
    """
    xp = array_namespace(_check_documents("document_ids", document_ids))
    new = xp.ones_like(document_ids[..., :1], dtype=xp.bool)
    new = xp.concat([new, document_ids[..., 1:] != document_ids[..., :-1]], axis=-1)
    # numbers that only grow along the flattened rows, so that a binary search finds where each document starts
    number = xp.cumulative_sum(xp.astype(xp.reshape(new, (-1,)), xp.int64))
    index = xp.arange(number.shape[0], dtype=xp.int64, device=device(document_ids))
    return xp.reshape(index - xp.searchsorted(number, number), document_ids.shape)


def causal(q_positions: Array, k_positions: Array) -> Array:
    """Mask that lets each query see the keys at its own position and before.

    Positions are ``(len,)`` or ``(batch, len)``. Returns boolean ``(…, 1, q_len, k_len)``, the axis of length 1
    standing for the heads. Comparing positions, not indices, makes it right with a cache as well.

    >>> import numpy as np
    >>> causal(np.array([2, 3]), np.arange(4))[0].astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    check_positions(q_positions, "q_positions")
    check_positions(k_positions, "k_positions")
    q, k = _rows_and_columns(q_positions, k_positions)
    return k <= q


def window(q_positions: Array, k_positions: Array, size: int) -> Array:
    """Mask that lets each query see keys less than ``size`` tokens away, on both sides; shapes as in :func:`causal`.

    A windowed layer is a layer with this mask: ``causal(q, k) & window(q, k, size)`` keeps the last ``size`` tokens,
    the query among them.

    >>> import numpy as np
    >>> p = np.arange(4)
    >>> (causal(p, p) & window(p, p, 2))[0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    """
    check_size("size", size)
    check_positions(q_positions, "q_positions")
    check_positions(k_positions, "k_positions")
    q, k = _rows_and_columns(q_positions, k_positions)
    return (k - q < size) & (q - k < size)


def kept_positions(length: int, *, sinks: int, size: int) -> list[int]:
    """Positions that stay in a cache of ``sinks + size`` tokens after ``length`` tokens: the first and the latest.

    The list serves as the index into the cached keys and values, and as their ``k_positions``. Counting within the
    cache instead, ``range(len(kept))``, moves the keys: those that were rotated before they were cached then need
    :func:`posenc_ref.rotary.rerotate`.

    Source: Xiao et al. 2023, section 3.2, arXiv:2309.17453 (attention sinks).

    >>> kept_positions(9, sinks=2, size=3)
    [0, 1, 6, 7, 8]
    >>> kept_positions(4, sinks=2, size=3)
    [0, 1, 2, 3]
    """
    check_size("length", length, minimum=0)
    check_size("sinks", sinks, minimum=0)
    check_size("size", size)
    return [p for p in range(length) if p < sinks or p >= length - size]


def same_document(q_documents: Array, k_documents: Array) -> Array:
    """Mask that keeps attention inside a document; shapes as in :func:`causal`.

    >>> import numpy as np
    >>> same_document(np.array([7, 9]), np.array([7, 9]))[0].astype(int)
    array([[1, 0],
           [0, 1]])
    """
    _check_documents("q_documents", q_documents)
    _check_documents("k_documents", k_documents)
    q, k = _rows_and_columns(q_documents, k_documents)
    return k == q


def _rows_and_columns(q: Array, k: Array) -> tuple[Array, Array]:
    """Return q as ``(…, 1, q_len, 1)`` and k as ``(…, 1, 1, k_len)``."""
    array_namespace(q, k)  # raises if they come from two libraries
    shapes = tuple(q.shape), tuple(k.shape)
    if not all(len(s) in (1, 2) for s in shapes) or len({s[0] for s in shapes if len(s) == 2}) > 1:
        raise ValueError(f"queries and keys must be (len,) or (batch, len), got shapes {shapes[0]} and {shapes[1]}")
    return q[..., None, :, None], k[..., None, None, :]


def _check_documents(name: str, documents: Array) -> Array:
    dtype = dtype_name(name, documents)
    if not array_namespace(documents).isdtype(documents.dtype, "signed integer"):
        raise TypeError(f"{name} must be signed integers, got {dtype}")
    if len(documents.shape) not in (1, 2):
        raise ValueError(f"{name} must be (seq,) or (batch, seq), got shape {tuple(documents.shape)}")
    return documents
