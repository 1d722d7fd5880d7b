"""How fast ``check`` and the grader are: ``python benchmarks/grading.py [LEARNERS]``.

Times ``check`` on every known mistake of every exercise. Then makes a class in which each learner hands in five
exercises of chapter 8, every tenth of them wrong, grades it with the sandbox on all cores as ``posenc grade`` does, and
prints submissions a minute, and the memory of the grader at work on the first and on the last fifth of the class.
"""

import contextlib
import io
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import nbformat

from posenc_ref.grading.__main__ import _Run
from posenc_ref.grading.checker import verdict_on
from posenc_ref.grading.exercise import all_exercises, find_exercise
from posenc_ref.grading.sandbox import Sandbox

ROOT = Path(__file__).parents[1]
WAIT = 2
"""Seconds that a learner should wait for ``check`` at most."""
FIVE = [
    find_exercise(f"rope.{name}")
    for name in ("rotate", "inv_freq", "relative_matrix", "convert_weights", "decode_scores")
]


def make_class(folder: Path, learners: int) -> list[tuple[str, Path]]:
    """Folders of notebooks with the authors' answers; every tenth has a wrong one."""
    source = nbformat.read(ROOT / "exercises" / "source" / "08_rope.ipynb", as_version=4)
    right = nbformat.writes(source)
    for cell in source.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == FIVE[0].cell:
            cell.source = "def rotate(x, positions):\n    return x + 1"
    wrong = nbformat.writes(source)
    found = []
    for number in range(learners):
        path = folder / f"learner{number:03d}"
        path.mkdir()
        (path / "08_rope.ipynb").write_text(wrong if number % 10 == 9 else right, "utf-8")
        found.append((path.name, path))
    return found


def time_checks() -> None:
    """What a learner waits for who made a known mistake: one after the other, as in one notebook."""
    import torch  # noqa: F401  (seconds, which the learner's own cell has taken)

    seconds = {}
    for exercise in all_exercises():
        for mistake in exercise.mistakes:
            start = time.process_time()
            verdict_on(exercise, mistake.function)
            seconds[f"{exercise.id}, {mistake.function.__name__}"] = time.process_time() - start
    slowest = max(seconds, key=seconds.__getitem__)
    slow = sum(s > WAIT for s in seconds.values())
    print(f"check of {len(seconds)} mistakes: {statistics.median(seconds.values()):.2f} s of computing, the median;")
    print(f"{seconds[slowest]:.2f} s the slowest ({slowest}); {slow} take more than {WAIT} s")


def resident_mb() -> float:
    """Memory of this process, without the answers'."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(learners: int) -> int:
    """Grade, print, and compare the scores with what was handed in."""
    folder = Path(tempfile.mkdtemp(prefix="class-"))
    done, memory = threading.Event(), []

    def watch() -> None:
        while not done.wait(0.2):
            memory.append(resident_mb())

    try:
        folders = make_class(folder, learners)
        run = _Run(folders, FIVE, Sandbox(), folder / "report.json", folder / "report.html", None, a_class=True)
        watcher = threading.Thread(target=watch)
        watcher.start()
        start, ours = time.perf_counter(), time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            run(seed=1, anew=True)
        seconds, ours = time.perf_counter() - start, time.process_time() - ours
        done.set()
        watcher.join()
        scores = [g.score for g in run.journal]
        run.journal.close(done=True)
    finally:
        done.set()
        shutil.rmtree(folder)
    best, fifth = sum(e.difficulty for e in FIVE), max(len(memory) // 5, 1)
    expected = [best - (n % 10 == 9) * FIVE[0].difficulty for n in range(learners)]
    print(f"{learners} submissions of 5 exercises in {seconds:.0f} s: {60 * learners / seconds:.0f} a minute")
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; the grader itself: {ours:.0f} s")
    print(f"memory of the grader: {max(memory[:fifth]):.0f} MB at first, {max(memory[-fifth:]):.0f} MB at last")
    print("scores: " + ("as handed in" if scores == expected else "WRONG"))
    return int(scores != expected)


if __name__ == "__main__":
    time_checks()
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
