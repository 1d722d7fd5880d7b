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
from itertools import combinations
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

    A check that could not fail is refused. The left side must no longer pass with its sign turned, a tenth larger,
    moved by one place along its axes, or with two axes of one length exchanged: take cases that tell these apart.

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
    passing = _passing_mutants(left, right, tol)
    if passing:
        raise ValueError(f"{label} cannot fail: its left side {', '.join(passing)} passes, too; take other cases")
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


@dataclass(frozen=True)
class Entry:
    """One statement of the claims ledger."""

    claim: str
    """The statement, in a sentence."""
    verdict: str | None = None
    """The verdict that a chapter gives, kept here so that it does not change unnoticed; None: none yet."""
    source: str | None = None
    """Where we read it, as Markdown."""


@cache
def ledger() -> tuple[dict[str, str], dict[str, Entry]]:
    """The claims ledger: headings by the first letter of the ids, and entries by id."""
    text = files("posenc_ref.bookkit").joinpath("claims.toml").read_text("utf-8")
    entries: dict[str, Any] = tomllib.loads(text)
    headings = entries.pop("headings")
    return headings, {id: Entry(**entry) for id, entry in entries.items()}


def claims() -> dict[str, str]:
    """Statements of the claims ledger by id."""
    return {id: entry.claim for id, entry in ledger()[1].items()}


@dataclass(frozen=True)
class Records:
    """What the outputs of a notebook record."""

    equations: dict[str, tuple[str, ...]]
    """Label → for each check, the bound that held and what was compared."""
    verdicts: dict[str, tuple[str, str]]
    """Claim id → (verdict, because)."""


def read_records(outputs: Iterable[str]) -> Records:
    """Read the lines that :func:`verify` and :func:`claim` printed into a notebook's text outputs.

    >>> read_records(["eq-a holds: below 1e-12 (3, float64)\\n"]).equations
    {'eq-a': ('below 1e-12 (3, float64)',)}
    """
    text = "\n".join(outputs)
    equations: dict[str, tuple[str, ...]] = {}
    for label, held in _VERIFIED.findall(text):
        equations[label] = (*equations.get(label, ()), held)
    return Records(
        equations=equations,
        verdicts={id: (verdict, because) for id, _, verdict, because in _CLAIMED.findall(text)},
    )


def _passing_mutants(left: Any, right: Any, tol: float) -> list[str]:
    """Names of the mistakes in the left side that the comparison would not notice."""

    def passes(mutant: Any) -> bool:
        return bool(np.abs(mutant - right).max() <= tol)

    passing = [
        name for name, mutant in (("with its sign turned", -left), ("a tenth larger", 1.1 * left)) if passes(mutant)
    ]
    long = [axis for axis, length in enumerate(left.shape) if length > 1]
    if long and all(passes(np.roll(left, 1, axis)) for axis in long):
        passing.append("moved by one place")
    for one, other in combinations(long, 2):
        if left.shape[one] == left.shape[other] and passes(np.swapaxes(left, one, other)):
            passing.append(f"with axes {one} and {other} exchanged")
    return passing


def _as_array(x: Any) -> Any:
    array = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"both sides must be numbers, got dtype {array.dtype}")
    return array.astype(np.float64) if array.dtype.kind in "biu" else array
