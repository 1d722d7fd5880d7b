"""What ``check`` says, what it keeps, and what the grader's command line writes."""

import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import nbformat
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

from posenc_ref.files import write_whole
from posenc_ref.grading import __main__ as command
from posenc_ref.grading import check, progress, report
from posenc_ref.grading.checker import verdict_on
from posenc_ref.grading.exercise import all_exercises, compare, find_exercise, same_answer
from posenc_ref.grading.grade import Graded, Grader, Row
from posenc_ref.grading.journal import journal_of
from posenc_ref.grading.notebooks import released
from posenc_ref.grading.sandbox import Limits, Run, Sandbox
from posenc_ref.grading.show import show_sides
from posenc_ref.grading.submission import not_started
from posenc_ref.grading.worker import attempt

ROOT = Path(__file__).parents[1]
ROTATE = find_exercise("rope.rotate")
BWRAP = pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap: apt install bubblewrap")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POSENC_PROGRESS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def right(x, positions):
    angle = positions[:, None] * 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


def clockwise(x, positions):
    return right(x, -positions)


# --- comparing


class Liar:
    def __eq__(self, other):
        return True

    def __array__(self, *args, **kwargs):
        return np.ones(2)


class Mine(np.ndarray):
    pass


@pytest.mark.parametrize(("yours", "wanted", "kind", "text"), [
    (Liar(), np.ones(2), "type", "of type .*Liar"),
    (np.ones(2).view(Mine), np.ones(2), "type", "of type .*Mine"),
    ([1.0, 1.0], np.ones(2), "type", "a list of 2"),
    (None, np.ones(2), "type", "None .is there a return"),
    (np.float64(1), np.ones(1), "type", "asked for is a NumPy array"),
    (np.ones(1), np.ones((1, 1)), "shape", r"\(1,\), asked for is \(1, 1\)"),
    (np.ones(2, np.float32), np.ones(2), "dtype", "float32, asked for is float64"),
    (np.array([1, None]), np.ones(2), "dtype", "object"),
    (np.array([1.0, np.nan]), np.ones(2), "not finite", r"nan at \[1\]"),
    (np.array([1.0, -np.inf]), np.ones(2), "not finite", r"-inf at \[1\]"),
    (np.array([[1.0, 2.0]]), np.ones((1, 2)), "value", r"1 of 2 numbers differ, the first at \[0, 1\]"),
    (np.array([True, True]), np.array([True, False]), "value", r"at \[1\]"),
    (np.array([1.0, np.inf]), np.array([np.inf, 1.0]), "not finite", "inf"),
    (np.array([0.0, 1.0]), np.array([-np.inf, 1.0]), "value", r"1 of 2 numbers differ, the first at \[0\]"),
    (np.array([-np.inf]), np.array([np.inf]), "value", "1 of 1 numbers differ"),
    (1.0, 2.0, "value", "the number differs"),
    (True, 1.0, "type", "asked for is a number"),
    (float("nan"), 1.0, "not finite", "nan"),
    (10**400, 1.0, "not finite", "too large"),
    (3.0, 3, "type", "whole number"),
    (4, 3, "value", "differs"),
    ("half", 3, "type", "of type str"),
    (1, True, "type", "True or False"),
    (False, True, "value", "False"),
    ((1.0,), (1.0, 2.0), "type", "a tuple of 1, asked for is a tuple of 2"),
    ([1.0, 2.0], (1.0, 2.0), "type", "a list of 2"),
    ((1.0, 3.0), (1.0, 2.0), "value", "in result 2 of 2"),
])  # fmt: skip
def test_wrong_values_are_told_apart(yours, wanted, kind, text):
    fault = compare(yours, wanted)
    assert fault.kind == kind and re.search(text, fault.text), fault
    assert not same_answer(yours, wanted)


@pytest.mark.parametrize(("yours", "wanted"), [
    (np.array([1 + 1e-10]), np.array([1.0])),
    (np.array([1e6 + 1e-4]), np.array([1e6])),
    (np.array([np.inf, np.nan]), np.array([np.inf, np.nan])),
    (np.float64(2.5), 2.5), (2, 2.0), (np.int64(2), 2), (np.bool_(True), True), (True, np.True_),
    ((np.ones(2), 1), (np.ones(2), 1)), (np.ones((2, 0)), np.ones((2, 0))), (np.array(1j), np.array(1j)),
])  # fmt: skip
def test_right_values_pass(yours, wanted):
    assert compare(yours, wanted) is None and same_answer(yours, wanted)


@pytest.mark.parametrize(("yours", "wanted"), [
    (np.array([1 + 1e-7]), np.array([1.0])),
    (np.array([1.0], np.float32) + np.float32(1e-3), np.array([1.0], np.float32)),
    (np.array([2]), np.array([3])),
])  # fmt: skip
def test_tolerance_follows_the_dtype(yours, wanted):
    assert compare(yours, wanted).kind == "value"
    assert compare(yours, wanted, {str(wanted.dtype): 2.0}) is None


# --- what check says


def said(capsys, function, id="rope.rotate"):
    verdict = check(id, function)
    return verdict, capsys.readouterr().out


def rotate(body):
    """A learner's function, with its lines known to linecache as in a notebook."""
    path = Path("cell.py").resolve()
    path.write_text(body, "utf-8")
    module = {"np": np}
    exec(compile(body, str(path), "exec"), module)
    return module["rotate"]


