"""Checks of arguments: each error names the value and the rule it broke."""

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace

Array = Any
"""An array of any library that follows the array API standard: NumPy, PyTorch, JAX, CuPy."""


def check_size(name: str, value: int, *, even: bool = False) -> int:
    """Return ``value`` if it is a positive (and, if asked, even) integer; raise otherwise.

    >>> check_size("rotary_dim", 3, even=True)
    Traceback (most recent call last):
    ValueError: rotary_dim must be even, got 3
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
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
    if not (math.isfinite(base) and base > 1):
        raise ValueError(f"base must be a finite number above 1, got {base}")
    return float(base)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``; raise otherwise.

    >>> check_choice("layout", "split", ("interleaved", "half"))
    Traceback (most recent call last):
    ValueError: layout must be one of 'interleaved', 'half', got 'split'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_positions(positions: Array, name: str = "positions") -> Array:
    """Return ``positions`` if each can be told from its neighbours; raise otherwise.

    Integers, float32 and float64 pass. Half precision does not: bfloat16 has 8 significant bits, so that
    position 257 is stored as 256.

    >>> check_positions(np.arange(3, dtype=np.float16))
    Traceback (most recent call last):
    TypeError: positions must be integers, float32 or float64, got float16: half precision merges positions
    """
    xp = array_namespace(positions)
    dtype = str(positions.dtype).removeprefix("torch.")
    if not (xp.isdtype(positions.dtype, "integral") or dtype in ("float32", "float64")):
        why = ": half precision merges positions" if dtype in ("float16", "bfloat16") else ""
        raise TypeError(f"{name} must be integers, float32 or float64, got {dtype}{why}")
    if dtype.startswith("float") and not bool(xp.all(xp.isfinite(positions))):
        raise ValueError(f"{name} must be finite, got {positions}")
    return positions
