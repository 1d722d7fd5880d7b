"""Every exercise: its checker is proved by mutants, its notebook by running the solution."""

import ast
import math
import re
import time
from functools import partial
from pathlib import Path

import nbformat
import numpy as np
import pytest

from posenc_ref.grading.checker import Tried, broken_properties, diagnose, verdict_on
from posenc_ref.grading.exercise import all_exercises, chapter_title, draw_inputs, find_exercise
from posenc_ref.grading.grade import HIDDEN_INPUTS
from posenc_ref.grading.notebooks import CHECK, exercises_of, grade_id, released
from posenc_ref.grading.worker import attempt

EXERCISES = Path(__file__).parents[1] / "exercises"
CHAPTERS = sorted({e.chapter for e in all_exercises()})
SEEDS = range(1, 21)  # check itself uses seed 0, which verdict_on meets below

each = pytest.mark.parametrize("exercise", all_exercises(), ids=lambda e: e.id)


def source(chapter):
    return nbformat.read(EXERCISES / "source" / f"{chapter}.ipynb", as_version=4)


def named(exercise, function):
    """The function under the names of the learner's parameters."""
    return eval(f"lambda {', '.join(exercise.parameters)}: f({', '.join(exercise.parameters)})", {"f": function})


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
            found = diagnose(tried, [attempt(alternative, inputs) for inputs in tried.inputs])
            assert found is None, f"seed {seed}: {alternative.__name__} is rejected: {found}"


@each
def test_check_says_so(exercise):
    for mistake in exercise.mistakes:
        start = time.process_time()
        verdict = verdict_on(exercise, named(exercise, mistake.function))
        assert time.process_time() - start < 2, "a learner waits for this"
        assert not verdict and verdict.diagnosis == mistake.diagnosis
        assert all(len(line) <= 120 for line in verdict.text.splitlines()), verdict.text
    for alternative in exercise.alternatives:
        verdict = verdict_on(exercise, named(exercise, alternative))
        assert verdict and verdict.text.startswith("Passed"), verdict.text


@each
def test_each_property_holds_and_can_fail(exercise):
    inputs = Tried(exercise, seed=1).inputs
    for function in (exercise.reference, *exercise.alternatives):
        assert broken_properties(exercise, function, inputs) == []
    broken = {name for m in exercise.mistakes for name in broken_properties(exercise, m.function, inputs)}
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
    (definition,) = [n for n in ast.parse(code).body if isinstance(n, ast.FunctionDef) and n.name == exercise.function]
    assert tuple(a.arg for a in definition.args.args) == exercise.parameters
    assert ast.get_docstring(definition), "the stub needs a docstring with the shapes"
    module = {"np": np, "math": math}
    exec(compile(code, exercise.cell, "exec"), module)
    verdict = verdict_on(exercise, module[exercise.function])
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
