"""Every exercise: its checker is proved by mutants, its notebook by running the solution."""

import ast
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import IPython.display
import matplotlib.figure
import nbformat
import numpy as np
import pytest

from posenc_ref.grading import checker
from posenc_ref.grading.checker import Tried, broken_properties, diagnose, tried_on, verdict_on
from posenc_ref.grading.exercise import KINDS, all_exercises, chapter_title, draw_inputs, find_exercise
from posenc_ref.grading.grade import HIDDEN_INPUTS
from posenc_ref.grading.notebooks import CHECK, exercises_of, grade_id, released
from posenc_ref.grading.sandbox import Sandbox
from posenc_ref.grading.show import draw_sides
from posenc_ref.grading.worker import caller

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
EXERCISES = Path(__file__).parents[1] / "exercises"
CHAPTERS = sorted({e.chapter for e in all_exercises()})
SEEDS = range(1, 21)  # check itself uses seed 0, which verdict_on meets below

each = pytest.mark.parametrize("exercise", all_exercises(), ids=lambda e: e.id)


def source(chapter):
    return nbformat.read(EXERCISES / "source" / f"{chapter}.ipynb", as_version=4)


def named(exercise, function):
    """The function under the names of the learner's parameters."""
    return eval(f"lambda {', '.join(exercise.asked)}: f({', '.join(exercise.asked)})", {"f": function})


def answer_cell(exercise):
    """The solution's cell."""
    (cell,) = [c for c in source(exercise.chapter).cells if grade_id(c) == exercise.cell]
    return cell.source


def solution(exercise):
    """The function or class that the solution's cell defines."""
    module = {"__name__": "__main__", "np": np, "math": math}
    exec(compile(answer_cell(exercise), exercise.cell, "exec"), module)
    return module[exercise.function]


@each
def test_mistakes_are_named_and_alternatives_pass(exercise):
    assert len(exercise.mistakes) >= 6 and len(exercise.alternatives) >= 2
    for seed in SEEDS:
        tried = Tried(exercise, seed, HIDDEN_INPUTS)
        for index, mistake in enumerate(exercise.mistakes):
            found = diagnose(tried, tried.wrong(index))
            assert found is not None, f"seed {seed}: {mistake.function.__name__} passes"
            assert found.mistake is mistake, (
                f"seed {seed}: {mistake.function.__name__} is named {found.mistake and found.mistake.function.__name__}"
            )
        for alternative in exercise.alternatives:
            found = diagnose(tried, tried.outcomes(alternative))
            assert found is None, f"seed {seed}: {alternative.__name__} is rejected: {found}"


@each
def test_check_says_so(exercise):
    for mistake in exercise.mistakes:
        verdict = verdict_on(exercise, named(exercise, mistake.function))
        assert not verdict and verdict.diagnosis == mistake.diagnosis
        assert all(len(line) <= 120 for line in verdict.text.splitlines()), verdict.text
    for alternative in exercise.alternatives:
        verdict = verdict_on(exercise, named(exercise, alternative))
        assert verdict and verdict.text.startswith("Passed"), verdict.text


@each
def test_each_property_holds_and_can_fail(exercise):
    inputs = Tried(exercise, seed=1).inputs
    for function in (exercise.reference, *map(exercise.on_arrays, exercise.alternatives)):
        assert broken_properties(exercise, function, inputs) == []
    wrong = [exercise.on_arrays(m.function) for m in exercise.mistakes]
    broken = {name for function in wrong for name in broken_properties(exercise, function, inputs)}
    assert broken == {p.name for p in exercise.properties}, "a property that no mistake breaks tests nothing"


@each
def test_a_table_of_answers_would_not_do(exercise):
    drawn = [repr(inputs) for seed in (0, 1) for inputs in draw_inputs(exercise, 40, seed)]
    assert len(set(drawn)) > 50, "the inputs repeat: draw them from more"