def test_a_right_answer_is_told_what_was_tried(capsys):
    verdict, text = said(capsys, right)
    assert verdict and verdict.kind == "passed"
    assert text == (
        "Passed: exercise 8.1, Rotate queries by their positions.\n"
        "  Tried: 40 random inputs; a far position (131,071); a wide head (64 channels); numbers with many digits\n"
        "  Holds: each pair keeps its length; logits stay the same when all positions grow by 5; "
        "position 0 changes nothing\n"
    )


def test_a_known_mistake_is_named_on_the_smallest_input(capsys):
    verdict, text = said(capsys, clockwise)
    assert not verdict and verdict.kind == "value"
    # (0, 1) turned by one radian: sin 1 = 0.8415, cos 1 = 0.5403
    assert text == (
        "Not yet. The smallest input that fails:\n"
        "    x         = [[[0, 1]]]\n"
        "    positions = [1]\n"
        "    yours = [[[ 0.8415,  0.5403]]]\n"
        "    right = [[[-0.8415,  0.5403]]]\n"
        "This turns clockwise: the sign of the sine terms is flipped.\n"
        "Try: where should the pair (1, 0) go for a small positive angle? Hints are below.\n"
    )


def test_a_mistake_made_in_place_is_still_named(capsys):
    def overwritten(x, positions):
        angle = positions[:, None] * 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
        x[..., 0::2] = x[..., 0::2] * np.cos(angle) - x[..., 1::2] * np.sin(angle)
        x[..., 1::2] = x[..., 1::2] * np.cos(angle) + x[..., 0::2] * np.sin(angle)
        return x

    _, text = said(capsys, overwritten)
    assert "after that was overwritten.\nIt also changes its input x; work on a copy.\n" in text


def test_the_book_quotes_what_check_says(capsys):
    def half_split(x, positions):
        angle = positions[:, None] * 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)

    _, text = said(capsys, half_split)
    assert f"\n{text}```" in (ROOT / "book" / "exercises.md").read_text("utf-8")


def test_an_unknown_mistake_shows_values_and_the_law_it_breaks(capsys):
    _, text = said(capsys, lambda x, positions: right(x, positions) + 1)
    sides = "    yours = [[[1, 1]]]\n    right = [[[0, 0]]]\n"
    assert sides + "A law that your answer breaks: each pair keeps its length.\n" in text


@pytest.mark.parametrize(("lines", "words"), [
    (["y = x + 1", "return y @ y[:, :1, :1, None]"], ["ValueError", "line 3: return y @"]),
    (["return turn(x)"], ["NameError: name 'turn' is not defined", "line 2: return turn(x)", "is it spelled right?"]),
    (["def turn():", "    return x[0][9]", "return turn()"], ["IndexError", "line 3: return x[0][9]"]),
    (["import sys", "sys.exit()"], ["SystemExit", "line 3: sys.exit()"]),
    (["return rotate(x, positions)"], ["RecursionError", "line 2"]),
    (["return x.tolist()"], ["The result is a list of 1, asked for is a NumPy array."]),
    (["pass"], ["The result is None (is there a return?)"]),
    (["return x[0]"], ["The shape is (1, 2), asked for is (1, 1, 2)."]),
    (["return x.astype(int)"], ["The dtype is int64, asked for is float64."]),
    (["return x / 0"], ["The result has nan at [0, 0, 0]."]),
    (["print('angle', positions)", "return x"], ["    printed: angle [1]"]),
])  # fmt: skip
def test_other_faults_are_told_in_a_few_lines(capsys, lines, words):
    verdict, text = said(capsys, rotate("\n    ".join(["def rotate(x, positions):", *lines])))
    assert not verdict and all(word in text for word in words), text
    assert len(text.splitlines()) <= 9 and "Traceback" not in text


@pytest.mark.parametrize(("body", "end"), [
    ("return x.astype(int)", "The dtype is int64, asked for is float64."),
    ("return x.tolist()", "The result is a list of 1, asked for is a NumPy array."),
    ("return x[0]", "Hints are below."),
])  # fmt: skip
def test_hints_are_named_where_they_help(capsys, body, end):
    assert said(capsys, rotate(f"def rotate(x, positions):\n    {body}"))[1].endswith(f"{end}\n")


def test_a_changed_input_is_an_error_even_if_the_result_is_right(capsys):
    def spoil(x, positions):
        y = right(x, positions)
        x += 1
        return y

    verdict, text = said(capsys, spoil)
    assert verdict.kind == "input changed" and "changes its input x; work on a copy" in text


def test_a_stub_is_not_started_and_no_attempt(capsys, tmp_path):
    (tmp_path / "08_rope.ipynb").touch()
    verdict, text = said(capsys, rotate('def rotate(x, positions):\n    raise NotImplementedError("exercise 8.1")'))
    assert verdict.kind == "not started" and text.startswith("Not started: ")
    assert not (tmp_path / "progress.json").exists()


@pytest.mark.parametrize(
    "cell",
    [
        "#" * 50_000 + " " * 50_000 + "x",
        "\n" * 100_000,
        "def f(x):#" + " " * 99_000,
        "raise NotImplementedError(" * 4_000,
    ],
    ids=["comment", "lines", "spaces", "calls"],
)
def test_a_cell_cannot_keep_the_grader_busy(cell):
    """Fails by never ending: a pattern that looks back tries each way of splitting a hundred thousand characters."""
    assert not any(not_started(cell, find_exercise(id)) for id in ("rope.rotate", "rope.rotary_layer"))


