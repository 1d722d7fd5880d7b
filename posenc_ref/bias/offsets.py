"""What the biases share: offsets between positions, and the two base classes of their encodings."""

import math
import sys
from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace, device

from posenc_ref.attention import Encoding
from posenc_ref.checks import Array, check_floating, check_positions, check_size, dtype_name


def offsets(q_positions: Array, k_positions: Array) -> Array:
    """Key position − query position for every pair: ``(batch | 1, 1, q_len, k_len)``, the axis of 1 for the heads.

    Positions are ``(len,)`` or ``(batch, len)``, in tokens. Integers give int64; floats are subtracted in float64.
    Negative offsets lie in the past. Raises ValueError for other shapes, TypeError for half precision.

    >>> import numpy as np
    >>> offsets(np.array([2, 3]), np.arange(4))[0, 0]
    array([[-2, -1,  0,  1],
           [-3, -2, -1,  0]])
    """
    for name, positions in (("q_positions", q_positions), ("k_positions", k_positions)):
        if len(check_positions(positions, name).shape) not in (1, 2):
            raise ValueError(f"{name} must be (len,) or (batch, len), got shape {tuple(positions.shape)}")
    q_batch, k_batch = (p.shape[0] if len(p.shape) == 2 else 1 for p in (q_positions, k_positions))
    if q_batch != k_batch and 1 not in (q_batch, k_batch):
        raise ValueError(f"q_positions and k_positions must share the batch, got {q_batch} and {k_batch}")
    xp = array_namespace(q_positions, k_positions)
    whole = xp.isdtype(q_positions.dtype, "integral") and xp.isdtype(k_positions.dtype, "integral")
    wide = xp.int64 if whole else xp.float64
    offset = xp.astype(k_positions, wide)[..., None, :] - xp.astype(q_positions, wide)[..., :, None]
    return offset[:, None] if len(offset.shape) == 3 else offset[None, None]


def bias_vector(bias: Callable[..., Array], q_len: int, k_len: int, *, like: Array, dtype: Any = None) -> Array:
    """All values of a bias that depends on the offset alone: ``(heads, q_len + k_len − 1)``.

    Order: ascending offset key − query, from −(k_len − 1) to q_len − 1, for queries that are the last of k_len
    tokens. So row i of the full bias is ``vector[:, q_len − 1 − i : q_len − 1 − i + k_len]``: O(q_len + k_len)
    numbers instead of their product. (PyTorch: ``vector.unfold(1, k_len, 1)`` holds the rows from the last to the
    first without a copy.)

    ``bias`` takes ``(q_positions, k_positions, dtype=…)``; ``like`` is any array of the wanted library and device.

    >>> import numpy as np
    >>> from functools import partial
    >>> from posenc_ref.bias import alibi_bias
    >>> vector = bias_vector(partial(alibi_bias, num_heads=8, causal=True), 2, 3, like=np.zeros(1))
    >>> vector[0]                                             # offsets −2, −1, 0, 1
    array([-1. , -0.5,  0. ,  0.5], dtype=float32)
    >>> alibi_bias(np.array([1, 2]), np.arange(3), num_heads=8, causal=True)[0, 0]
    array([[-0.5,  0. ,  0.5],
           [-1. , -0.5,  0. ]], dtype=float32)
    """
    dtype_name("like", like)  # raises if it is no array
    xp = array_namespace(like)
    check_size("q_len", q_len)
    check_size("k_len", k_len)
    query = xp.zeros(1, dtype=xp.int64, device=device(like))
    keys = xp.arange(1 - k_len, q_len, dtype=xp.int64, device=device(like))
    return bias(query, keys, dtype=dtype)[0, :, 0, :]


def bias_dtype(xp: Any, dtype: Any, *parameters: Array) -> Any:
    """Return ``dtype`` if it is float32 or float64; for None float32, or float64 if a parameter has it.

    >>> import numpy as np
    >>> bias_dtype(np, np.float16)
    Traceback (most recent call last):
    TypeError: dtype must be float32 or float64, got <class 'numpy.float16'>: cast the sum with the logits instead
    """
    if dtype is None:
        return xp.float64 if any(p.dtype == xp.float64 for p in parameters) else xp.float32
    if dtype not in (xp.float32, xp.float64):
        raise TypeError(f"dtype must be float32 or float64, got {dtype}: cast the sum with the logits instead")
    return dtype


def check_positive(name: str, value: Array, *, most: float = math.inf) -> Array:
    """Return ``value``, a number or an array, if all of it is positive, finite and at most ``most``; raise otherwise.

    >>> check_positive("c", -0.1)
    Traceback (most recent call last):
    ValueError: c must be positive and finite, got -0.1
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        good = 0 < value <= min(most, sys.float_info.max)
    else:
        xp = array_namespace(check_floating(name, value))
        good = bool(xp.all((value > 0) & (value <= most) & xp.isfinite(value)))
    if not good:
        limit = "finite" if most == math.inf else f"at most {most}"
        raise ValueError(f"{name} must be positive and {limit}, got {value}")
    return value


class LogitBias(Encoding):
    """Base of the encodings that add ``self(q_positions, k_positions)`` to the scaled logits, whatever the content."""

    num_heads: int

    def __call__(self, q_positions: Array, k_positions: Array, *, dtype: Any = None) -> Array:
        """Return the bias, ``(batch | 1, num_heads, q_len, k_len)``, float32 or float64."""
        raise NotImplementedError

    def bias(self, q: Array, k: Array, *, q_positions: Array, k_positions: Array, mask: Array | None = None) -> Array:
        """Return what is added to the scaled logits, in float64 for float64 queries."""
        if q.shape[1] != self.num_heads:
            raise ValueError(f"q must have num_heads = {self.num_heads}, got shape {tuple(q.shape)}")
        xp = array_namespace(q)
        return self(q_positions, k_positions, dtype=xp.float64 if q.dtype == xp.float64 else None)


class ToeplitzBias(LogitBias):
    """Base of those whose bias depends on the offset alone, so that it is constant along diagonals."""

    def bias_vector(self, q_len: int, k_len: int, *, like: Array, dtype: Any = None) -> Array:
        """Return the bias by offset, ``(num_heads, q_len + k_len − 1)``; see :func:`bias_vector` for the order."""
        return bias_vector(self, q_len, k_len, like=like, dtype=dtype)
