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
        text = path.read_text("utf-8")
    except OSError:
        return {}
    except UnicodeDecodeError:
        text = ""
    try:
        entries = json.loads(text)["exercises"]
        if not all(isinstance(e, dict) and isinstance(e["attempts"], int) for e in entries.values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        aside = path.with_name(path.name + ".broken")
        print(f"{path.name} cannot be read; it is kept as {aside.name}, and counting starts again.")
        with contextlib.suppress(OSError):
            path.replace(aside)
        return {}
    return dict(entries)


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
            "passed": bool(before.get("passed")) or passed,
            "last": "passed" if passed else diagnosis,
        }
        write(path, entries)
    except OSError as error:
        print(f"(Progress was not kept: {error.strerror or error}.)")


def write(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Write all entries at once, so that the file is never half-written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"exercises": entries}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    temporary.replace(path)
