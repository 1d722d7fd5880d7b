"""``check(id, function)``: what a learner calls under an exercise, and the diagnosis that the grader shares.

A verdict depends on the function only: the inputs are the same each time, so the same answer meets the same text.
"""

import inspect
import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

import numpy as np

from posenc_ref.grading import progress
from posenc_ref.grading.exercise import (
    Exercise,
    Fault,
    Function,
    Inputs,
    Mistake,
    compare,
    draw_inputs,
    find_exercise,
    same_answer,
    smallest_input,
)
from posenc_ref.grading.show import show_inputs, show_sides
from posenc_ref.grading.worker import Outcome, attempt, copied, told

RANDOM_INPUTS = 40


@dataclass(frozen=True)
class Finding:
    """Why an answer is wrong."""

    fault: Fault
    at: int
    """Index of the first input that fails."""
    mistake: Mistake | None


@dataclass(frozen=True)
class Verdict:
    """What :func:`check` returns. A notebook shows nothing for it, as the text is printed already."""

    id: str
    passed: bool
    kind: str
    """``"passed"`` or the kind of :class:`~posenc_ref.grading.exercise.Fault`."""
    diagnosis: str
    text: str = field(repr=False)

    def __bool__(self) -> bool:
        return self.passed

    def _ipython_display_(self) -> None: ...


def check(id: str, function: Function) -> Verdict:
    """Check an answer: print what was tried, or the smallest failing input and what is wrong with it.

    ``id`` names the exercise, ``function`` is the learner's. Keeps the attempt in ``progress.json`` beside the
    notebook (see :mod:`posenc_ref.grading.progress`).
    """
    try:
        exercise = find_exercise(id)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    verdict = verdict_on(exercise, function)
    print(verdict.text)
    if verdict.kind != "not started":
        progress.record(exercise, verdict.passed, verdict.diagnosis)
    return verdict


def verdict_on(exercise: Exercise, function: Function) -> Verdict:
    """The verdict, with nothing printed or kept."""
    if problem := _signature_problem(exercise, function):
        return _verdict(exercise, Fault("type", problem), problem)
    tried = tried_on(exercise)
    outcomes = [attempt(function, inputs) for inputs in tried.inputs[:1]]
    if outcomes[0].error == "NotImplementedError":
        text = f"Not started: {exercise.function} still raises NotImplementedError. Replace that line by your answer."
        return Verdict(exercise.id, False, "not started", "not started", text)
    outcomes += [attempt(function, inputs) for inputs in tried.inputs[1:]]
    finding = diagnose(tried, outcomes)
    if finding is None:
        broken = broken_properties(exercise, function, tried.inputs[:12])
        if broken:
            text = f"the values are right, yet this does not hold: {broken[0]}"
            return _verdict(exercise, Fault("property", text), text)
        return Verdict(exercise.id, True, "passed", "", _passed(exercise))
    return _failed(exercise, function, tried, finding)


# --- trying


@dataclass
class Tried:
    """Inputs of an exercise, the right answers to them, and those of each known mistake, computed when asked."""

    exercise: Exercise
    seed: int
    count: int = RANDOM_INPUTS

    def __post_init__(self) -> None:
        self.names = list(self.exercise.edges)
        self.inputs = [*self.exercise.edges.values(), *draw_inputs(self.exercise, self.count, self.seed)]
        self.right = [self.exercise.reference(*copied(inputs)) for inputs in self.inputs]
        self._wrong: dict[int, list[Outcome]] = {}

    def wrong(self, mistake: int) -> list[Outcome]:
        """Outcomes of the mistake with that index."""
        if mistake not in self._wrong:
            function = self.exercise.mistakes[mistake].function
            self._wrong[mistake] = [attempt(function, inputs) for inputs in self.inputs]
        return self._wrong[mistake]


_TRIED: dict[str, Tried] = {}


def tried_on(exercise: Exercise) -> Tried:
    """The inputs that ``check`` tries, made once."""
    if exercise.id not in _TRIED or _TRIED[exercise.id].exercise is not exercise:
        _TRIED[exercise.id] = Tried(exercise, seed=0)
    return _TRIED[exercise.id]


# --- judging


def judge(exercise: Exercise, outcome: Outcome, right: Any) -> Fault | None:
    """What is wrong with one outcome, or None."""
    if outcome.error:
        return Fault("exception", told(outcome.error, outcome.message, outcome.line))
    if fault := compare(outcome.value, right, exercise.tolerance):
        return fault
    if outcome.changed:
        return Fault("input changed", f"the call changes its input {_first_changed(exercise, outcome)}; work on a copy")
    return None