def test_misuse_of_check_is_explained(capsys):
    with pytest.raises(ValueError, match=r"no exercise is called 'rope.turn'; there are .*rope\.rotate"):
        check("rope.turn", right)
    assert "check needs the function itself" in said(capsys, 3)[1]
    assert "the parameters are (x), asked for is rotate(x, positions)" in said(capsys, lambda x: x)[1]


@pytest.mark.parametrize("other", [lambda y: y + 1, lambda y: None, lambda y: y[0], lambda y: 1 / 0])
def test_a_function_that_answers_by_chance_gets_a_verdict(capsys, other):
    rng = np.random.default_rng(0)

    def fickle(x, positions):
        y = right(x, positions)
        return y if rng.integers(2) else other(y)

    verdict, text = said(capsys, fickle)
    assert not verdict and text.startswith("Not yet.")


def show(yours, right):
    return "\n".join(show_sides(yours, right))


def test_sides_are_aligned_and_show_the_digits_that_differ():
    assert show(np.array([[1.0, -2.5], [0.25, 0]]), np.array([[1.0, 2.5], [0.25, 0]])) == (
        "    yours = [[   1, -2.5],\n             [0.25,    0]]\n    right = [[   1,  2.5],\n             [0.25,    0]]"
    )
    assert show(1.00000001, 1.0) == "    yours = 1.00000001\n    right =          1"
    assert show(10**400, 1.0).startswith("    yours = a number of 1329 bits\n")
    assert show(True, False) == "    yours =  True\n    right = False"
    assert show((1.0, 2), (1.0, 3)) == "    result 2 of 2:\n    yours = 2\n    right = 3"
    large = np.zeros((10, 10))
    assert show(large + np.eye(10)[3], large) == "    at [0, 3]\n    yours = 1\n    right = 0"
    assert (
        show(np.array([-1e-7, 3e9]), np.array([1e-7, 3e9]))
        == "    yours = [-1e-07,  3e+09]\n    right = [ 1e-07,  3e+09]"
    )


@pytest.mark.parametrize("clock", ["process_time", "monotonic"])
def test_a_slow_wrong_answer_is_told_soon(capsys, monkeypatch, clock):
    """By either clock, of computing and of waiting: here each look at it finds a second gone."""
    calls = []

    def slow(x, positions):
        calls.append(x)
        return x

    said(capsys, slow)
    at_leisure = len(calls)
    clocks = {"process_time": lambda: 0, "monotonic": lambda: 0} | {clock: itertools.count().__next__}
    monkeypatch.setattr("posenc_ref.grading.exercise.time", SimpleNamespace(**clocks))
    assert said(capsys, slow)[1].startswith("Not yet.")
    assert len(calls) - at_leisure < at_leisure


