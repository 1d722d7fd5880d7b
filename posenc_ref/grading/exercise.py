'''What an exercise is, and how its answers are compared: the guide for authors.

An exercise is one :class:`Exercise` object in ``posenc_ref/grading/exercises/chNN_name.py``. The same object drives
``check`` in the learner's notebook, the grader, the tables of the book and the tests. A file looks like this::

    """Exercises of chapter 08: rotary position embedding."""

    import numpy as np
    from hypothesis import strategies as st

    from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters, sizes

    TITLE = "rotary position embedding"      # of the chapter, for the grader's report

    def turn(x, angle):                      # the reference; its parameters are those of the learner's stub
        c, s = np.cos(angle), np.sin(angle)
        return np.array([x[0] * c - x[1] * s, x[1] * c + x[0] * s])


    def _clockwise(x, angle):                # a wrong implementation that learners really write
        return turn(x, -angle)


    def _complex(x, angle):                  # another right one, by a different route
        z = complex(*x) * np.exp(1j * angle)
        return np.array([z.real, z.imag])


    @st.composite
    def _inputs(draw):                       # gives the tuple of arguments
        return draw(quarters(2)), draw(st.sampled_from([0.5, 1.0, 2.0]))


    EXERCISES = (
        Exercise(
            id="rope.turn", number="8.9", chapter="08_rope", title="Turn a pair", minutes=5, difficulty=1,
            function="turn", reference=turn, inputs=_inputs(),
            edges={"no turn": (np.array([1.0, 2.0]), 0.0)},
            properties=(
                Property("the norm is kept", lambda turn, x, angle: (np.sum(turn(x, angle) ** 2), np.sum(x**2))),
            ),
            mistakes=(
                Mistake(_clockwise, "This turns clockwise: the sign of the sine terms is flipped.",
                        "where does (1, 0) go for a small positive angle?"),
            ),
            alternatives=(_complex,),
        ),
    )  # fmt: skip

What to take care of

- **The answer** is what ``reference`` returns: a NumPy array, a number, a bool, or a tuple of those. Answers must have
  the same type, shape and dtype (plain arrays; nothing is broadcast or cast) and be within ``tolerance`` of it, taken
  relative to max(1, |right|). The reference must be independent of the learner's expected route where that is
  possible: call posenc_ref, which has its own tests.
- **Inputs** must not hide bugs: lengths that differ from each other (``B ≠ T``, ``q_len ≠ k_len``), positions that
  do not start at 0 and are not 0 … n−1, more than one pair, head counts that are not powers of two, q ≠ k. Sizes stay
  small, so that a failing input can be read; numbers are :func:`quarters` and :func:`sizes`, which shrink to few
  and simple ones. What small inputs cannot show (a far position, a wide head) goes into ``edges``, by name.
- **Mistakes**: at least six, the ones people make, not random damage. Each has its own diagnosis: say what the code
  does, then what is asked. ``next_step`` is a question or a small experiment, put after "Try:", so write it without
  a capital. An answer is given a mistake's name if it equals it on *every* input tried; if two mistakes agree on all
  inputs, the first in the list wins and the tests fail for the second. Put dtype, shape and type slips here only if
  there is more to say than "dtype is float32, asked for is float64", which is said anyway; the same holds for
  changed inputs, exceptions and NaN. A mistake may raise: it is then recognised by the type of exception.
- **Alternatives**: at least two right functions written differently (loops, complex numbers, einsum, a matrix).
- **Properties** are tested by ``check`` after the values, and named in "Passed". Each gives two sides that must be
  equal; at least one mistake must break it, or it tests nothing.

- **Kinds**: what there is to mark of :data:`KINDS`. A picture helps where the answer is a bias, a table or a map of
  weights: ``draw=True``.
- **PyTorch** (kind ``"torch"``): the file itself imports no torch. Inputs and ``reference`` are NumPy; each array
  becomes a tensor of its dtype before an answer is called, and what comes back becomes arrays. Mistakes and
  alternatives are functions of tensors. Modules, gradients and state dicts are seen through
  ``use(answer, *tensors)``: it works with the class that the learner wrote, whose constructor has the parameters
  ``asks``, and returns what is compared with ``reference``. Only its source reaches the sandbox: it stands alone and
  imports torch itself. The answer cell begins with ``import torch``.

Solutions are also changed in one place at a time (``tests/test_mutants.py``): what then passes shows weak inputs.

The notebook that belongs to it is ``exercises/source/NN_name.ipynb``; see :mod:`posenc_ref.grading.notebooks`.
Test with ``pytest tests/test_exercises.py -k rope.turn``.
'''

