"""Grades submissions: answers run in the sandbox, on hidden inputs; the comparison happens here, outside."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from posenc_ref.grading.checker import Tried, diagnose
from posenc_ref.grading.exercise import Exercise, Inputs
from posenc_ref.grading.sandbox import Run, Sandbox
from posenc_ref.grading.submission import Submission, not_started, read_submission

HIDDEN_INPUTS = 24
_ADVICE = {
    "ModuleNotFoundError": "answers may import NumPy and the standard library, or PyTorch where the exercise says so",
    "NameError": "the grader runs the answer cell alone: np and math are there, other cells are not",
}


@dataclass(frozen=True)
class Row:
    """One exercise of one learner."""

    id: str
    number: str
    chapter: str
    title: str
    points: int
    score: int
    status: str
    """``"passed"``, ``"failed"``, ``"not started"``, ``"missing"``, or ``"grader failed"``: never a pass."""
    message: str
    next_step: str
    attempts: int


@dataclass(frozen=True)
class Graded:
    """One learner."""

    name: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    of: str = ""
    """Fingerprint of the submission."""

    @property
    def score(self) -> int:
        """Points reached."""
        return sum(r.score for r in self.rows)

    @property
    def points(self) -> int:
        """Points of the release, whatever was handed in."""
        return sum(r.points for r in self.rows)

    @property
    def passed(self) -> int:
        """Number of exercises that passed."""
        return sum(r.status == "passed" for r in self.rows)


class Grader:
    """Grades learners in order, a few at a time; memory does not grow with their number."""

    def __init__(self, exercises: Sequence[Exercise], sandbox: Sandbox, seed: int) -> None:
        self.exercises, self.sandbox, self.seed = tuple(exercises), sandbox, seed
        self._tried: dict[str, Tried] = {}

    def grade(
        self,
        folders: Sequence[tuple[str, Path]],
        step: Callable[[], None] = lambda: None,
        known: Callable[[str], Graded | None] = lambda of: None,
    ) -> Iterator[Graded]:
        """Grade each (name, folder), in this order; ``step`` is called after each exercise.

        ``known`` gives the result for a submission's fingerprint if there is one from before.
        """
        workers = os.cpu_count() or 1
        waiting: deque[Callable[[], Graded]] = deque()
        pool = ThreadPoolExecutor(workers)
        try:
            for name, folder in folders:
                submission = self._read(name, folder)
                before = known(submission.fingerprint)
                if before:
                    waiting.append(partial(self._again, before, step))
                else:
                    runs = self._start(pool, submission)
                    waiting.append(partial(self._finish, submission, runs, step))
                if len(waiting) > workers:  # enough to keep all cores busy
                    yield waiting.popleft()()
            while waiting:
                yield waiting.popleft()()
        finally:
            pool.shutdown(cancel_futures=True)  # where the run is interrupted, what has not begun never does

    def _read(self, name: str, folder: Path) -> Submission:
        try:
            return read_submission(folder, name, self.exercises)
        except OSError as error:  # a folder that may not be read, say: the others are graded all the same
            submission = Submission(name, notes=[f"the folder cannot be read: {error.strerror}"])
            submission.missing = {e.id: "not handed in" for e in self.exercises}
            return submission

    def _again(self, graded: Graded, step: Callable[[], None]) -> Graded:
        for _ in graded.rows:
            step()
        return graded

    def _finish(
        self, submission: Submission, runs: "dict[str, Future[Run] | None]", step: Callable[[], None]
    ) -> Graded:
        rows = []
        for exercise in self.exercises:
            rows.append(self._row(exercise, submission, runs[exercise.id]))
            step()
        return Graded(submission.name, tuple(rows), tuple(submission.notes), submission.fingerprint)

    def _start(self, pool: ThreadPoolExecutor, submission: Submission) -> "dict[str, Future[Run] | None]":
        stopped: list[str] = []

        def started(exercise: Exercise) -> "Future[Run] | None":
            code = submission.code.get(exercise.id)
            if code is None or not_started(code, exercise):
                return None
            return pool.submit(self._run, code, exercise, self._hidden(exercise).inputs, stopped)

        return {e.id: started(e) for e in self.exercises}

    def _run(self, code: str, exercise: Exercise, inputs: Sequence[Inputs], stopped: list[str]) -> Run:
        """Run an answer; who ran into the time limit before waits for less and less."""
        run = self.sandbox.run(code, exercise.function, inputs, exercise.torch, patience=0.5 ** len(stopped))
        if run.failure.startswith("stopped at the time limit"):
            stopped.append(exercise.id)
        return run

    def _hidden(self, exercise: Exercise) -> Tried:
        if exercise.id not in self._tried:
            digest = hashlib.sha256(f"{self.seed}:{exercise.id}".encode()).digest()
            seed = int.from_bytes(digest[:8])
            self._tried[exercise.id] = Tried(exercise, seed, HIDDEN_INPUTS, and_those_of_check=True)
        return self._tried[exercise.id]

    def _row(self, exercise: Exercise, submission: Submission, run: "Future[Run] | None") -> Row:
        status, message, next_step = "missing", submission.missing.get(exercise.id, ""), ""
        if exercise.id in submission.code and run is None:
            status, message = "not started", f"about {exercise.minutes} minutes"
        elif run is not None:
            try:
                status, message, next_step = self._judge(exercise, run.result())
            except Exception as error:  # fail closed, and go on with the batch
                status, message = "grader failed", f"{type(error).__name__}: {error}"
        score = exercise.difficulty if status == "passed" else 0
        attempts = submission.attempts.get(exercise.id, 0)
        return Row(
            exercise.id, exercise.number, exercise.chapter, exercise.title, exercise.difficulty, score, status,
            message, next_step, attempts,
        )  # fmt: skip

    def _judge(self, exercise: Exercise, run: Run) -> tuple[str, str, str]:
        if run.failure:
            return "failed", run.failure, _ADVICE.get(run.failure.partition(":")[0], "")
        outcomes = [replace(o, message="") for o in run.outcomes]  # a message could quote a hidden input
        finding = diagnose(self._hidden(exercise), outcomes)
        if finding is None:
            return "passed", "", ""
        if run.outcomes[finding.at].error == "NotImplementedError":
            return "not started", f"about {exercise.minutes} minutes", ""
        if finding.mistake:
            return "failed", finding.mistake.diagnosis, finding.mistake.next_step
        error, next_step = run.outcomes[finding.at].error, "run its check: it shows the smallest input that fails"
        if error:
            next_step = _ADVICE.get(error, "run its check to see the message")
        return "failed", finding.fault.text, next_step