def test_interrupting_works():
    def stopped(x, positions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("rope.rotate", stopped)


def test_a_notebook_shows_the_text_only():
    assert DisplayFormatter().format(verdict_on(ROTATE, right)) == ({}, {})


def test_check_says_the_same_in_every_process_and_leaves_nothing_behind(tmp_path):
    script = (
        "import sys, numpy as np\nfrom posenc_ref.grading import check\n"
        "print(sorted(m for m in ('torch', 'hypothesis', 'nbformat', 'nbgrader', 'IPython') if m in sys.modules))\n"
        "check('rope.rotate', lambda x, positions: np.where(x > 1, x, 0))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    (output,) = outputs
    assert output.startswith("[]\nNot yet.")
    assert list(tmp_path.iterdir()) == []


# --- progress


def test_progress_counts_attempts_and_keeps_a_pass(tmp_path, capsys):
    (tmp_path / "08_rope.ipynb").touch()
    for function in (clockwise, right, clockwise):
        check("rope.rotate", function)
    entry = json.loads((tmp_path / "progress.json").read_text("utf-8"))["exercises"]["rope.rotate"]
    assert entry == {"attempts": 3, "passed": True, "last": ROTATE.mistakes[0].diagnosis}


def test_progress_is_kept_beside_notebooks_only(tmp_path, capsys, monkeypatch):
    check("rope.rotate", right)  # no notebook here
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "08_rope.ipynb").touch()
    monkeypatch.chdir(tmp_path / "source")
    check("rope.rotate", right)  # the authors' folder
    assert not list(tmp_path.rglob("progress.json*"))
    monkeypatch.setenv("POSENC_PROGRESS", str(tmp_path / "mine.json"))
    check("rope.rotate", right)
    assert progress.read(tmp_path / "mine.json")["rope.rotate"]["passed"]
    monkeypatch.setenv("POSENC_PROGRESS", "off")
    check("rope.rotate", right)
    assert progress.read(tmp_path / "mine.json")["rope.rotate"]["attempts"] == 1


@pytest.mark.parametrize("damage", [
    "", "{", "[]", '{"exercises": 3}', '{"exercises": {"rope.rotate": {"attempts": "2", "passed": true}}}',
    "\xff", "[" * 99_999,
])  # fmt: skip
def test_damaged_progress_is_put_aside(tmp_path, capsys, damage):
    (tmp_path / "08_rope.ipynb").touch()
    (tmp_path / "progress.json").write_text(damage, "latin-1")
    _, text = said(capsys, right)
    assert "progress.json cannot be read; it is kept as progress.json.broken" in text and "Passed" in text
    assert (tmp_path / "progress.json.broken").read_text("latin-1") == damage
    assert progress.read(tmp_path / "progress.json")["rope.rotate"]["attempts"] == 1


def test_progress_that_cannot_be_written_does_not_spoil_the_verdict(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", str(tmp_path / "no" / "such" / "folder.json"))
    verdict, text = said(capsys, right)
    assert verdict and "Progress was not kept: No such file or directory" in text


def test_progress_is_never_half_written(tmp_path, monkeypatch):
    path = tmp_path / "progress.json"
    write_whole(path, "before")

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError):
        write_whole(path, "after")
    assert path.read_text() == "before"


# --- the command line


@pytest.fixture
def learner(tmp_path):
    """The folder of a learner who solved the first exercise of chapter 08 and has no other notebook."""
    folder = tmp_path / "exercises"
    folder.mkdir()
    notebook = nbformat.read(ROOT / "exercises" / "08_rope.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "rope-rotate":
            cell.source = inspect.getsource(right).replace("def right", "def rotate")
    nbformat.write(notebook, folder / "08_rope.ipynb")
    (folder / "progress.json").write_text('{"exercises": {"rope.rotate": {"attempts": 1, "passed": true}}}')
    return folder


@BWRAP
def test_one_learner_gets_a_table_json_and_html(learner, capsys):
    assert command.main([str(learner), "--seed", "11"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"8\.1  Rotate queries by their positions +2/2  passed +1 attempt\b", text)
    assert "01_attention_without_order.ipynb is missing" in text and "Seed 11." in text
    assert "Go on with exercise 1.1" in text
    result = json.loads((learner / "report.json").read_text("utf-8"))
    (graded,) = result["learners"]
    assert graded["score"] == 2 and graded["points"] == sum(e.difficulty for e in all_exercises())
    statuses = {e["id"]: e["status"] for e in graded["exercises"]}
    assert statuses["rope.rotate"] == "passed" and set(statuses) == {e.id for e in all_exercises()}
    page = (learner / "report.html").read_text("utf-8")
    assert "Rotate queries by their positions" in page and "<script" not in page
    first = (learner / "report.json").read_bytes()
    assert command.main([str(learner), "--seed", "11", "--json", "again.json", "--html", "again.html"]) == 0
    assert Path("again.json").read_bytes() == first, "the same submission and seed give the same report"


@BWRAP
def test_a_class_gets_one_report_and_names_are_escaped(learner, tmp_path, capsys):
    room = tmp_path / "class"
    room.mkdir()
    learner.rename(room / "<script>alert(1)")
    (room / "empty").mkdir()
    assert command.main([str(room), "--json", "r.json", "--html", "r.html"]) == 0
    assert [g["score"] for g in json.loads(Path("r.json").read_text("utf-8"))["learners"]] == [2, 0]
    page = Path("r.html").read_text("utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page
    seed = re.search(r"Seed (\d+)\.", capsys.readouterr().out)[1]
    assert seed in page
    pages = [Path("r", unquote(link)) for link in re.findall(r'href="r/([^"]*)"', page)]
    assert [p.name for p in pages] == ["<script>alert(1).html", "empty.html"]
    own = pages[0].read_text("utf-8")
    assert "<script" not in own and seed in own and "Rotate queries by their positions" in own


def test_a_class_needs_the_sandbox(learner, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "Sandbox", lambda: Sandbox(bwrap="no-such-program"))
    assert command.main([str(learner)]) == 0, "one's own folder is graded all the same"
    assert "Isolation is weak" in capsys.readouterr().out
    room = tmp_path / "class"
    room.mkdir()
    learner.rename(room / "a")
    (room / "b").mkdir()
    assert command.main([str(room)]) == 2
    error = capsys.readouterr().err
    assert "bubblewrap" in error and "--allow-weak-isolation" in error
    assert not (room / "report.json").exists()
    assert command.main([str(room), "--allow-weak-isolation"]) == 0
    assert "weak" in json.loads((room / "report.json").read_text("utf-8"))["isolation"]


@pytest.mark.parametrize(("path", "words"), [("nowhere", "is not a folder"), ("void", "holds no notebooks")])
def test_a_wrong_path_is_one_line(tmp_path, capsys, path, words):
    (tmp_path / "void").mkdir()
    assert command.main([path]) == 2
    assert re.fullmatch(rf".*{words}.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(("module", "arguments"), [("hypothesis", ["."]), ("nbgrader.preprocessors", ["release", "x"])])
def test_a_missing_package_is_one_line(tmp_path, module, arguments):
    (tmp_path / "08_rope.ipynb").write_bytes((ROOT / "exercises" / "source" / "08_rope.ipynb").read_bytes())
    (tmp_path / "x").symlink_to(tmp_path / "08_rope.ipynb")
    script = (
        f"import sys; sys.modules[{module!r}] = None; from posenc_ref.grading.__main__ import main; sys.exit(main())"
    )
    run = subprocess.run([sys.executable, "-c", script, *arguments], cwd=tmp_path, capture_output=True, text=True)
    name = module.partition(".")[0]
    assert run.returncode == 2
    assert re.fullmatch(rf"{name} is missing: pip install 'posenc-ref\[\w+\]'\n", run.stderr)


@BWRAP
def test_a_report_into_a_missing_folder_is_said_before_grading(learner, capsys):
    assert command.main([str(learner), "--json", "no/such/report.json"]) == 2
    said = capsys.readouterr()
    assert "cannot write to no/such" in said.err and not said.out
    assert not (learner / "report.html").exists()


def row(**changes):
    plain = {"id": "rope.rotate", "number": "8.1", "chapter": "08_rope", "title": "Rotate", "points": 2, "score": 0,
             "status": "failed", "message": "no", "next_step": "", "attempts": 4}  # fmt: skip
    return Row(**plain | changes)


def test_a_report_names_the_chapter_and_counts_attempts_of_started_answers():
    text = report.table(Graded("x", (row(), row(status="not started")), ()), 100)
    assert text.splitlines()[0] == "Chapter 8: rotary position embedding"
    assert re.search(r"failed +4 attempts\n", text) and re.search(r"not started\n", text)
    page = report.as_html(Graded("x", (row(),), ()), 1, "none")
    assert "Chapter 8: rotary position embedding" in page and "08_rope" not in page


@pytest.fixture(scope="module")
def phone():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        try:
            browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except playwright.Error:
            pytest.skip("needs chromium")
        yield browser.new_page(viewport={"width": 360, "height": 640})
        browser.close()


def test_a_report_fits_a_phone(phone):
    rows = (row(), row(message="line 3: " + "x" * 200, status="grader failed"), row(title="Positions " * 9))
    phone.set_content(report.as_html(Graded("a" * 90, rows, ("note" * 40,)), 1, "none"))
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    title, points, result = (phone.locator("td").nth(n).bounding_box() for n in (1, 2, 3))
    assert title["x"] == points["x"] == result["x"] and title["y"] < points["y"] < result["y"]


# --- releasing


def test_release_is_idempotent_and_removes_solutions(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    source = tmp_path / "source" / "08_rope.ipynb"
    source.write_bytes((ROOT / "exercises" / "source" / "08_rope.ipynb").read_bytes())
    assert command.main(["release", str(source)]) == 0
    first = (tmp_path / "08_rope.ipynb").read_bytes()
    assert command.main(["release", str(source)]) == 0
    assert capsys.readouterr().out == "08_rope.ipynb: written\n08_rope.ipynb: unchanged\n"
    assert (tmp_path / "08_rope.ipynb").read_bytes() == first
    assert b"BEGIN SOLUTION" not in first and b"Passed" not in first


def test_a_source_without_a_solution_s_end_is_refused(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    source = tmp_path / "source" / "08_rope.ipynb"
    text = (ROOT / "exercises" / "source" / "08_rope.ipynb").read_text("utf-8")
    source.write_text(text.replace("### END SOLUTION", ""), "utf-8")
    (tmp_path / "08_rope.ipynb").write_text("as it was")
    assert command.main(["release", str(source)]) == 1
    assert "08_rope.ipynb" in capsys.readouterr().err
    assert (tmp_path / "08_rope.ipynb").read_text() == "as it was"


def test_the_solution_comes_last_and_folded():
    source = nbformat.read(ROOT / "exercises" / "source" / "08_rope.ipynb", as_version=4)
    cells = released(source, [ROTATE]).cells
    ids = [c.id for c in cells]
    at = ids.index("rope-rotate-solution")
    assert cells[at].source.startswith("<details><summary>Solution</summary>")
    assert "def rotate(x, positions):" in cells[at].source and "SOLUTION" not in cells[at].source
    assert "Help: I get" in cells[at - 1].source
    assert at == len(cells) - 1 or cells[at + 1].source.startswith("## ")


def class_folder(tmp_path, learner, *names):
    for name in names:
        shutil.copytree(learner, tmp_path / "class" / name)
    return tmp_path / "class"


@BWRAP
def test_half_a_character_of_a_learner_s_does_not_cost_the_class_its_report(learner, tmp_path, capsys):
    """A lone surrogate, in an exception's text and in a folder's name, cannot be written as UTF-8."""
    folder = class_folder(tmp_path, learner, "amy", os.fsdecode(b"b\xffb"))
    path = folder / "amy" / "08_rope.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "rope-rotate":
            cell.source = 'raise Exception("\\udc80")'
    nbformat.write(notebook, path)
    assert command.main([str(folder), "--seed", "1"]) == 0
    assert len(json.loads((folder / "report.json").read_text("utf-8"))["learners"]) == 2
    assert "b" in (folder / "report.html").read_text("utf-8")


def test_a_stray_notebook_does_not_hide_a_class(learner, tmp_path):
    folder = class_folder(tmp_path, learner, "amy", "zoe")
    (folder / "solutions.ipynb").write_text("{}")
    assert [name for name, _ in command.learners(folder)] == ["amy", "zoe"]
    assert [path for _, path in command.learners(learner)] == [learner]


def test_a_learner_who_cannot_be_read_does_not_stop_the_class(learner, tmp_path, monkeypatch):
    def refuse(folder, name, exercises):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("posenc_ref.grading.grade.read_submission", refuse)
    graded = list(Grader([ROTATE], Sandbox(), seed=1).grade([("amy", learner)]))
    assert graded[0].score == 0 and graded[0].notes == ("the folder cannot be read: Permission denied",)


@BWRAP
@pytest.mark.parametrize(
    "outcomes",
    [
        "[(1, '', '', (99,))]",
        "[(1, '', '', (float('inf'),))]",
        "np.zeros(3)",
        "[(1, '')]",
        "[]",
        "[(1, '', '', ())] * 9",
    ],
)
def test_a_forged_reply_is_the_answer_s_failure(outcomes):
    forged = "\n".join(
        [
            "import sys",
            "frame = sys._getframe()",
            "while 'send' not in frame.f_locals: frame = frame.f_back",
            f"frame.f_locals['send']({{'outcomes': {outcomes}}})",
            "frame.f_locals['leave'](0)",
        ]
    )
    run = Sandbox().run(forged, "f", [(1,)])
    assert re.search("not an answer|results, asked for are", run.failure)


def test_interrupting_the_grader_is_one_line(learner, capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Grader, "grade", interrupt)
    assert command.main([str(learner)]) == 130
    assert "Interrupted. The same command goes on from here." in capsys.readouterr().err


# --- classes: interrupted, large, with odd names


class Box:
    """Stands for the sandbox where the sandbox is not the question: it runs answers here, and counts them."""

    strong = bounded = True
    why_weak, isolation = "", "a test"

    def __init__(self):
        self.ran, self.patience, self.on = [], [], lambda code: None

    def run(self, code, function, cases, torch=None, *, patience=1.0):
        self.patience.append(patience)
        self.on(code)
        self.ran.append(code)
        module = {"np": np}
        exec(code, module)
        return Run(tuple(attempt(module[function], inputs) for inputs in cases))


@pytest.fixture
def box(monkeypatch):
    box = Box()
    monkeypatch.setattr(command, "Sandbox", lambda: box)
    return box


def answering(folder, code, grade_id="rope-rotate"):
    """Put an answer into a learner's notebook."""
    path = folder / "08_rope.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id]
    cell.source = code
    nbformat.write(notebook, path)


RIGHT = inspect.getsource(right).replace("def right", "def rotate")


@pytest.fixture
def room(tmp_path, learner):
    """A class of three, whose answers can be told apart."""
    folder = class_folder(tmp_path, learner, "amy", "bo", "cy")
    for name in ("amy", "bo", "cy"):
        answering(folder / name, f"{RIGHT}\n# {name}")
    return folder


def graded(room, *arguments):
    return command.main([str(room), "--chapter", "8", *arguments])


def journal(room):
    return journal_of(room / "report.json")


def names_of(box):
    return sorted(code.rpartition("# ")[2] for code in box.ran)


def interrupt_at(name):
    def on(code):
        if code.endswith(name):
            raise KeyboardInterrupt

    return on


def reports(room):
    return {p.relative_to(room): p.read_bytes() for p in sorted(room.rglob("report*")) if p.is_file()} | {
        p.relative_to(room): p.read_bytes() for p in sorted(room.glob("report/*"))
    }


def test_an_interrupted_run_goes_on_and_ends_as_if_nothing_had_happened(room, box, capsys):
    box.on = interrupt_at("cy")
    assert graded(room) == 130
    assert not (room / "report.json").exists() and journal(room).exists()
    assert not (room / "report").exists(), "a page names the seed, and the run has not ended"
    box.ran, box.on = [], lambda code: None
    assert graded(room) == 0
    assert names_of(box) == ["cy"]
    text = capsys.readouterr().out
    assert "Going on with an interrupted run: 2 of them are done." in text
    assert not journal(room).exists()
    after = reports(room)
    assert graded(room, "--seed", re.search(r"Seed (\d+)", text)[1]) == 0
    assert reports(room) == after and len(after) == 6


def test_a_learner_cannot_hand_in_a_journal(room, box):
    """Whoever writes a journal decides the grades: none is read from where learners' files lie."""
    box.on = interrupt_at("cy")
    assert graded(room) == 130
    shutil.move(journal(room), room / "report.partial")
    shutil.copy(room / "report.partial", room / "amy")
    box.ran, box.on = [], lambda code: None
    assert graded(room) == 0 and graded(room / "amy") == 0
    assert names_of(box) == ["amy", "amy", "bo", "cy"]


def test_the_seed_of_another_run_is_not_used_again(room, box, capsys):
    box.on = interrupt_at("cy")
    assert graded(room) == 130
    seed, box.on = json.loads(journal(room).read_text("utf-8").splitlines()[0])["seed"], lambda code: None
    assert graded(room, "--chapter", "10") == 0
    assert f"Seed {seed}." not in capsys.readouterr().out


def test_reports_of_an_earlier_run_are_no_learner(room, box, tmp_path):
    assert graded(room) == 0
    assert graded(room, "--html", str(tmp_path / "elsewhere.html")) == 0
    learners = json.loads((room / "report.json").read_text("utf-8"))["learners"]
    assert [g["name"] for g in learners] == ["amy", "bo", "cy"]


def test_a_layout_in_which_nobody_has_a_notebook_is_refused(room, box, capsys):
    before = graded(room), sorted(room.rglob("report*"))
    for name in ("amy", "bo", "cy"):
        (room / name / "08_rope").mkdir()
        shutil.move(room / name / "08_rope.ipynb", room / name / "08_rope")
    assert graded(room) == 2
    error = capsys.readouterr().err
    assert (
        "nobody handed in 08_rope.ipynb" in error
        and "amy/08_rope/08_rope.ipynb is there: is --assignment right?" in error
    )
    assert sorted(room.rglob("report*")) == before[1]


def test_a_chapter_beside_learners_is_refused(room, box, capsys):
    shutil.copy(room / "amy" / "08_rope.ipynb", room)
    assert graded(room) == 2
    assert "holds a chapter and a learner's folder, amy" in capsys.readouterr().err


def test_each_report_has_a_file_of_its_own(room, box, capsys):
    assert graded(room, "--csv", "r.json", "--json", "r.json") == 2
    assert "must be different files" in capsys.readouterr().err


def test_the_page_of_a_class_needs_an_ending(room, box, capsys):
    assert graded(room, "--html", str(room / "out")) == 2
    assert "--html must end in .html" in capsys.readouterr().err and not box.ran


@pytest.mark.parametrize(("change", "again"), [
    (lambda room: answering(room / "amy", f"{RIGHT}\n# amy"), ["cy"]),
    (lambda room: answering(room / "amy", f"{RIGHT}\n# changed\n# amy"), ["amy", "cy"]),
    (lambda room: journal(room).write_bytes(journal(room).read_bytes()[:-9]), ["bo", "cy"]),
    (lambda room: journal(room).write_bytes(b"\xff\n"), ["amy", "bo", "cy"]),
])  # fmt: skip
def test_going_on_grades_anew_what_changed_or_was_lost(room, box, change, again):
    box.on = interrupt_at("cy")
    assert graded(room) == 130
    change(room)
    box.ran, box.on = [], lambda code: None
    assert graded(room) == 0
    assert names_of(box) == again
    learners = json.loads((room / "report.json").read_text("utf-8"))["learners"]
    assert [(g["name"], g["score"]) for g in learners] == [("amy", 2), ("bo", 2), ("cy", 2)]


@pytest.mark.parametrize("arguments", [["--anew"], ["--seed", "-1"], ["--chapter", "3"]])
def test_another_run_does_not_go_on(room, box, arguments, capsys):
    box.on = interrupt_at("cy")
    assert graded(room) == 130
    box.ran, box.on = [], lambda code: None
    assert graded(room, *arguments) == 0
    assert names_of(box) == ["amy", "bo", "cy"] and "Going on" not in capsys.readouterr().out


def test_a_failure_of_the_grader_is_not_remembered(room, box):
    def fail(code):
        if code.endswith("bo"):
            raise OSError("no memory")
        interrupt_at("cy")(code)

    box.on = fail
    assert graded(room) == 130
    box.ran, box.on = [], lambda code: None
    assert graded(room) == 0
    assert names_of(box) == ["bo", "cy"]


def test_a_class_gets_a_csv_that_no_spreadsheet_runs(room, box):
    (room / "cy").rename(room / "=HYPERLINK(1)")
    answering(room / "bo", "def rotate(x, positions):\n    return x")
    assert graded(room) == 0
    head, *lines = (room / "report.csv").read_text("utf-8").splitlines()
    assert head.startswith("learner,score,points,8.1 rope.rotate,8.2 ")
    points = sum(e.difficulty for e in all_exercises() if e.chapter == "08_rope")
    assert [line.split(",")[:4] for line in lines] == [
        ["'=HYPERLINK(1)", "2", str(points), "2"], ["amy", "2", str(points), "2"], ["bo", "0", str(points), "0"],
    ]  # fmt: skip
    assert "numbers differ" in (room / "report" / "bo.html").read_text("utf-8")


def test_reports_hold_no_hidden_input_that_an_answer_puts_into_a_message(room, box):
    answering(room / "bo", "def rotate(x, positions):\n    raise ValueError(f'secret {x}')")
    assert graded(room) == 0
    told = {name: b"ValueError" in content for name, content in reports(room).items()}
    assert told[Path("report.json")] and told[Path("report/bo.html")]
    assert not any(b"secret [" in content for content in reports(room).values())


def test_memory_does_not_grow_with_the_class(learner, tmp_path, box, monkeypatch):
    folder = class_folder(tmp_path, learner, *(f"learner{n}" for n in range(30)))
    made, alive = [], []

    def count(graded):
        made.append(weakref.ref(graded))
        alive.append(sum(ref() is not None for ref in made))
        return summary(graded)

    summary = report.summary
    monkeypatch.setattr(report, "summary", count)
    assert graded(folder) == 0
    assert len(alive) == 30 and max(alive) <= 2


def test_one_who_runs_into_the_time_limit_again_and_again_waits_for_less_and_less(learner, box):
    box.run = lambda *_, patience: box.patience.append(patience) or Run(failure="stopped at the time limit: …")
    its = [e for e in all_exercises() if e.chapter == "08_rope"]
    for exercise in its:
        answering(learner, f"def {exercise.function}(*inputs):\n    while True: pass", exercise.cell)
    (result,) = Grader(its, box, seed=1).grade([("x", learner)])
    assert [r.status for r in result.rows] == ["failed"] * len(its)
    assert max(box.patience) == 1 and min(box.patience) <= 0.5 ** (len(its) - os.cpu_count())


@pytest.mark.parametrize(("arguments", "words"), [
    (["a/exercises", "b/exercises"], "two learners are called exercises"),
    (["a/exercises", "--chapter", "99"], "no exercises of chapter 99; there are 01_attention"),
    (["a/exercises", "--gradebook", "sqlite:///x.db"], "--gradebook needs --assignment"),
    (["class"], "report holds notebooks"),
])  # fmt: skip
def test_what_cannot_be_graded_is_one_line(learner, tmp_path, box, capsys, arguments, words):
    for path in ("a/exercises", "b/exercises", "class/amy", "class/report"):
        shutil.copytree(learner, tmp_path / path)
    try:
        assert command.main(arguments) == 2
    except SystemExit as stop:
        assert stop.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert not box.ran


def test_a_link_in_the_way_of_a_report_is_replaced_and_not_followed(room, box, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    for name in ("report.json", "report/amy.html"):
        (room / name).parent.mkdir(exist_ok=True)
        (room / name).symlink_to(tmp_path / "mine.txt")
    assert graded(room) == 0
    assert (tmp_path / "mine.txt").read_text() == "precious"
    assert not (room / "report" / "amy.html").is_symlink()


def test_a_name_that_is_too_long_for_a_page_does_not_cost_the_class_its_report(room, box, capsys):
    (room / "cy").rename(room / ("c" * 254))
    assert graded(room) == 0
    assert "No page for cccc" in capsys.readouterr().err
    assert len(json.loads((room / "report.json").read_text("utf-8"))["learners"]) == 3


def test_a_bar_is_drawn_on_a_terminal_only(room, box, monkeypatch, capsys):
    assert graded(room) == 0
    assert not capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert graded(room) == 0
    count = 3 * sum(e.chapter == "08_rope" for e in all_exercises())
    assert f"{'█' * 30} {count} of {count}" in capsys.readouterr().err


# --- progress


def test_progress_shows_what_is_done_and_the_next_exercise(learner, tmp_path, capsys):
    entries = {"rope.rotate": (3, True, "passed"), "rope.inv_freq": (2, False, "The base is 1000 here.")}
    (learner / "progress.json").write_text(
        json.dumps({"exercises": {id: {"attempts": n, "passed": p, "last": t} for id, (n, p, t) in entries.items()}})
    )
    assert command.main(["progress", str(learner)]) == 0
    text = capsys.readouterr().out
    count = sum(e.chapter == "08_rope" for e in all_exercises())
    assert re.search(rf"Chapter 8: rotary position embedding +■{'□' * (count - 1)} +1 of {count}  5 attempts\n", text)
    assert "Chapter 1" not in text, "a notebook that was not handed out"
    assert f"Done: 1 of {count} exercises.\n" in text
    assert "Next: exercise 8.2, Frequencies when part of a head turns (●" in text and "in 08_rope.ipynb.\n" in text
    assert text.endswith("  Last time: The base is 1000 here.\n")


def test_progress_starts_with_the_first_exercise_and_ends_with_none(tmp_path, capsys, monkeypatch):
    (tmp_path / "exercises").mkdir()
    assert command.main(["progress"]) == 0  # where no notebook is, the folder exercises
    assert "Next: exercise 1.1, " in capsys.readouterr().out
    all_done = {e.id: {"attempts": 1, "passed": True} for e in all_exercises()}
    monkeypatch.setenv("POSENC_PROGRESS", str(tmp_path / "mine.json"))
    (tmp_path / "mine.json").write_text(json.dumps({"exercises": all_done}))
    assert command.main(["progress"]) == 0
    text = capsys.readouterr().out
    assert f"Done: {len(all_done)} of {len(all_done)} exercises.\n" in text and "Next" not in text
    assert command.main(["progress", "nowhere"]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err


def test_attempts_made_at_the_same_time_are_all_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", str(tmp_path / "mine.json"))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: progress.record(ROTATE, n == 50, "no"), range(100)))
    assert progress.read(tmp_path / "mine.json")["rope.rotate"] | {"last": ""} == {
        "attempts": 100, "passed": True, "last": "",
    }  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["mine.json"]


# --- the page for instructors

INSTRUCTORS = ROOT / "book" / "instructors.md"


def blocks(section):
    """The shell commands of a section."""
    text = INSTRUCTORS.read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))


@BWRAP
def test_the_commands_for_plain_folders_do_what_the_page_says(tmp_path):
    shutil.copytree(ROOT / "exercises", tmp_path / "exercises", ignore=shutil.ignore_patterns("source", "report*"))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = f"set -e\n{blocks('Plain folders')}\n{blocks('What the seed is for')}"
    run = subprocess.run(["bash", "-c", commands], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Seed ") == 2 and "Seed 1. Written: class/report.json" in run.stdout
    for name in re.findall(r"\| `(class/report[^`]*)` \|", INSTRUCTORS.read_text("utf-8")):
        assert (tmp_path / name).is_file()


def test_the_page_for_instructors_states_the_limits_that_hold():
    text, limits = INSTRUCTORS.read_text("utf-8"), Limits()
    assert f"{limits.cpu_s} seconds of computing, and {limits.wall_s:g} seconds on the clock" in " ".join(text.split())
    results = re.findall(r"^\| (passed|failed|not started|missing|grader failed) \|", text, re.MULTILINE)
    assert results == ["passed", "failed", "not started", "missing", "grader failed"]
