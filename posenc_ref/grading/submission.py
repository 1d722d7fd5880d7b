"""Reads what a learner handed in. Nothing is executed, no link is followed, and no damaged file stops a batch."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from posenc_ref.grading import progress
from posenc_ref.grading.exercise import Exercise

LARGEST_NOTEBOOK = 10_000_000
LARGEST_ANSWER = 100_000
"""Bytes of a notebook file, characters of an answer cell."""
MOST_NOTEBOOKS = 40
"""How many notebooks are read to find one whose file was renamed."""


class Unreadable(Exception):
    """A file that cannot be used; the message says why, to the learner."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What the grader needs of a notebook cell."""

    kind: str
    source: str
    grade_id: str


@dataclass
class Submission:
    """The answers of one learner, by exercise id: code, or the reason why there is none."""

    name: str
    code: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """The same for the same submission, by everything that its grading depends on."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def read_submission(folder: Path, name: str, exercises: Sequence[Exercise]) -> Submission:
    """Find the answers to ``exercises`` in the notebooks of ``folder``."""
    submission = Submission(name)
    if folder.is_symlink():
        submission.notes.append("the folder is a link; it is not followed")
        submission.missing = {e.id: "not handed in" for e in exercises}
        return submission
    others = cache(partial(_others, folder))
    for chapter in dict.fromkeys(e.chapter for e in exercises):
        asked = [e for e in exercises if e.chapter == chapter]
        try:
            cells = _cells_of_chapter(folder, chapter, asked, submission.notes, others)
        except Unreadable as problem:
            submission.notes.append(str(problem))
            submission.missing |= {e.id: str(problem) for e in asked}
            continue
        for exercise in asked:
            _find_answer(exercise, cells, submission)
    submission.attempts = _attempts(folder)
    return submission


def not_started(code: str, exercise: Exercise) -> bool:
    """Is the cell still the stub: a docstring, nbgrader's comment perhaps, and NotImplementedError?

    A stub in PyTorch has imports, and may be a class with some of its methods given: it ends with NotImplementedError,
    and nothing is returned before. Parsing Python is left to the sandbox.
    """
    # No two repetitions that can match the same characters: a hostile cell would keep the grader busy for days.
    raised = r"raise NotImplementedError\([^()]*\)"
    if exercise.torch is not None and not re.search(r"^[ \t]*return\b", code, re.MULTILINE):
        return re.search(rf"{raised}\Z", code.rstrip()) is not None
    docstring, comment = r"""("{3}[^"]*"{3}\s*)?""", r"(#[^\n]*\n\s*)?"
    start = rf"def {exercise.function}\([^()]*\)[^:]*:\s*"
    return re.fullmatch(start + docstring + comment + raised, code.strip()) is not None


def read_cells(path: Path) -> list[Cell]:
    """The cells of a notebook file that carry an id of nbgrader's, as far as they make sense."""
    data = _read_file(path, LARGEST_NOTEBOOK)
    if not data.strip():
        raise Unreadable(f"{path.name} is empty")
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError):
        raise Unreadable(f"{path.name} is damaged: it is not JSON") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Unreadable(f"{path.name} is not a notebook of format 4: it has no cells")
    return [cell for c in cells if isinstance(c, dict) and (cell := _cell(c)).grade_id]


def _cell(cell: dict[str, Any]) -> Cell:
    source: Any = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    entry: Any = cell.get("metadata")
    entry = entry.get("nbgrader") if isinstance(entry, dict) else None
    grade_id = entry.get("grade_id") if isinstance(entry, dict) else None
    return Cell(str(cell.get("cell_type"))[:20], source if isinstance(source, str) else "", str(grade_id or "")[:200])


def _read_file(path: Path, largest: int) -> bytes:
    """The content of a plain file: links, devices and pipes are refused, before and while opening."""
    if path.is_symlink():
        raise Unreadable(f"{path.name} is a link to another file; links are not followed")
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise Unreadable(f"{path.name} is missing") from None
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unreadable(f"{path.name} is not a plain file")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise Unreadable(f"{path.name} is larger than {largest // 1_000_000} MB")
    return data


def _cells_of_chapter(
    folder: Path, chapter: str, asked: Sequence[Exercise], notes: list[str], others: Callable[[], dict[str, list[Cell]]]
) -> list[Cell]:
    """The chapter's cells, from a notebook of another name if its own is missing and one other holds them."""
    path = folder / f"{chapter}.ipynb"
    if path.exists() or path.is_symlink():
        return read_cells(path)
    wanted = {e.cell for e in asked}
    found = [name for name, cells in others().items() if wanted & {c.grade_id for c in cells}]
    if not found:
        raise Unreadable(f"{path.name} is missing")
    if len(found) > 1:
        raise Unreadable(f"{path.name} is missing, and {' and '.join(found[:3])} hold its exercises")
    notes.append(f"{path.name} is missing; its exercises were found in {found[0]}")
    return others()[found[0]]


def _others(folder: Path) -> dict[str, list[Cell]]:
    """The notebooks of a folder, by name, that can be read."""
    readable = {}
    for path in sorted(folder.glob("*.ipynb"))[:MOST_NOTEBOOKS]:
        with suppress(Unreadable, OSError):
            readable[path.name] = read_cells(path)
    return readable


def _find_answer(exercise: Exercise, cells: Sequence[Cell], submission: Submission) -> None:
    here = [c for c in cells if c.grade_id == exercise.cell]
    code = {c.source for c in here if c.kind == "code"}
    check = [c for c in cells if c.grade_id == f"{exercise.cell}-check"]
    if not here:
        submission.missing[exercise.id] = "the answer cell was deleted; copy it from the original notebook"
    elif not code:
        submission.missing[exercise.id] = f"the answer cell is of type {here[0].kind}; turn it into code again"
    elif len(code) > 1:
        submission.missing[exercise.id] = f"there are {len(code)} different answer cells; delete all but one"
    elif len(answer := code.pop()) > LARGEST_ANSWER:
        submission.missing[exercise.id] = f"the answer cell is longer than {LARGEST_ANSWER:,} characters"
    else:
        submission.code[exercise.id] = answer
        if len(here) > 1:
            submission.notes.append(f"exercise {exercise.number}: the answer cell is there {len(here)} times")
    if [c.source.strip() for c in check] != [f'check("{exercise.id}", {exercise.function})']:
        submission.notes.append(f"exercise {exercise.number}: the check cell was changed; the grader does not use it")


def _attempts(folder: Path) -> dict[str, int]:
    try:
        entries = progress.parsed(_read_file(folder / progress.FILE, 1_000_000))
    except (Unreadable, ValueError, OSError):
        return {}
    return {str(id): min(max(e["attempts"], 0), 10**6) for id, e in entries.items()}
