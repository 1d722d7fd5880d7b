"""One build of the book for test_book.py and test_browser.py, whichever process asks first."""

import fcntl
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def toc_pages(toc=ROOT / "_toc.yml"):
    """All pages of the table of contents, in reading order, as paths without suffix."""

    def walk(node):
        if isinstance(node, list):
            for item in node:
                yield from walk(item)
        elif isinstance(node, dict):
            yield from (value for key, value in node.items() if key in ("root", "file"))
            yield from (page for key in ("parts", "chapters", "sections") for page in walk(node.get(key)))

    return list(walk(yaml.safe_load(toc.read_text("utf-8"))))


@dataclass(frozen=True)
class Built:
    html: Path
    log: str
    """What the build said, if it failed."""
    seconds: float
    """Of one processor, so that a busy machine does not count."""


def built_book(tmp_path_factory) -> Built:
    """Build the book into a temporary folder, once for all processes of a test run.

    ``POSENC_BOOK=FOLDER`` takes the html of an earlier build instead.
    """
    if given := os.environ.get("POSENC_BOOK"):
        return Built(Path(given).resolve(), "", 0.0)
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    log = shared / "book.log"
    with (shared / "book.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "posenc_ref.bookkit.build", "--out", str(shared / "book")]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            log.write_text(f"{run.returncode} {seconds:.1f}\n{run.stdout}{run.stderr}", "utf-8")
    first, _, text = log.read_text("utf-8").partition("\n")
    status, seconds = first.split()
    return Built(shared / "book" / "html", "" if status == "0" else text or "failed", float(seconds))
