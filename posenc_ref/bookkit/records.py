"""Records that chapters print into their outputs: equations that held, claims that got a verdict.

Both print one line of fixed form, so that committed outputs are the record: tests and generated pages read
them back with :func:`read_records`. A line holds bounds, never raw rounding errors, which differ by machine.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

VERDICTS = ("holds", "holds if", "false", "cannot be tested here")

_VERIFIED = re.compile(r"^(eq-[a-z0-9-]+) holds: (.+)$", re.MULTILINE)
_CLAIMED = re.compile(r"^Claim ([A-Z]\d+) \((.+)\)\n  verdict: (.+)\n  because: (.+)$", re.MULTILINE)


class NotVerified(AssertionError):
    """The two sides of an equation differ by more than the tolerance."""


def verify(label: str, lhs: Any, rhs: Any, tol: float, what: str = "") -> None:
    """Print that equation ``label`` holds, or raise :class:`NotVerified` and say where it fails.

    Parameters
    ----------
    label : the label of the displayed equation, such as ``"eq-rope-relative"``.
    lhs, rhs : both sides as computed: numbers, arrays or tensors of one shape; nothing is broadcast.
    tol : largest absolute difference allowed, in the unit of the two sides.
    what : what was compared, such as ``"200 random q, k, m, n"``; the shape and dtype by default.

    >>> verify("eq-pythagoras", 3**2 + 4**2, 5**2, 1e-12, "one triangle")
    eq-pythagoras holds: below 1e-12 (one triangle)
    >>> verify("eq-wrong", np.ones(3), np.zeros(3), 1e-12)
    Traceback (most recent call last):
    posenc_ref.bookkit.records.NotVerified: eq-wrong fails: largest difference 1, allowed 1e-12, at index (0,): ...
    """
    if not re.fullmatch(r"eq-[a-z0-9-]+", label):
        raise ValueError(f"label must look like 'eq-rope-relative', got {label!r}")
    if not 0 <= tol < 1:
        raise ValueError(f"tol must be in [0, 1), got {tol}")
    if lhs is rhs and hasattr(lhs, "shape"):
        raise ValueError(f"{label} compares an object with itself, which cannot fail")
    left, right = _as_array(lhs), _as_array(rhs)
    if left.shape != right.shape:
        raise NotVerified(f"{label} fails: left has shape {left.shape}, right {right.shape}")
    if not left.size:
        raise NotVerified(f"{label} fails: both sides are empty")
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise NotVerified(f"{label} fails: not all numbers are finite")
    difference = np.abs(left - right)
    if difference.max() > tol:
        at = tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
        raise NotVerified(
            f"{label} fails: largest difference {difference.max():.3g}, allowed {tol:g}, at index {at}: "
            f"left {left[at]}, right {right[at]}"
        )
    shape = " × ".join(map(str, left.shape)) or "one number"
    bound = "exactly" if tol == 0 else f"below {tol:g}"
    print(f"{label} holds: {bound} ({what or f'{shape}, {left.dtype}'})")


def claim(id: str, *, verdict: str, because: str) -> None:
    """Print the verdict on a statement of the claims ledger (``claims.toml``).

    ``verdict`` is ``"holds"``, ``"holds if …"``, ``"false"`` or ``"cannot be tested here"``, the last three
    with any words after them; ``because`` gives the computed reason in one line.

    >>> claim("O5", verdict="holds", because="norms differ by less than 1e-12 over 200 random vectors")
    Claim O5 (The rotation keeps norms.)
      verdict: holds
      because: norms differ by less than 1e-12 over 200 random vectors
    """
    statement = claims().get(id)
    if statement is None:
        raise ValueError(f"claim id must be one of the ledger's {', '.join(claims())}, got {id!r}")
    if not verdict.startswith(VERDICTS):
        raise ValueError(f"verdict must start with one of {VERDICTS}, got {verdict!r}")
    if not because.strip() or "\n" in because:
        raise ValueError(f"because must be one line, got {because!r}")
    print(f"Claim {id} ({statement})\n  verdict: {verdict}\n  because: {because}")


@cache
def claims() -> dict[str, str]:
    """Statements of the claims ledger by id."""
    return tomllib.loads(files("posenc_ref.bookkit").joinpath("claims.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Records:
    """What the outputs of a notebook record."""

    equations: dict[str, str]
    """Label → what was compared and the bound that held."""
    verdicts: dict[str, tuple[str, str]]
    """Claim id → (verdict, because)."""


def read_records(outputs: Iterable[str]) -> Records:
    """Read the lines that :func:`verify` and :func:`claim` printed into a notebook's text outputs.

    >>> read_records(["eq-a holds: below 1e-12 (3, float64)\\n"]).equations
    {'eq-a': 'below 1e-12 (3, float64)'}
    """
    text = "\n".join(outputs)
    return Records(
        equations=dict(_VERIFIED.findall(text)),
        verdicts={id: (verdict, because) for id, _, verdict, because in _CLAIMED.findall(text)},
    )


def _as_array(x: Any) -> Any:
    array = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"both sides must be numbers, got dtype {array.dtype}")
    return array.astype(np.float64) if array.dtype.kind in "biu" else array
