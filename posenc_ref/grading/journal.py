"""What a run has graded so far, on disk: memory stays flat, and an interrupted run goes on where it stopped."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posenc_ref.grading.grade import Graded, Row


class Journal:
    """One line for what the run depends on, then one line for each learner. Iterating gives the learners in order."""

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self.path, self.run = path, run
        self._known: dict[str, int] = {}
        self._order: list[int] = []
        end = self._read()
        self._file = path.open("r+b" if end else "w+b")
        self._file.truncate(end)
        self._file.seek(end)
        if not end:
            self._write(run)

    def _read(self) -> int:
        """Find the whole lines of an earlier run like this one; returns where they end."""
        end = 0
        with suppress(OSError, ValueError, KeyError, TypeError), self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):  # the run was stopped while it wrote this
                    break
                content = json.loads(line)
                if end == 0 and content != self.run:
                    break
                if end and all(row["status"] != "grader failed" for row in content["rows"]):
                    self._known[content["of"]] = end
                end += len(line)
        return end

    @property
    def known(self) -> int:
        """How many learners are there from before."""
        return len(self._known)

    def find(self, of: str) -> Graded | None:
        """What an earlier run found for the submission with that fingerprint."""
        return self._at(self._known[of]) if of in self._known else None

    def add(self, graded: Graded) -> None:
        """Keep a result, unless it is there already, as the next in order."""
        if graded.of not in self._known:
            self._known[graded.of] = self._write(asdict(graded))
        self._order.append(self._known[graded.of])

    def __iter__(self) -> Iterator[Graded]:
        return map(self._at, self._order)

    def _write(self, content: dict[str, Any]) -> int:
        offset = self._file.seek(0, 2)
        self._file.write(json.dumps(content).encode() + b"\n")
        self._file.flush()
        return offset

    def _at(self, offset: int) -> Graded:
        self._file.seek(offset)
        content = json.loads(self._file.readline())
        rows = tuple(Row(**row) for row in content["rows"])
        return Graded(content["name"], rows, tuple(content["notes"]), content["of"])

    def close(self, *, done: bool) -> None:
        """Close the file; remove it if the run is ``done``."""
        self._file.close()
        if done:
            self.path.unlink(missing_ok=True)


def journal_of(report: Path) -> Path:
    """Where the journal of the run that writes that report lies: in the grader's own folder, where no learner's files
    are, since whoever writes a journal decides the grades.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "posenc")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"{hashlib.sha256(bytes(report.resolve())).hexdigest()[:16]}.partial"


def earlier_run(path: Path) -> dict[str, Any]:
    """What the run that left a journal depended on; empty if there is none."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        run = json.loads(file.readline())
        return run if isinstance(run, dict) else {}
    return {}


def version() -> str:
    """A digest of this package's code: results of another version are not mixed in."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