import inspect
import keyword
import os
import re
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc_ref.grading.worker import SCALARS, Foreign, describe, on_tensors

if TYPE_CHECKING:  # hypothesis takes a third of a second to import: not before inputs are drawn
    from hypothesis.strategies import SearchStrategy

Function = Callable[..., Any]
Inputs = tuple[Any, ...]

TOLERANCE: Mapping[str, float] = MappingProxyType({"float64": 1e-9, "float32": 1e-5, "complex128": 1e-9})
"""Largest difference, relative to max(1, |right|), by dtype of the right answer; other dtypes are exact."""


KINDS: Mapping[str, str] = MappingProxyType(
    {
        "torch": "the answer is written in PyTorch",
        "bug": "a bug report to judge",
        "derive": "derive a formula on paper, then check it",
        "cache": "decoding with a KV cache",
    }
)
"""What an exercise can be besides a function to write in NumPy; the tests count them."""


@dataclass(frozen=True)
class Mistake:
    """A wrong implementation that learners write, and what to tell them."""

    function: Function
    diagnosis: str
    next_step: str = ""
    """A question or small experiment, continued after "Try: "."""


@dataclass(frozen=True)
class Property:
    """A law that a right answer obeys: ``sides(function, *inputs)`` returns two things that must be equal."""

    name: str
    sides: Callable[..., tuple[Any, Any]]


