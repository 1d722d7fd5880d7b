"""Checks of arguments: each error names the value and the rule it broke."""

import reprlib
import sys
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

Array = Any
"""An array of any library that follows the array API standard: NumPy, PyTorch, JAX, CuPy."""


def check_size(name: str, value: int, *, minimum: int = 1, even: bool = False) -> int:
    """Return ``value`` if it is an integer of at least ``minimum`` (and, if asked, even); raise otherwise.

    >>> check_size("rotary_dim", 3, even=True)
    Traceback (most recent call last):
    ValueError: rotary_dim must be even, got 3
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    if value > sys.maxsize:
        raise ValueError(f"{name} must be at most {sys.maxsize}, got {value}")
    if even and value % 2:
        raise ValueError(f"{name} must be even, got {value}")
    return int(value)


def check_base(base: float) -> float:
    """Return ``base`` if it is a finite number above 1; raise otherwise.

    >>> check_base(float("nan"))
    Traceback (most recent call last):
    ValueError: base must be a finite number above 1, got nan
    """
    if isinstance(base, bool) or not isinstance(base, int | float | np.integer | np.floating):
        raise TypeError(f"base must be a number, got {base!r}")
    if isinstance(base, np.floating):
        base = float(base)  # NumPy would warn that the largest float64 overflows float32
    if not 1 < base <= sys.float_info.max:
        raise ValueError(f"base must be a finite number above 1, got {base}")
    return float(base)


def check_number(name: str, value: float, low: float, *, above: bool = False) -> float:
    """Return ``value`` if it is a finite number of at least ``low`` (or above it); raise otherwise.

    >>> check_number("factor", 0.5, 1)
    Traceback (most recent call last):
    ValueError: factor must be a finite number of at least 1, got 0.5
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if isinstance(value, np.floating):
        value = float(value)
    if not (value > low if above else value >= low) or value > sys.float_info.max:
        raise ValueError(f"{name} must be a finite number {'above' if above else 'of at least'} {low}, got {value}")
    return float(value)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``; raise otherwise.

    >>> check_choice("layout", "split", ("interleaved", "half"))
    Traceback (most recent call last):
    ValueError: layout must be one of 'interleaved', 'half', got 'split'
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_flag(name: str, value: bool) -> bool:
    """Return ``value`` if it is True or False; raise otherwise: the string "False" counts as true.

    >>> check_flag("causal", "False")
    Traceback (most recent call last):
    TypeError: causal must be True or False, got 'False'
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_positions(positions: Array, name: str = "positions") -> Array:
    """Return ``positions`` if each can be told from its neighbours; raise otherwise.

    Signed integers, float32 and float64 pass. Half precision does not: bfloat16 has 8 significant bits, so
    that position 257 is stored as 256. Unsigned integers do not: 3 − 5 would be a large number. Only the values
    of floating positions are read, so integers do not break a graph of torch.compile.

    >>> check_positions(np.arange(3, dtype=np.float16))
    Traceback (most recent call last):
    TypeError: positions must be integers, float32 or float64, got float16: half precision merges positions
    """
    dtype = dtype_name(name, positions)
    xp = array_namespace(positions)
    if not (xp.isdtype(positions.dtype, "signed integer") or dtype in ("float32", "float64")):
        why = ": half precision merges positions" if dtype in ("float16", "bfloat16") else ""
        why = ": differences of unsigned integers wrap around" if dtype.startswith("uint") else why
        raise TypeError(f"{name} must be integers, float32 or float64, got {dtype}{why}")
    if dtype.startswith("float") and not bool(xp.all(xp.isfinite(positions))):
        raise ValueError(f"{name} must be finite, got {positions}")
    return positions


def check_lengths(name: str, positions: Array, batch: int, seq: int, axes: tuple[int, ...] = ()) -> Array:
    """Return ``positions`` if they are ``(seq, *axes)`` or ``(batch, seq, *axes)``; raise otherwise.

    >>> check_lengths("q_positions", np.arange(3), 2, 4)
    Traceback (most recent call last):
    ValueError: q_positions must have shape (4,) or (2, 4), got (3,)
    """
    shape = tuple(check_positions(positions, name).shape)
    allowed = (seq, *axes), (batch, seq, *axes)
    if shape not in allowed:
        raise ValueError(f"{name} must have shape {allowed[0]} or {allowed[1]}, got {shape}")
    return positions


def check_floating(name: str, x: Array) -> Array:
    """Return ``x`` if it holds floating-point numbers; raise otherwise.

    The result has the dtype of ``x``: rounded to integers it would look right and be wrong.

    >>> check_floating("q", np.arange(3))
    Traceback (most recent call last):
    TypeError: q must be floating point, got int64
    """
    if (dtype := dtype_name(name, x)) not in ("float16", "bfloat16", "float32", "float64"):
        raise TypeError(f"{name} must be floating point, got {dtype}")
    return x


def check_broadcast(name: str, x: Array, shape: tuple[int, ...]) -> Array:
    """Return ``x`` if it broadcasts to ``shape`` without making it larger; raise otherwise.

    >>> check_broadcast("mask", np.ones((3, 1, 4, 4)), (1, 2, 4, 4))
    Traceback (most recent call last):
    ValueError: mask must broadcast to (1, 2, 4, 4), got shape (3, 1, 4, 4)
    """
    pairs = zip(reversed(x.shape), reversed(shape), strict=False)
    if len(x.shape) > len(shape) or not all(n in (1, m) for n, m in pairs):
        raise ValueError(f"{name} must broadcast to {tuple(shape)}, got shape {tuple(x.shape)}")
    return x


def dtype_name(name: str, x: Array) -> str:
    """Return the name of the dtype of ``x``, the same for all libraries; raise if ``x`` is no array of numbers.

    >>> dtype_name("mask", [True, False])
    Traceback (most recent call last):
    TypeError: mask must be an array, got [True, False]
    """
    if not is_array_api_obj(x) or isinstance(x, np.generic):
        raise TypeError(f"{name} must be an array, got {reprlib.repr(x)}")
    name_of_dtype = str(x.dtype).removeprefix("torch.")
    if name_of_dtype == "object" or name_of_dtype.startswith(("<", ">", "|")):  # texts, records
        raise TypeError(f"{name} must hold numbers, got {x!r}")
    return name_of_dtype


def compiling(xp: Any) -> bool:
    """Is torch.compile tracing? Then values, and dtypes of NumPy arrays, cannot be looked at.

    >>> compiling(np)
    False
    """
    compiler = getattr(xp, "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())
