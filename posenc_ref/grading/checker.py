"""``check(id, function)``: what a learner calls under an exercise, and the diagnosis that the grader shares.

A verdict depends on the function only: the inputs are the same each time, so the same answer meets the same text.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from textwrap import wrap
from typing import Any

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
from posenc_ref.grading.show import draw_sides, matrices, show_inputs, show_sides
from posenc_ref.grading.worker import Outcome, attempt, copied, kept, told

RANDOM_INPUTS = 40
WIDTH = 96
"""Characters of a line of text."""

_NO_TORCH = (
    "Not checked: exercise {0.number} is in PyTorch, which is not installed here and does not run in a browser.\n"
    "Install it (the README says how), or go on: exercises without PyTorch in their title line need NumPy only."
)
_NEXT_STEP = {
    "exception": "call your function on this input in a new cell, and print the shapes before that line.",
    "NameError": "this name is not defined; is it spelled right?",
    "shape": "print the shape of each intermediate result for this input.",
    "value": "compute this input by hand, and compare each step with your code.",
    "not finite": "which step gives it first? Print the intermediate results for this input.",
}


@dataclass(frozen=True)
class Finding:
    """Why an answer is wrong."""

    at: int
    """Index of the first input that fails."""
    outcome: Outcome
    fault: Fault
    mistake: Mistake | None


@dataclass(frozen=True)
class Verdict:
    """What :func:`check` returns. A notebook shows nothing for it, as the text is printed already."""

    id: str
    passed: bool
    kind: str
    """``"passed"``, ``"no torch"`` or the kind of :class:`~posenc_ref.grading.exercise.Fault`."""
    diagnosis: str
    text: str = field(repr=False)
    sides: tuple[Any, Any] | None = field(default=None, repr=False)
    """A matrix of yours and the right one, where a picture says more than the smallest failing input."""

    def __bool__(self) -> bool:
        return self.passed

    def _ipython_display_(self) -> None:
        if self.sides and find_spec("matplotlib"):
            from IPython.display import Image, display

            words = "three matrices as colours: yours, the right one, and where they differ"
            display(Image(draw_sides(*self.sides), alt=words))


def check(id: str, function: Function, *, draw: bool | None = None) -> Verdict:
    """Check an answer: print what was tried, or the smallest failing input and what is wrong with it.

    ``id`` names the exercise, ``function`` is the learner's. Wrong matrices are drawn beside the right ones if ``draw``
    says so, or else the exercise. Keeps the attempt in ``progress.json`` beside the notebook (see
    :mod:`posenc_ref.grading.progress`).
    """
    try:
        exercise = find_exercise(id)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    verdict = verdict_on(exercise, function, draw)
    print(verdict.text)
    if verdict.kind not in ("not started", "no torch"):
        progress.record(exercise, verdict.passed, verdict.diagnosis)
    return verdict


def verdict_on(exercise: Exercise, function: Function, draw: bool | None = None) -> Verdict:
    """The verdict, with nothing printed or kept."""
    if problem := _signature_problem(exercise, function):
        return _verdict(exercise, "type", problem)
    if "torch" in exercise.kinds and not find_spec("torch"):
        return Verdict(exercise.id, False, "no torch", "no torch", _NO_TORCH.format(exercise))
    function, tried = exercise.on_arrays(function), tried_on(exercise)
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
            return _verdict(exercise, "property", text)
        return Verdict(exercise.id, True, "passed", "", _passed(exercise))
    verdict = _failed(exercise, function, tried, finding)
    wanted = exercise.draw if draw is None else draw
    return replace(verdict, sides=_largest_sides(tried, outcomes)) if wanted else verdict


# --- trying


@dataclass
class Tried:
    """Inputs of an exercise, the right answers to them, and those of each known mistake, computed when asked."""

    exercise: Exercise
    seed: int
    count: int = RANDOM_INPUTS
    and_those_of_check: bool = False

    def __post_init__(self) -> None:
        self.names = list(self.exercise.edges)
        self.inputs = [*self.exercise.edges.values()]
        if self.and_those_of_check:
            self.inputs += draw_inputs(self.exercise, RANDOM_INPUTS, 0)
        self.inputs += draw_inputs(self.exercise, self.count, self.seed)
        self.right = [self.exercise.reference(*copied(inputs)) for inputs in self.inputs]
        self._wrong: dict[int, list[Outcome]] = {}

    def outcomes(self, answer: Function) -> list[Outcome]:
        """What an answer gives for each input."""
        function = self.exercise.on_arrays(answer)
        return [attempt(function, inputs) for inputs in self.inputs]

    def wrong(self, mistake: int) -> list[Outcome]:
        """Outcomes of the mistake with that index."""
        if mistake not in self._wrong:
            function = self.exercise.mistakes[mistake].function
            self._wrong[mistake] = self.outcomes(function)
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
    array = "a tensor" if "torch" in exercise.kinds else "a NumPy array"
    if fault := compare(outcome.value, right, exercise.tolerance, array):
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
    at, fault = first
    for index, mistake in enumerate(exercise.mistakes):
        if all(_alike(exercise, a, b) for a, b in zip(outcomes, tried.wrong(index), strict=True)):
            return Finding(at, outcomes[at], fault, mistake)
    return Finding(at, outcomes[at], fault, None)


def _first_changed(exercise: Exercise, outcome: Outcome) -> str:
    return exercise.parameters[outcome.changed[0]]


def _alike(exercise: Exercise, a: Outcome, b: Outcome) -> bool:
    if a.error or b.error:
        return a.error == b.error
    spoils = not b.changed or a.changed == b.changed  # a slip made in place is still that slip
    return spoils and same_answer(a.value, b.value, exercise.tolerance)


def broken_properties(exercise: Exercise, function: Function, inputs: Sequence[Inputs]) -> list[str]:
    """Names of the properties that fail on one of the inputs."""
    return [p.name for p in exercise.properties if not all(_holds(exercise, p.sides, function, i) for i in inputs)]


def _holds(exercise: Exercise, sides: Callable[..., tuple[Any, Any]], function: Function, inputs: Inputs) -> bool:
    outcome = attempt(partial(sides, lambda *arguments: kept(function(*arguments))), inputs)
    if outcome.error:
        return False
    left, right = outcome.value
    return compare(left, right, exercise.tolerance) is None


# --- telling


def _signature_problem(exercise: Exercise, function: Any) -> str:
    if not callable(function):
        return f"check needs the function itself, check({exercise.id!r}, {exercise.function}); got {function!r:.60}"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return ""
    names = tuple(signature.parameters)
    exchanged = names != exercise.asked and sorted(names) == sorted(exercise.asked)
    try:
        signature.bind(*exercise.asked)  # arguments are given by place: other names and further defaults are fine
        if not exchanged:
            return ""
    except TypeError:
        pass
    asked, got = ", ".join(exercise.asked), ", ".join(names)
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
    title, inputs, outcome, fault = _smallest(exercise, function, tried, finding)
    lines = [title, *show_inputs(exercise.parameters, inputs)]
    lines += [f"    printed: {line}" for line in outcome.printed.splitlines()[:8]]
    if fault.kind in ("value", "not finite"):
        lines += show_sides(outcome.value, exercise.reference(*copied(inputs)))
    if finding.mistake:
        lines += wrap(finding.mistake.diagnosis, WIDTH)
        next_step = finding.mistake.next_step
    else:
        lines += _unnamed(exercise, function, tried, fault)
        next_step = _NEXT_STEP.get(outcome.error) or _NEXT_STEP.get(fault.kind, "")
    if outcome.changed and fault.kind != "input changed":
        lines.append(f"It also changes its input {_first_changed(exercise, outcome)}; work on a copy.")
    if next_step:  # a wrong type or dtype needs none
        lines += wrap(f"Try: {next_step} Hints are below.", WIDTH)
    diagnosis = finding.mistake.diagnosis if finding.mistake else fault.text
    return Verdict(exercise.id, False, fault.kind, diagnosis, "\n".join(lines))


def _unnamed(exercise: Exercise, function: Function, tried: Tried, fault: Fault) -> list[str]:
    if fault.kind == "exception":
        return fault.text.splitlines()
    lines = [] if fault.kind == "value" else [f"{fault.text[0].upper()}{fault.text[1:]}."]
    broken = broken_properties(exercise, function, tried.inputs[:12]) if fault.kind == "value" else []
    return lines + [f"A law that your answer breaks: {name}." for name in broken[:1]]


def _smallest(
    exercise: Exercise, function: Function, tried: Tried, finding: Finding
) -> tuple[str, Inputs, Outcome, Fault]:
    """A title, the smallest input found that fails in the same way, and what the answer gave for it."""

    def trial(inputs: Inputs) -> tuple[Outcome, Fault | None]:
        outcome = attempt(function, inputs)
        return outcome, judge(exercise, outcome, exercise.reference(*copied(inputs)))

    def fails(inputs: Inputs) -> bool:
        fault = trial(inputs)[1]
        return fault is not None and fault.kind == finding.fault.kind

    smallest = smallest_input(exercise, fails)
    if smallest is not None:
        outcome, fault = trial(smallest)
        if fault is not None:
            return "Not yet. The smallest input that fails:", smallest, outcome, fault
    name = f" ({tried.names[finding.at]})" if finding.at < len(tried.names) else ""
    return f"Not yet. An input that fails{name}:", tried.inputs[finding.at], finding.outcome, finding.fault


def _largest_sides(tried: Tried, outcomes: Sequence[Outcome]) -> tuple[Any, Any] | None:
    """Of all wrong matrices the largest: the smallest failing input is for reading, not for a picture."""
    found = [
        pair
        for outcome, right in zip(outcomes, tried.right, strict=True)
        if not outcome.error
        and (fault := judge(tried.exercise, outcome, right))
        and fault.kind in ("value", "not finite")
        and (pair := matrices(outcome.value, right))
    ]
    return max(found, key=lambda pair: pair[1].size, default=None)


def _verdict(exercise: Exercise, kind: str, text: str) -> Verdict:
    return Verdict(exercise.id, False, kind, text, f"Not yet: {text}.")
