"""A course with nbgrader, from the authors' sources to the gradebook; the grades are those of our grader."""

import csv
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from posenc_ref.grading import __main__ as command
from posenc_ref.grading.exercise import all_exercises

pytest.importorskip("nbgrader", reason="needs nbgrader: pip install 'posenc-ref[test]'")

import nbformat
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeFetchAssignment, ExchangeSubmit
from nbgrader.plugins import CsvExportPlugin
from nbgrader.validator import Validator
from traitlets.config import Config

ROOT = Path(__file__).parents[1]
CHAPTER = "01_attention_without_order"
EXERCISES = [e for e in all_exercises() if e.chapter == CHAPTER]
BWRAP = pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap: apt install bubblewrap")


class Course:
    """A course folder, an exchange, and the API behind nbgrader's commands."""

    def __init__(self, root):
        self.root, self.url = root / "course", f"sqlite:///{root}/course/gradebook.db"
        source = self.root / "source" / CHAPTER
        source.mkdir(parents=True)
        shutil.copy(ROOT / "exercises" / "source" / f"{CHAPTER}.ipynb", source)
        (root / "exchange").mkdir()
        (root / "exchange").chmod(0o777)
        self.config = Config()
        self.config.CourseDirectory.root = str(self.root)
        self.config.CourseDirectory.course_id = "positions"
        self.config.Exchange.root = str(root / "exchange")
        self.config.Exchange.cache = str(root / "cache")
        self.api = NbGraderAPI(config=self.config)

    def does(self, step, *arguments):
        result = getattr(self.api, step)(*arguments)
        assert result["success"], result.get("error") or result.get("log")

    def as_student(self, what, folder):
        """Fetch or submit, in a student's folder."""
        config = self.config.copy()
        config.CourseDirectory.root = config.Exchange.assignment_dir = str(folder)
        config.CourseDirectory.assignment_id = CHAPTER
        directory = CourseDirectory(config=config)
        what(coursedir=directory, authenticator=self.api.authenticator, config=config).start()


def solve(path, *, all_but=()):
    """Put the authors' answers into a released notebook."""
    source = nbformat.read(ROOT / "exercises" / "source" / f"{CHAPTER}.ipynb", as_version=4)
    answers = {c.metadata.nbgrader.grade_id: c.source for c in source.cells if "nbgrader" in c.metadata}
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if "nbgrader" in cell.metadata and cell.metadata.nbgrader.grade_id not in all_but:
            cell.source = answers[cell.metadata.nbgrader.grade_id]
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Released, handed in by one student through the exchange and by two others by hand."""
    root = tmp_path_factory.mktemp("nbgrader")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name in ("HOME", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(root / "home"))
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # nbgrader calls alembic
        course = Course(root)
        course.does("generate_assignment", CHAPTER)
        course.does("release_assignment", CHAPTER)
        student = root / "student"
        student.mkdir()
        course.as_student(ExchangeFetchAssignment, student)
        solve(student / CHAPTER / f"{CHAPTER}.ipynb")
        course.as_student(ExchangeSubmit, student)
        course.does("collect", CHAPTER)
        (folder,) = (course.root / "submitted").iterdir()
        folder.rename(course.root / "submitted" / "amy")
        for name in ("bo", "cy"):
            (course.root / "submitted" / name).mkdir()
        shutil.copytree(course.root / "submitted" / "amy" / CHAPTER, course.root / "submitted" / "bo" / CHAPTER)
        released = course.root / "release" / CHAPTER / f"{CHAPTER}.ipynb"
        shutil.copy(released, course.root / "submitted" / "bo" / CHAPTER)
        solve(course.root / "submitted" / "bo" / CHAPTER / f"{CHAPTER}.ipynb", all_but=[EXERCISES[0].cell])
        yield course


def test_nbgrader_removes_the_solutions_and_keeps_what_the_grader_looks_for(course):
    text = (course.root / "release" / CHAPTER / f"{CHAPTER}.ipynb").read_text("utf-8")
    assert "BEGIN SOLUTION" not in text
    cells = {c.metadata.nbgrader.grade_id: c for c in nbformat.reads(text, 4).cells if "nbgrader" in c.metadata}
    for exercise in EXERCISES:
        assert "NotImplementedError" in cells[exercise.cell].source
        assert cells[f"{exercise.cell}-check"].metadata.nbgrader.points == exercise.difficulty


def test_validate_passes_the_source_and_no_stub(course):
    source, release = (
        Validator().validate(str(course.root / folder / CHAPTER / f"{CHAPTER}.ipynb"))
        for folder in ("source", "release")
    )
    assert "failed" not in source and "changed" not in source
    assert len(release["failed"]) == len(EXERCISES)
    assert not list(course.root.rglob("progress.json")), "it would be released, with everything passed"


@BWRAP
def test_grades_and_diagnoses_reach_the_gradebook(course, monkeypatch, capsys):
    def grade():
        assert command.main(["grade", "submitted", "--assignment", CHAPTER, "--gradebook", course.url]) == 0

    monkeypatch.chdir(course.root)
    grade()
    total, first = sum(e.difficulty for e in EXERCISES), EXERCISES[0]
    learners = json.loads(Path("submitted/report.json").read_text("utf-8"))["learners"]
    assert [(g["name"], g["score"], g["points"]) for g in learners] == [
        ("amy", total, total), ("bo", total - first.difficulty, total), ("cy", 0, total),
    ]  # fmt: skip
    with Gradebook(course.url) as book:
        scores = {name: book.find_submission(CHAPTER, name).score for name in ("amy", "bo", "cy")}
        assert scores == {g["name"]: g["score"] for g in learners}
        assert book.find_submission(CHAPTER, "amy").max_score == total
        comment = book.find_comment(first.cell, CHAPTER, CHAPTER, "bo").comment
        assert comment.startswith("not started. About")
        by_hand = book.find_grade(f"{first.cell}-check", CHAPTER, CHAPTER, "bo")
        by_hand.manual_score = 0.5
        book.db.commit()
    grade()
    with Gradebook(course.url) as book:
        CsvExportPlugin(to="grades.csv").export(book)
        grade_cell = book.find_grade(f"{first.cell}-check", CHAPTER, CHAPTER, "bo")
        assert grade_cell.needs_manual_grade and grade_cell.score == 0.5, "what a person decided stays"
    rows = {
        r["student_id"]: float(r["score"]) for r in csv.DictReader(Path("grades.csv").read_text("utf-8").splitlines())
    }
    assert rows == {"amy": total, "bo": total - first.difficulty + 0.5, "cy": 0}


@pytest.mark.parametrize(("arguments", "words"), [
    (["--assignment", "nothing"], f"the gradebook has no assignment nothing; it has {CHAPTER}"),
    (["--assignment", CHAPTER, "--gradebook", "sqlite:////no/such/folder/gradebook.db"], "is not there"),
    (["--assignment", CHAPTER, "--gradebook", "no URL"], "cannot be opened"),
])  # fmt: skip
def test_a_gradebook_that_cannot_be_used_is_said_before_grading(course, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(course.root)
    (course.root / "submitted" / "amy").mkdir(parents=True, exist_ok=True)
    assert command.main(["grade", "submitted", "--gradebook", course.url, *arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err and "Grading" not in said.out