@pytest.mark.parametrize(
    "change",
    [
        lambda f: lambda a, b, scale=1.0: f(a, b),
        lambda f: lambda *arguments, **options: f(*arguments),
        lambda f: partial(lambda scale, a, b: f(a, b), 1.0),
    ],
    ids=["other names and a default", "decorated", "partial"],
)
def test_a_function_that_takes_the_arguments_is_tried(change):
    exercise = find_exercise("rope.rotate")
    assert verdict_on(exercise, change(exercise.reference))


def test_parameters_in_another_order_are_refused():
    exercise = find_exercise("rope.rotate")
    verdict = verdict_on(exercise, lambda positions, x: exercise.reference(positions, x))
    assert verdict.diagnosis == "the parameters are (positions, x), asked for is rotate(x, positions)"


def test_an_output_buffer_may_be_used_again():
    exercise, buffers = find_exercise("rope.rotate"), {}

    def rotate(x, positions):
        y = buffers.setdefault(x.shape, np.empty(x.shape))
        y[:] = exercise.reference(x, positions)
        return y

    verdict = verdict_on(exercise, rotate)
    assert verdict, verdict.text


@each
def test_texts_are_for_people(exercise):
    diagnoses = [m.diagnosis for m in exercise.mistakes]
    assert len(set(diagnoses)) == len(diagnoses)
    assert all(d[0].isupper() and d.rstrip().endswith(".") for d in diagnoses)
    assert all(not m.next_step or m.next_step[-1] in ".?" for m in exercise.mistakes)


@each
def test_notebook_has_the_cells_in_order(exercise):
    cells = source(exercise.chapter).cells
    at = [i for i, c in enumerate(cells) if grade_id(c) == exercise.cell]
    assert len(at) == 1
    task, answer, check, hints, help_ = cells[at[0] - 1 : at[0] + 4]
    assert [c.cell_type for c in (task, answer, check, hints, help_)] == [
        "markdown",
        "code",
        "code",
        "markdown",
        "markdown",
    ]
    assert task.source.startswith(f"## {exercise.heading}\n\n{exercise.effort}\n\n")
    assert max(map(len, answer.source.splitlines())) <= 88, "the book scrolls sideways"
    meta = {"locked": False, "solution": True, "grade": False, "task": False, "schema_version": 3}
    assert meta.items() <= answer.metadata.nbgrader.items()
    meta = {"locked": True, "solution": False, "grade": True, "task": False, "schema_version": 3}
    assert grade_id(check) == exercise.cell + CHECK and meta.items() <= check.metadata.nbgrader.items()
    assert check.metadata.nbgrader["points"] == exercise.difficulty
    assert check.source == f'check("{exercise.id}", {exercise.function})'
    numbers = re.findall(r"<details><summary>Hint (\d)</summary>", hints.source)
    assert numbers in (["1", "2"], ["1", "2", "3"])
    assert "<details><summary>Help: I get" in help_.source


