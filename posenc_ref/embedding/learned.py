"""Learned position vectors: one row of a table for each position (Gehring et al. 2017, arXiv:1705.03122)."""

from array_api_compat import array_namespace

from posenc_ref.checks import Array, check_floating, check_lengths, check_positions, check_size, dtype_name
from posenc_ref.positions import positions_from_mask


def learned(positions: Array, table: Array, *, offset: int) -> Array:
    """Row ``positions + offset`` of ``table``.

    Parameters
    ----------
    positions : integers of any shape ``(…)``, tokens from 0.
    table : ``(offset + num_positions, d_model)``, floating point.
    offset : the row of position 0. BERT and GPT-2: 0. RoBERTa: padding_idx + 1, in its released models 2. OPT: 2.
        The wrong one gives the rows of other positions, all plausible.

    Returns
    -------
    ``(…, d_model)``, of the dtype of ``table``.

    Raises
    ------
    IndexError : a position without a row: beyond the table, or negative, where Python would wrap around to its
        end. TypeError : positions that are no integers. ValueError : a table that is not 2-D or ends before
        position 0.

    Source: Gehring et al. 2017, section 3.1; Devlin et al. 2019, section 3, arXiv:1810.04805.

    >>> import numpy as np
    >>> table = np.array([[0.0, 0.0], [0.1, 0.1], [2.0, 3.0], [4.0, 5.0]])
    >>> learned(np.array([1, 0]), table, offset=2)
    array([[4., 5.],
           [2., 3.]])
    >>> learned(np.array([2]), table, offset=2)
    Traceback (most recent call last):
    IndexError: positions must be 0 … 1 for a table of 4 rows with offset 2, got 2
    """
    offset = check_size("offset", offset, minimum=0)
    if len(check_floating("table", table).shape) != 2 or table.shape[0] <= offset:
        raise ValueError(f"table must be (rows, d_model), more than offset = {offset} rows, got {tuple(table.shape)}")
    check_rows(positions, table.shape[0], offset)
    return look_up(positions, table, offset)


def check_rows(positions: Array, rows: int, offset: int) -> Array:
    """Return ``positions`` if they are integers and each has a row in a table of ``rows`` rows; raise otherwise."""
    check_integers(positions)
    if 0 not in positions.shape:
        xp = array_namespace(positions)
        low, high = int(xp.min(positions)), int(xp.max(positions))
        if low < 0 or high >= rows - offset:
            raise IndexError(
                f"positions must be 0 … {rows - offset - 1} for a table of {rows} rows with offset {offset}, "
                f"got {low if low < 0 else high}"
            )
    return positions


def check_integers(positions: Array) -> Array:
    """Return ``positions`` if they are integers; raise otherwise."""
    check_positions(positions)
    if not (dtype := dtype_name("positions", positions)).startswith("int"):
        raise TypeError(f"positions must be integers, got {dtype}: there is nothing between two rows")
    return positions


def look_up(positions: Array, table: Array, offset: int) -> Array:
    """Row ``positions + offset`` of ``table``, for compiled code, which cannot look at values first."""
    xp = array_namespace(positions, table)
    positions = xp.astype(positions, xp.int64)
    # beyond the table on purpose: every library refuses that, while NumPy and compiled code wrap around below 0
    row = xp.where(positions < 0, table.shape[0], positions + offset)
    return xp.reshape(xp.take(table, xp.reshape(row, (-1,)), axis=0), (*positions.shape, table.shape[1]))


def padded_rows(attention_mask: Array, *, offset: int) -> Array:
    """Rows that RoBERTa and OPT read in a padded batch: ``positions + offset``, and ``offset − 1`` for padding.

    ``attention_mask`` is ``(batch, seq)``, 1 or True for real tokens. Returns int64 ``(batch, seq)``. Padding must
    be masked whatever row it gets; this says which one, for those who compare with such a model.

    >>> import numpy as np
    >>> padded_rows(np.array([[1, 1, 1, 0], [0, 0, 1, 1]]), offset=2)
    array([[2, 3, 4, 1],
           [1, 1, 2, 3]])
    """
    offset = check_size("offset", offset)
    positions = positions_from_mask(attention_mask)
    xp = array_namespace(attention_mask)
    return positions + offset - 1 + xp.astype(attention_mask, xp.int64)


def add(x: Array, vectors: Array, *, positions: Array) -> Array:
    """Return ``x + vectors`` ``(batch, seq, d_model)``, in the dtype of ``x``; the sum is rounded once."""
    xp, wide, vectors_wide = widened(x, vectors, positions)
    return xp.astype(wide + vectors_wide, x.dtype)


def widened(x: Array, vectors: Array, positions: Array) -> tuple[Array, Array, Array]:
    """Check the embeddings; return their namespace, and both arrays in float32, or float64 if one of them is."""
    d_model = vectors.shape[-1] if check_floating("vectors", vectors).shape else None
    if len(check_floating("x", x).shape) != 3 or x.shape[2] != d_model:
        raise ValueError(f"x must be (batch, seq, d_model = {d_model}), got shape {tuple(x.shape)}")
    check_lengths("positions", positions, x.shape[0], x.shape[1])
    if vectors.shape not in (x.shape[1:], x.shape):
        raise ValueError(f"vectors must be (seq, d_model) or {tuple(x.shape)}, got shape {tuple(vectors.shape)}")
    xp = array_namespace(x, vectors)
    dtype = xp.float64 if xp.float64 in (x.dtype, vectors.dtype) else xp.float32
    return xp, xp.astype(x, dtype), xp.astype(vectors, dtype)