@dataclass(frozen=True)
class Exercise:
    """One exercise; the module's docstring is the guide."""

    id: str
    """``"rope.rotate"``; the cells of the notebook are called ``rope-rotate`` and ``rope-rotate-check``."""
    number: str
    """``"8.1"``: chapter and place in it."""
    chapter: str
    """Stem of the notebook, ``"08_rope"``."""
    title: str
    minutes: int
    difficulty: int
    """1 (read and type) to 4 (needs an idea of one's own)."""
    function: str
    """Name of the learner's function; its parameters are those of ``reference``."""
    reference: Function
    inputs: "SearchStrategy[Inputs]"
    """Hypothesis strategy for the tuple of arguments."""
    mistakes: tuple[Mistake, ...]
    alternatives: tuple[Function, ...]
    properties: tuple[Property, ...] = ()
    edges: Mapping[str, Inputs] = field(default_factory=dict)
    """Inputs that are always tried, by a name such as "a far position"."""
    tolerance: Mapping[str, float] = field(default_factory=lambda: TOLERANCE)
    kinds: tuple[str, ...] = ()
    """Some of :data:`KINDS`."""
    use: Function | None = None
    """For PyTorch: ``use(answer, *inputs)`` works with what the learner wrote, and returns what is compared."""
    asks: tuple[str, ...] = ()
    """Parameters of the learner's function or class, where ``use`` makes them others than those of ``reference``."""
    draw: bool = False
    """Is the answer a matrix worth a picture? ``check`` then draws yours, the right one and the difference."""

    def __post_init__(self) -> None:
        rules = (
            (re.fullmatch(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*", self.id), "id must look like 'rope.rotate'", self.id),
            (re.fullmatch(r"\d+\.\d+", self.number), "number must look like '8.1'", self.number),
            (re.fullmatch(r"\d\d_[a-z0-9_]+", self.chapter), "chapter must look like '08_rope'", self.chapter),
            (self.minutes > 0, "minutes must be positive", self.minutes),
            (self.difficulty in (1, 2, 3, 4), "difficulty must be 1, 2, 3 or 4", self.difficulty),
            (
                self.function.isidentifier() and not keyword.iskeyword(self.function),
                "function must be a name of Python",
                self.function,
            ),
            (set(self.kinds) <= set(KINDS), f"kinds must be of {', '.join(KINDS)}", self.kinds),
            (not self.use or "torch" in self.kinds, "use is for exercises of kind 'torch'", self.kinds),
            (bool(self.use) or not self.asks, "asks is for exercises with use", self.asks),
        )
        for holds, rule, value in rules:
            if not holds:
                raise ValueError(f"{self.id}: {rule}, got {value!r}")

    @property
    def cell(self) -> str:
        """The nbgrader id of the answer cell; the check cell has ``-check`` behind it."""
        return self.id.replace(".", "-").replace("_", "-")

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(inspect.signature(self.reference).parameters)

    @property
    def asked(self) -> tuple[str, ...]:
        """Parameters of the learner's function, or of the class that the learner writes."""
        return self.asks or self.parameters

    def on_arrays(self, answer: Function) -> Function:
        """An answer as a function of arrays: itself, or what makes tensors of them, calls it and goes back."""
        return on_tensors(answer, self.use) if "torch" in self.kinds else answer

    @property
    def heading(self) -> str:
        """Title line of the exercise in the notebook."""
        return f"Exercise {self.number} — {self.title}"

    @property
    def effort(self) -> str:
        """The line below it: difficulty and time, and whether PyTorch is needed."""
        torch = " · PyTorch" if "torch" in self.kinds else ""
        return f"{'●' * self.difficulty}{'○' * (4 - self.difficulty)} · {self.minutes} minutes{torch}"

    @property
    def torch(self) -> str | None:
        """For PyTorch: the source of ``use``, or an empty string, as the sandbox needs it; else None."""
        if "torch" not in self.kinds:
            return None
        return textwrap.dedent(inspect.getsource(self.use)) if self.use else ""


# --- the registry


def chapter_title(chapter: str) -> str:
    """What a chapter's exercises are about; ``chapter`` itself if none is registered.

    >>> chapter_title("01_attention_without_order")
    'Chapter 1: attention without order'
    """
    for module in _modules():
        if _load(module)[0].chapter == chapter:
            title: str = import_module(f"posenc_ref.grading.exercises.{module}").TITLE
            return f"Chapter {int(chapter[:2])}: {title}"
    return chapter


def all_exercises() -> tuple[Exercise, ...]:
    """All exercises in the order of the book."""
    return tuple(e for chapter in _modules() for e in _load(chapter))


def find_exercise(id: str) -> Exercise:
    """The exercise called ``id``; KeyError names the ones there are."""
    for chapter in _modules():
        for exercise in _load(chapter):
            if exercise.id == id:
                return exercise
    raise KeyError(f"no exercise is called {id!r}; there are {', '.join(e.id for e in all_exercises())}")


def _modules() -> list[str]:
    from posenc_ref.grading import exercises

    return sorted(m.name for m in iter_modules(exercises.__path__) if m.name.startswith("ch"))


@cache
def _load(module: str) -> tuple[Exercise, ...]:
    try:
        found: tuple[Exercise, ...] = import_module(f"posenc_ref.grading.exercises.{module}").EXERCISES
    except ModuleNotFoundError as error:
        if str(error.name).startswith("hypothesis"):
            raise ModuleNotFoundError(
                "hypothesis is missing: pip install 'posenc-ref[grading]'", name="hypothesis"
            ) from None
        raise
    return found


# --- inputs


def quarters(*shape: int, largest: float = 2.0) -> "SearchStrategy[Any]":
    """Strategy for float64 arrays of multiples of 1/4 in [−largest, largest]; it prefers 0, then whole numbers."""
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    steps = sorted(range(1, int(largest * 4) + 1), key=lambda n: (n % 4 != 0, n % 2 != 0, n))
    values = [0.0, *(sign * n / 4 for n in steps for sign in (1, -1))]
    return hnp.arrays(np.float64, shape, elements=st.sampled_from(values), fill=st.nothing())


def integers(*shape: int, low: int = 0, high: int = 12) -> "SearchStrategy[Any]":
    """Strategy for int64 arrays with entries low … high, such as positions in any order."""
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    return hnp.arrays(np.int64, shape, elements=st.sampled_from(range(low, high + 1)), fill=st.nothing())


def sizes(*values: int) -> "SearchStrategy[int]":
    """Strategy for a size out of ``values``; shrinks to the first."""
    from hypothesis import strategies as st

    return st.sampled_from(values)


def draw_inputs(exercise: Exercise, count: int, seed: int) -> list[Inputs]:
    """``count`` inputs, the same ones for the same seed."""
    from hypothesis import Phase, given
    from hypothesis import seed as seeded

    drawn: list[Inputs] = []

    def keep(inputs: Inputs) -> None:
        drawn.append(inputs)

    seeded(seed)(_settings(count, Phase.generate)(given(exercise.inputs)(keep)))()
    return drawn


def smallest_input(
    exercise: Exercise, fails: Callable[[Inputs], bool], *, calls: int = 200, seconds: float = 1.0
) -> Inputs | None:
    """The simplest input found for which ``fails``; None if there is none.

    ``seconds``, of computing, only stops slow functions: counting calls gives the same result on every machine.
    """
    from hypothesis import Phase, find
    from hypothesis.errors import Flaky, NoSuchExample

    failing: list[Inputs] = []
    left, computing, waiting = calls, time.process_time() + seconds, time.monotonic() + 4 * seconds

    def condition(inputs: Inputs) -> bool:
        nonlocal left
        left -= 1
        if left < 0 or time.process_time() > computing or time.monotonic() > waiting:
            raise _Enough
        if fails(inputs):
            failing.append(inputs)
            return True
        return False

    try:
        settings = _settings(100, Phase.generate, Phase.shrink)
        return find(exercise.inputs, condition, settings=settings, random=Random(0))
    except NoSuchExample:
        return None
    except (_Enough, Flaky):
        return min(failing, key=_weight, default=None)


class _Enough(BaseException):
    """Ends a search; no Exception, as Hypothesis would take that for a failing test."""


def _weight(inputs: Inputs) -> tuple[float, ...]:
    """How hard an input is to read: how many numbers, how many that are not 0, how large."""
    arrays = [np.asarray(x, dtype=float) for x in inputs if isinstance(x, np.ndarray | int | float)]
    return tuple(float(sum(f(a) for a in arrays)) for f in (np.size, np.count_nonzero, lambda a: np.abs(a).sum()))


def _settings(count: int, *phases: Any) -> Any:
    from hypothesis import HealthCheck, settings
    from hypothesis.configuration import set_hypothesis_home_dir

    set_hypothesis_home_dir(os.devnull)  # or it leaves a folder .hypothesis beside the notebook
    return settings(
        max_examples=count, phases=phases, database=None, deadline=None, derandomize=False,  # whatever the profile says
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


# --- comparison

NUMBERS = {int, float, *(s for s in SCALARS if not issubclass(s, np.bool_ | np.complexfloating))}
"""The exact types that count as a number: Python's and NumPy's, no bool, no subclass of one's own."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with an answer."""

    kind: str
    """``"not started"``, ``"exception"``, ``"type"``, ``"shape"``, ``"dtype"``, ``"not finite"``, ``"value"``,
    ``"input changed"`` or ``"property"``."""
    text: str


def compare(
    yours: Any, right: Any, tolerance: Mapping[str, float] = TOLERANCE, array: str = "a NumPy array"
) -> Fault | None:
    """What is wrong with ``yours``, or None. ``right`` decides type, shape, dtype and values.

    ``yours`` is never asked whether it is equal: only exact plain types are looked into. ``array`` is what an array
    is called.

    >>> compare(np.ones(2), np.ones((1, 2))).text
    'the shape is (2,), asked for is (1, 2)'
    """
    if isinstance(right, tuple):
        return _compare_tuples(yours, right, tolerance, array)
    if isinstance(right, bool | np.bool_):
        if type(yours) not in (bool, np.bool_):
            return Fault("type", f"the result is {described(yours)}, asked for is True or False")
        return None if bool(yours) == bool(right) else Fault("value", f"the result is {yours}, right is {right}")
    if type(right) in NUMBERS:
        return _compare_numbers(yours, right, tolerance)
    if type(yours) is not np.ndarray:
        return Fault("type", f"the result is {described(yours)}, asked for is {array}")
    return _compare_arrays(yours, right, tolerance)


def _compare_tuples(yours: Any, right: tuple[Any, ...], tolerance: Mapping[str, float], array: str) -> Fault | None:
    if type(yours) is not tuple or len(yours) != len(right):
        what = f"a tuple of {len(yours)}" if type(yours) is tuple else described(yours)
        return Fault("type", f"the result is {what}, asked for is a tuple of {len(right)}")
    for number, (a, b) in enumerate(zip(yours, right, strict=True), start=1):
        if fault := compare(a, b, tolerance, array):
            return Fault(fault.kind, f"in result {number} of {len(right)}, {fault.text}")
    return None


def _compare_numbers(yours: Any, right: Any, tolerance: Mapping[str, float]) -> Fault | None:
    whole = isinstance(right, int | np.integer)
    if type(yours) not in NUMBERS or (whole and not isinstance(yours, int | np.integer)):
        return Fault("type", f"the result is {described(yours)}, asked for is a {'whole ' * whole}number")
    if whole:
        return None if int(yours) == int(right) else Fault("value", "the whole number differs")
    try:
        number = np.array(float(yours))
    except OverflowError:
        return Fault("not finite", "the result is too large for a float")
    return _compare_arrays(number, np.array(float(right)), tolerance)


def _compare_arrays(yours: Any, right: Any, tolerance: Mapping[str, float]) -> Fault | None:
    if yours.shape != right.shape:
        return Fault("shape", f"the shape is {yours.shape}, asked for is {right.shape}")
    if yours.dtype != right.dtype:
        return Fault("dtype", f"the dtype is {yours.dtype}, asked for is {right.dtype}")
    bound = tolerance.get(str(right.dtype), 0.0)
    if not bound:
        differs = yours != right
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            differs = ~(np.abs(yours - right) <= bound * np.maximum(1.0, np.abs(right))) | np.isinf(right)
        if differs.any():
            bad = ~np.isfinite(yours) & np.isfinite(right)
            if bad.any():
                return Fault("not finite", f"the result has {yours[bad][0]}{_at(bad)}")
            differs &= ~((yours == right) | (np.isnan(yours) & np.isnan(right)))  # ∞ and NaN where they belong
    if not differs.any():
        return None
    if not differs.shape:
        return Fault("value", "the number differs")
    return Fault("value", f"{differs.sum()} of {differs.size} numbers differ, the first{_at(differs)}")


def _at(mask: Any) -> str:
    index = ", ".join(str(i) for i in np.argwhere(mask)[0])
    return f" at [{index}]" if index else ""


def described(x: Any) -> str:
    """What ``x`` is, in words."""
    return x.description if type(x) is Foreign else describe(x)


def same_answer(a: Any, b: Any, tolerance: Mapping[str, float] = TOLERANCE) -> bool:
    """Are two answers equal as :func:`compare` sees it, lists and None included (wrong answers return those)?"""
    if type(b) is list:
        return (
            type(a) is list
            and len(a) == len(b)
            and all(same_answer(x, y, tolerance) for x, y in zip(a, b, strict=True))
        )
    if b is None or a is None:
        return a is b
    comparable = isinstance(b, bool | np.bool_ | tuple | np.ndarray) or type(b) in NUMBERS
    return comparable and compare(a, b, tolerance) is None
