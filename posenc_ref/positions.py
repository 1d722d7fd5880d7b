"""Position ids and the masks that go with them: caches, padding, packed documents.

Positions count tokens from 0; a mask is boolean and True keeps. All functions take and return arrays of one
library (NumPy, PyTorch, …).
"""

from array_api_compat import array_namespace, device

from posenc_ref.checks import Array


def decode_positions(q_len: int, cache_len: int) -> range:
    """Positions of ``q_len`` new tokens behind ``cache_len`` cached ones: cache_len … cache_len + q_len − 1.

    >>> list(decode_positions(2, cache_len=5))
    [5, 6]
    """
    if q_len < 1:
        raise ValueError(f"q_len must be at least 1, got {q_len}")
    if cache_len < 0:
        raise ValueError(f"cache_len must not be negative, got {cache_len}")
    return range(cache_len, cache_len + q_len)


def positions_from_mask(attention_mask: Array) -> Array:
    """Positions of the real tokens of padded rows, counted from 0; padding gets 0 and must be masked.

    ``p[b, t] = max(Σ_{u ≤ t} mask[b, u] − 1, 0)`` for real tokens. ``attention_mask`` is ``(batch, seq)``, 1 or
    True for real tokens, padded left, right or both. Returns int64 ``(batch, seq)``.

    >>> import numpy as np
    >>> positions_from_mask(np.array([[0, 0, 1, 1], [1, 1, 1, 0]]))
    array([[0, 0, 0, 1],
           [0, 1, 2, 0]])
    """
    xp = array_namespace(attention_mask)
    if len(attention_mask.shape) != 2:
        raise ValueError(f"attention_mask must be (batch, seq), got shape {tuple(attention_mask.shape)}")
    real = xp.astype(attention_mask, xp.int64)
    if not bool(xp.all((real == 0) | (real == 1))):
        raise ValueError(f"attention_mask must hold 0 and 1 only, got {attention_mask}")
    return xp.cumulative_sum(real, axis=1) * real - real


def packed_positions(document_ids: Array) -> Array:
    """Positions of documents packed into one row: they start again at 0 where the document changes.

    ``document_ids`` is ``(seq,)`` or ``(batch, seq)``, one integer for each token, constant within a
    document, neighbouring documents different. Returns int64 of the same shape.
    Use it together with :func:`same_document`: the positions alone do not stop attention at the boundary.

    >>> import numpy as np
    >>> packed_positions(np.array([7, 7, 7, 9, 9]))
    array([0, 1, 2, 0, 1])
    """
    xp = array_namespace(document_ids)
    seq = document_ids.shape[-1]
    index = xp.arange(seq, dtype=xp.int64, device=device(document_ids))
    starts = document_ids[..., 1:] != document_ids[..., :-1]
    start = xp.where(starts, index[1:], 0)
    first = xp.concat([xp.zeros_like(start[..., :1]), start], axis=-1)
    # the largest start up to t; the array API has no running maximum, so compare all pairs
    earlier = index[:, None] >= index[None, :]
    return index - xp.max(xp.where(earlier, first[..., None, :], 0), axis=-1)


def causal(q_positions: Array, k_positions: Array) -> Array:
    """Mask that lets each query see the keys at its own position and before.

    Positions are ``(len,)`` or ``(batch, len)``. Returns boolean ``(…, 1, q_len, k_len)``, the axis of length 1
    standing for the heads. Comparing positions, not indices, makes it right with a cache as well.

    >>> import numpy as np
    >>> causal(np.array([2, 3]), np.arange(4))[0].astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    return (k_positions[..., None, :] <= q_positions[..., :, None])[..., None, :, :]


def same_document(q_documents: Array, k_documents: Array) -> Array:
    """Mask that keeps attention inside a document; shapes as in :func:`causal`.

    >>> import numpy as np
    >>> same_document(np.array([7, 9]), np.array([7, 9]))[0].astype(int)
    array([[1, 0],
           [0, 1]])
    """
    return (k_documents[..., None, :] == q_documents[..., :, None])[..., None, :, :]
