"""Progress of one learner: a small JSON file beside the notebooks, safe against interruption and damage."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from posenc_ref.grading.exercise import Exercise

FILE = "progress.json"


def location(exercise: Exercise) -> Path | None:
    """The file that holds the progress, or None if none is kept.

    ``POSENC_PROGRESS`` names a file, or is ``off``. Otherwise it is ``progress.json`` in the working folder if that
    folder holds the exercise's notebook, which is so in Jupyter. The authors' folder ``source`` keeps none.
    """
    chosen = os.environ.get("POSENC_PROGRESS", "")
    if chosen:
        return None if chosen == "off" else Path(chosen)
    here = Path.cwd()
    return here / FILE if here.name != "source" and (here / f"{exercise.chapter}.ipynb").exists() else None


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Entries by exercise id. A damaged file is put aside as ``progress.json.broken`` with a message."""
    try:
        return parsed(path.read_bytes())
    except OSError:
        return {}
    except ValueError:
        aside = path.with_name(path.name + ".broken")
        print(f"{path.name} cannot be read; it is kept as {aside.name}, and counting starts again.")
        with contextlib.suppress(OSError):
            path.replace(aside)
        return {}


def parsed(data: bytes) -> dict[str, dict[str, Any]]:
    """The entries that a progress file holds; ValueError if it is not one."""
    try:
        entries = dict(json.loads(data)["exercises"])
        if all(type(e["attempts"]) is int and type(e["passed"]) is bool for e in entries.values()):
            return entries
    except (KeyError, TypeError, RecursionError):
        pass
    raise ValueError("not a progress file")


def record(exercise: Exercise, passed: bool, diagnosis: str) -> None:
    """Add one attempt. Never raises: a learner's check must not fail because a disk is full."""
    path = location(exercise)
    if path is None:
        return
    try:
        entries = read(path)
        before = entries.get(exercise.id, {"attempts": 0, "passed": False})
        entries[exercise.id] = {
            "attempts": before["attempts"] + 1,
            "passed": before["passed"] or passed,
            "last": "passed" if passed else diagnosis,
        }
        write(path, json.dumps({"exercises": entries}, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        print(f"(Progress was not kept: {error.strerror or error}.)")


def write(path: Path, text: str) -> None:
    """Write a file at once or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(text.encode("utf-8", "backslashreplace"))  # a learner's text may hold half a character
    temporary.replace(path)
