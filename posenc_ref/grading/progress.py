"""Progress of one learner: a small JSON file beside the notebooks, safe against interruption and damage."""

import contextlib
import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc_ref.files import write_whole
from posenc_ref.grading.exercise import Exercise, chapter_title

FILE = "progress.json"


def location(exercise: Exercise) -> Path | None:
    """The file that holds the progress, or None if none is kept.

    ``POSENC_PROGRESS`` names a file, or is ``off``. Otherwise it is ``progress.json`` in the working folder if that
    folder holds the exercise's notebook, which is so in Jupyter. The authors' folder ``source`` keeps none.
    """
    if "NBGRADER_EXECUTION" in os.environ:  # nbgrader runs the notebook: nobody is working on it
        return None
    chosen = os.environ.get("POSENC_PROGRESS", "")
    if chosen:
        return None if chosen == "off" else Path(chosen)
    here = Path.cwd()
    return here / FILE if here.name != "source" and (here / f"{exercise.chapter}.ipynb").exists() else None


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Entries by exercise id. A damaged file is put aside as ``progress.json.broken`` with a message."""
    try:
        return parsed(path.read_bytes())
    except FileNotFoundError:
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
        with _alone(path.parent):
            entries = read(path)
            before = entries.get(exercise.id, {"attempts": 0, "passed": False})
            entries[exercise.id] = {
                "attempts": before["attempts"] + 1,
                "passed": before["passed"] or passed,
                "last": "passed" if passed else diagnosis,
            }
            write_whole(path, json.dumps({"exercises": entries}, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        print(f"(Progress was not kept: {error.strerror or error}.)")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time read and write, where the system can: two notebooks may be open."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network folders cannot lock
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def summary(exercises: Sequence[Exercise], entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Chapter by chapter what is done and in how many attempts, and the exercise to go on with."""
    chapters: dict[str, list[Exercise]] = {}
    for exercise in exercises:
        chapters.setdefault(exercise.chapter, []).append(exercise)
    titles = {chapter: chapter_title(chapter) for chapter in chapters}
    width = max(map(len, titles.values()))
    lines = []
    for chapter, its in chapters.items():
        tried = [entries[e.id] for e in its if e.id in entries]
        done, attempts = sum(e["passed"] for e in tried), sum(e["attempts"] for e in tried)
        counted = f"{attempts} attempt{'s' * (attempts != 1)}" if attempts else ""
        boxes = "".join("■" if entries.get(e.id, {}).get("passed") else "□" for e in its)
        lines.append(f"  {titles[chapter]:<{width}}  {boxes:<8}  {done} of {len(its)}  {counted}".rstrip())
    done = sum(entries.get(e.id, {}).get("passed", False) for e in exercises)
    lines.append(f"Done: {done} of {len(exercises)} exercises.")
    to_do = [e for e in exercises if not entries.get(e.id, {}).get("passed")]
    begun = {e.chapter for e in exercises if e.id in entries}
    following = next((e for e in to_do if e.chapter in begun), next(iter(to_do), None))
    if following is None:
        return "\n".join(lines)
    lines.append(
        f"Next: exercise {following.number}, {following.title} ({following.effort}), in {following.chapter}.ipynb."
    )
    if last := entries.get(following.id, {}).get("last"):
        lines += textwrap.wrap(f"Last time: {last}", 96, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)
