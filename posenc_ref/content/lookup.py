"""What the encodings by offset and content share: the relative shift, scores picked by row, and their checks."""

from typing import Any

from array_api_compat import array_namespace, is_torch_array

from posenc_ref.checks import Array, check_floating, check_lengths, dtype_name


def relative_shift(x: Array) -> Array:
    """Move row i of the last two axes ``(q_len, columns)`` left by q_len − 1 − i, without a copy per row.

    If the columns of ``x`` are scores by ascending offset key − query, those of the result are scores by key: pad
    one column, read the same numbers in rows of another length, drop what is left over in front.

    **Garbage**: a row that runs out of numbers goes on with a zero and then the *next row's*. With columns for
    the offsets 1 − k_len … 0 these are the cells above the diagonal, column > row + columns − q_len, and must be
    masked. With columns for 1 − k_len … q_len − 1 the first k_len columns of the result are all good.

    Source: Dai et al. 2019, appendix B, arXiv:1901.02860; "skewing" in Huang et al. 2018, arXiv:1809.04281.

    >>> import numpy as np
    >>> relative_shift(np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]))
    array([[ 3,  4,  5,  0,  6],
           [ 7,  8,  9, 10,  0],
           [11, 12, 13, 14, 15]])
    """
    dtype_name("x", x)  # raises if it is no array of numbers
    if len(x.shape) < 2 or 0 in x.shape[-2:]:
        raise ValueError(f"x must be (…, q_len, columns), neither 0, got shape {tuple(x.shape)}")
    xp = array_namespace(x)
    *lead, q_len, columns = x.shape
    padded = xp.concat([xp.zeros_like(x[..., :1]), x], axis=-1)
    return xp.reshape(xp.reshape(padded, (*lead, columns + 1, q_len))[..., 1:, :], x.shape)


def pick(scores: Array, index: Array) -> Array:
    """Column ``index[b, 0, i, j]`` of row i of the scores: ``(batch, heads, q_len, rows)`` → ``(…, q_len, k_len)``.

    ``index`` is ``(batch | 1, 1, q_len | 1, k_len)``. So q·table[index] costs no array with a row of the table for
    every pair: first all products, then the choice.
    """
    if is_torch_array(scores):  # take_along_dim makes torch.compile start again for every length
        return scores.gather(-1, index.expand(*scores.shape[:-1], index.shape[-1]))
    return array_namespace(scores, index).take_along_axis(scores, index, axis=-1)


def rows_by_pair(table: Array, index: Array) -> Array:
    """The table's row for every pair, ``(batch | 1, heads | 1, q_len, k_len, head_dim)``: large, for specifications."""
    xp = array_namespace(table, index)
    rows = xp.take(table, xp.reshape(index, (-1,)), axis=-2)
    rows = xp.reshape(rows, (*table.shape[:-2], index.shape[0], *index.shape[2:], table.shape[-1]))
    return xp.moveaxis(rows, 0, 1) if len(table.shape) == 3 else rows[:, None]


def check_by_head(name: str, x: Array, axes: str = "batch, heads, seq, head_dim") -> Array:
    """Return ``x``, of four axes, in float32 or better; raise for other shapes or integers."""
    xp = array_namespace(check_floating(name, x))
    if len(x.shape) != 4 or 0 in x.shape:
        raise ValueError(f"{name} must be ({axes}), none 0, got shape {tuple(x.shape)}")
    return xp.astype(x, xp.float64 if x.dtype == xp.float64 else xp.float32)


def check_shape(name: str, x: Array, shape: tuple[int, ...], meaning: str) -> Array:
    """Return ``x`` if it is floating point and of the shape; raise otherwise.

    >>> import numpy as np
    >>> check_shape("u", np.zeros(3), (2, 4), "num_heads, head_dim")
    Traceback (most recent call last):
    ValueError: u must be (num_heads, head_dim) = (2, 4), got shape (3,)
    """
    if tuple(check_floating(name, x).shape) != shape:
        raise ValueError(f"{name} must be ({meaning}) = {shape}, got shape {tuple(x.shape)}")
    return x


def check_table(name: str, table: Array, like: Array, head_dim: int | None = None) -> Array:
    """Return a table of vectors ``(rows, head_dim)`` or ``(heads, rows, head_dim)`` in the dtype of ``like``.

    ``like`` is ``(batch, heads, …)``, of a dtype to compute in; ``head_dim=None`` takes any.

    >>> import numpy as np
    >>> check_table("keys", np.zeros((5, 3)), np.zeros((1, 2, 7, 4)), 4)
    Traceback (most recent call last):
    ValueError: keys must be (rows, 4) or (2, rows, 4), got shape (5, 3)
    """
    shape, heads = tuple(check_floating(name, table).shape), like.shape[1]
    width = shape[-1] if shape and head_dim is None else head_dim
    fits = len(shape) == 2 or (len(shape) == 3 and shape[0] == heads)
    if not fits or shape[-1] != width or 0 in shape:
        raise ValueError(f"{name} must be (rows, {width}) or ({heads}, rows, {width}), got shape {shape}")
    return array_namespace(like, table).astype(table, like.dtype)


def check_whole(offset: Array) -> Array:
    """Return offsets that are integers, as an index into a table must be; raise otherwise."""
    dtype = dtype_name("offset", offset)
    if not array_namespace(offset).isdtype(offset.dtype, "signed integer"):
        raise TypeError(f"offsets and positions must be signed integers to look up a table, got {dtype}")
    return offset


def check_both(q: Array, k: Array) -> tuple[Array, Array]:
    """Return q and k in float32 or better if they share batch, heads and head_dim; raise otherwise."""
    q, k = check_by_head("q", q), check_by_head("k", k)
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must share batch, heads and head_dim, got {tuple(q.shape)} and {tuple(k.shape)}")
    return q, k


def check_pair(q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Any, Array, Array]:
    """Return the array library, q and k in q's dtype (at least float32), after checks of all shapes."""
    q, k = check_both(q, k)
    for name, positions, x in (("q_positions", q_positions, q), ("k_positions", k_positions, k)):
        check_lengths(name, positions, x.shape[0], x.shape[2])
    xp = array_namespace(q, k, q_positions, k_positions)
    return xp, q, xp.astype(k, q.dtype)