def diagnose(tried: Tried, outcomes: Sequence[Outcome]) -> Finding | None:
    """Why the outcomes are wrong, or None if they are right; named if they equal a known mistake's throughout."""
    exercise = tried.exercise
    faults = (judge(exercise, outcome, right) for outcome, right in zip(outcomes, tried.right, strict=True))
    first = next(((at, fault) for at, fault in enumerate(faults) if fault), None)
    if first is None:
        return None
    for index, mistake in enumerate(exercise.mistakes):
        if all(_alike(exercise, a, b) for a, b in zip(outcomes, tried.wrong(index), strict=True)):
            return Finding(first[1], first[0], mistake)
    return Finding(first[1], first[0], None)


def _first_changed(exercise: Exercise, outcome: Outcome) -> str:
    return exercise.parameters[outcome.changed[0]]


def _alike(exercise: Exercise, a: Outcome, b: Outcome) -> bool:
    if a.error or b.error:
        return a.error == b.error
    return a.changed == b.changed and same_answer(a.value, b.value, exercise.tolerance)


def broken_properties(exercise: Exercise, function: Function, inputs: Sequence[Inputs]) -> list[str]:
    """Names of the properties that fail on one of the inputs."""
    return [p.name for p in exercise.properties if not all(_holds(exercise, p.sides, function, i) for i in inputs)]


def _holds(exercise: Exercise, sides: Callable[..., tuple[Any, Any]], function: Function, inputs: Inputs) -> bool:
    with warnings.catch_warnings(), np.errstate(all="ignore"), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            left, right = sides(function, *copied(inputs))
            return compare(left, right, exercise.tolerance) is None
        except (Exception, SystemExit):
            return False


# --- telling


def _signature_problem(exercise: Exercise, function: Any) -> str:
    if not callable(function):
        return f"check needs the function itself, check({exercise.id!r}, {exercise.function}); got {function!r:.60}"
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some built-in functions have none
        return ""
    if names == exercise.parameters:
        return ""
    asked, got = ", ".join(exercise.parameters), ", ".join(names)
    return f"the parameters are ({got}), asked for is {exercise.function}({asked})"


def _passed(exercise: Exercise) -> str:
    lines = [
        f"Passed: exercise {exercise.number}, {exercise.title}.",
        f"  Tried: {RANDOM_INPUTS} random inputs" + "".join(f"; {name}" for name in exercise.edges),
    ]
    if exercise.properties:
        lines.append("  Holds: " + "; ".join(p.name for p in exercise.properties))
    return "\n".join(lines)


def _failed(exercise: Exercise, function: Function, tried: Tried, finding: Finding) -> Verdict:
    inputs, fault, title = _smallest(exercise, function, tried, finding)
    outcome = attempt(function, inputs)
    right = exercise.reference(*copied(inputs))
    lines = [title, *show_inputs(exercise.parameters, inputs)]
    lines += [f"    printed: {line}" for line in outcome.printed.splitlines()[:8]]
    if fault.kind == "value" or (fault.kind == "not finite" and isinstance(outcome.value, np.ndarray)):
        lines += show_sides(outcome.value, right)
    if finding.mistake:
        lines += wrap(finding.mistake.diagnosis, 96)
        next_step = finding.mistake.next_step
    else:
        lines.append(f"{fault.text[0].upper()}{fault.text[1:]}.")
        broken = broken_properties(exercise, function, tried.inputs[:12]) if fault.kind == "value" else []
        lines += [f"A law that your answer breaks: {name}." for name in broken[:1]]
        next_step = "compute this input by hand and compare each step with your code."
    if outcome.changed and fault.kind != "input changed":
        lines.append(f"It also changes its input {_first_changed(exercise, outcome)}; work on a copy.")
    lines += wrap(f"Try: {next_step} Hints are below." if next_step else "Hints are below.", 96)
    diagnosis = finding.mistake.diagnosis if finding.mistake else fault.text
    return Verdict(exercise.id, False, fault.kind, diagnosis, "\n".join(lines))


def _smallest(exercise: Exercise, function: Function, tried: Tried, finding: Finding) -> tuple[Inputs, Fault, str]:
    def fault_on(inputs: Inputs) -> Fault | None:
        return judge(exercise, attempt(function, inputs), exercise.reference(*copied(inputs)))

    def fails(inputs: Inputs) -> bool:
        fault = fault_on(inputs)
        return fault is not None and fault.kind == finding.fault.kind

    smallest = smallest_input(exercise, fails)
    if smallest is not None and (fault := fault_on(smallest)) is not None:
        return smallest, fault, "Not yet. The smallest input that fails:"
    name = f" ({tried.names[finding.at]})" if finding.at < len(tried.names) else ""
    return tried.inputs[finding.at], finding.fault, f"Not yet. An input that fails{name}:"


def _verdict(exercise: Exercise, fault: Fault, text: str) -> Verdict:
    return Verdict(exercise.id, False, fault.kind, fault.text, f"Not yet: {text}.")