@each
def test_solution_passes_and_has_the_stub_s_signature(exercise):
    cells = {grade_id(c): c for c in source(exercise.chapter).cells}
    code = cells[exercise.cell].source
    defined = ast.FunctionDef | ast.ClassDef
    (definition,) = [n for n in ast.parse(code).body if isinstance(n, defined) and n.name == exercise.function]
    assert ast.get_docstring(definition), "the stub needs a docstring with the shapes"
    first = []
    if isinstance(definition, ast.ClassDef):
        (definition,) = [n for n in definition.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        first = ["self"]
    assert [a.arg for a in definition.args.args] == [*first, *exercise.asked]
    verdict = verdict_on(exercise, solution(exercise))
    assert verdict, verdict.text
    outputs = cells[exercise.cell + CHECK].outputs
    assert [o.text for o in outputs] == [verdict.text + "\n"], (
        "the committed output of check is not what check says now"
    )


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_learner_s_copy_is_what_the_source_gives(chapter):
    copy = (EXERCISES / f"{chapter}.ipynb").read_text("utf-8")
    assert copy == nbformat.writes(released(source(chapter), exercises_of(chapter))) + "\n", (
        f"run: python -m posenc_ref.grading release exercises/source/{chapter}.ipynb"
    )
    notebook = nbformat.reads(copy, as_version=4)
    assert not any(c.get("outputs") or c.get("execution_count") for c in notebook.cells)
    for exercise in exercises_of(chapter):
        (stub,) = [c.source for c in notebook.cells if grade_id(c) == exercise.cell]
        assert stub.rstrip().endswith(f'raise NotImplementedError("exercise {exercise.number}")')
    known = {x for e in exercises_of(chapter) for x in (e.cell, e.cell + CHECK)}
    assert {grade_id(c) for c in notebook.cells if grade_id(c)} == known


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_title_is_the_notebook_s(chapter):
    title = source(chapter).cells[0].source.splitlines()[0]
    assert title == f"# Exercises for {chapter_title(chapter).replace('Chapter', 'chapter')}"


def test_a_right_layer_with_another_query_is_told_so():
    def in_the_query(d, bonus):
        W_Q, W_K, W_V = np.zeros((3, d, d))
        W_Q[0, 1], W_K[0, 0], W_V[0, 0] = bonus * d**0.5, 1.0, 1.0
        return W_Q, W_K, W_V

    exercise = find_exercise("attention.counting_weights")
    assert broken_properties(exercise, in_the_query, Tried(exercise, seed=0).inputs) == []
    assert verdict_on(exercise, in_the_query).diagnosis.endswith("move the bonus to W_K.")


def test_ids_and_numbers_are_unique():
    for values in zip(*[(e.id, e.number, e.cell) for e in all_exercises()], strict=True):
        assert len(set(values)) == len(values)


# --- how many there are, and of which kinds


@pytest.mark.parametrize(
    "notebook", [p.stem for p in sorted(NOTEBOOKS.glob("*.ipynb")) if 1 <= int(p.stem[:2]) <= 14], ids=str
)
def test_each_chapter_has_exercises(notebook):
    here = [e.id for e in all_exercises() if e.chapter[:2] == notebook[:2]]
    assert len(here) >= 2, f"chapter {notebook} has a notebook and the exercises {here}: there should be two or more"


def test_there_are_enough_of_each_kind():
    count = {kind: sum(kind in e.kinds for e in all_exercises()) for kind in KINDS}
    assert len(all_exercises()) >= 45
    assert count["torch"] >= 12 and count["bug"] >= 6 and count["derive"] >= 4 and count["cache"] >= 3, count


@each
def test_the_kind_is_what_the_task_says(exercise):
    cells = source(exercise.chapter).cells
    (at,) = [i for i, c in enumerate(cells) if grade_id(c) == exercise.cell]
    task = cells[at - 1].source
    assert ("bug" in exercise.kinds) == ("bug" in exercise.title.lower()), exercise.title
    assert "derive" not in exercise.kinds or re.search(r"\b[Dd]erive\b", task), "the task should ask to derive"
    assert ("torch" in exercise.kinds) == ("import torch" in cells[at].source)


# --- PyTorch

in_torch = pytest.mark.parametrize("exercise", [e for e in all_exercises() if "torch" in e.kinds], ids=lambda e: e.id)


@in_torch
def test_what_calls_an_answer_stands_alone(exercise):
    """Only the source of ``use`` reaches the sandbox: nothing of its module."""
    answer, tried = caller(exercise.torch)(solution(exercise)), tried_on(exercise)
    for inputs, right in zip(tried.inputs[:5], tried.right, strict=False):
        assert checker.judge(exercise, checker.attempt(answer, inputs), right) is None


@in_torch
def test_pytorch_answers_are_graded_in_the_sandbox(exercise):
    """Where /proc and much else is missing, the solution passes."""
    tried, code = Tried(exercise, seed=3, count=4), answer_cell(exercise)
    right = Sandbox().run(code, exercise.function, tried.inputs, exercise.torch)
    assert right.outcomes and diagnose(tried, right.outcomes) is None, right


def test_a_slip_in_pytorch_is_named_in_the_sandbox():
    exercise = find_exercise("learned.layer")
    tried, code = Tried(exercise, seed=3, count=4), answer_cell(exercise)
    wrong = Sandbox().run(code.replace(" + self.offset", ""), exercise.function, tried.inputs, exercise.torch)
    assert diagnose(tried, wrong.outcomes).mistake is exercise.mistakes[0]


def test_loading_the_exercises_loads_no_torch():
    code = (
        "import sys; from posenc_ref.grading.exercise import all_exercises as a; a(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_torch_check_says_so_and_keeps_nothing(monkeypatch, capsys):
    monkeypatch.setattr(checker, "find_spec", lambda name: None)
    monkeypatch.setattr(checker.progress, "record", lambda *_: pytest.fail("this was no attempt"))
    verdict = checker.check("learned.layer", lambda rows, dim, offset: None)
    assert not verdict and "PyTorch, which is not installed here" in capsys.readouterr().out
    assert max(map(len, verdict.text.splitlines())) <= 120


def test_arrays_are_no_tensors():
    exercise = find_exercise("shaw.table_gradient")
    verdict = verdict_on(exercise, lambda g, q, k, c: exercise.reference(g.numpy(), q.numpy(), k.numpy(), c))
    assert verdict.kind == "type" and "asked for is a tensor" in verdict.text


# --- pictures


@pytest.mark.parametrize("exercise", [e for e in all_exercises() if e.draw], ids=lambda e: e.id)
def test_wrong_matrices_are_drawn(exercise):
    tried = tried_on(exercise)
    drawn = [checker._largest_sides(tried, tried.wrong(i)) for i in range(len(exercise.mistakes))]
    yours, right = next(pair for pair in drawn if pair)
    assert yours.shape == right.shape and not np.array_equal(yours, right)
    png = draw_sides(yours, right)
    assert png.startswith(b"\x89PNG") and len(png) < 60_000


def test_a_picture_shows_yours_right_and_difference(monkeypatch):
    panels, shown = [], []
    savefig = matplotlib.figure.Figure.savefig

    def keep(figure, *arguments, **options):
        panels.extend((a.get_title(), a.images[0].get_array()) for a in figure.axes if a.get_title())
        savefig(figure, *arguments, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    exercise = find_exercise("alibi.chunk")
    verdict = verdict_on(exercise, lambda content, slope: exercise.reference(content, 0.0))
    verdict._ipython_display_()
    assert [title for title, _ in panels] == ["yours", "right", "yours − right"] and len(shown) == 1
    yours, right, difference = (x for _, x in panels)
    assert yours.shape == (3, 8), "the largest input, not the smallest that fails"
    assert np.allclose(yours[0, :6], 1 / 6) and np.allclose(difference, yours - right)


def test_pictures_only_where_they_are_wanted_and_something_is_wrong():
    exercise = find_exercise("alibi.chunk")
    assert verdict_on(exercise, exercise.reference).sides is None
    flat = lambda content, slope: exercise.reference(content, 0.0)  # noqa: E731
    assert verdict_on(exercise, flat, draw=False).sides is None
    rope = find_exercise("rope.rotate")
    assert verdict_on(rope, rope.mistakes[0].function).sides is None
    assert verdict_on(rope, rope.mistakes[0].function, draw=True).sides is not None


def test_what_is_not_finite_can_be_drawn():
    assert draw_sides(np.array([[np.nan, 1.0], [np.inf, 0.0]]), np.array([[-np.inf, 1.0], [0.0, 0.0]]))


def test_an_exception_is_told_in_three_lines_at_most():
    exercise = find_exercise("rope.rotate")

    def rotate(x, positions):
        def deeper(n):
            return deeper(n - 1) if n else [][1]

        return deeper(20)

    text, _, next_step = verdict_on(exercise, rotate).text.partition("\nTry:")
    told = text[text.index("IndexError: list index out of range") :]
    assert len(told.splitlines()) <= 3 and "return deeper(n - 1) if n else [][1]" in told
    assert next_step and "Traceback" not in text
