"""Scores of the trusted grader in nbgrader's gradebook, where its own autograder would have put them."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from posenc_ref.grading.exercise import find_exercise
from posenc_ref.grading.grade import Graded, Row
from posenc_ref.grading.report import advice


class GradebookError(Exception):
    """The gradebook cannot be used; the message says why."""


def chapters_of(url: str, assignment: str) -> set[str]:
    """The notebooks that an assignment has."""
    with _opened(url) as gradebook:
        return {notebook.name for notebook in _assignment(gradebook, assignment).notebooks}


def record(url: str, assignment: str, learners: Iterable[Graded]) -> list[str]:
    """Write scores and diagnoses of ``learners``; returns the exercises that the gradebook does not have."""
    from sqlalchemy.exc import SQLAlchemyError

    unknown: dict[str, None] = {}
    with _opened(url) as gradebook, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nbgrader's own, about its sessions
        _assignment(gradebook, assignment)
        try:
            for graded in learners:
                gradebook.update_or_create_student(graded.name)
                gradebook.update_or_create_submission(assignment, graded.name)
                for row in graded.rows:
                    if not _record_row(gradebook, assignment, graded.name, row):
                        unknown[row.id] = None
                gradebook.db.commit()
        except SQLAlchemyError as error:
            raise GradebookError(f"{url} cannot be written: {str(error).splitlines()[0]}") from None
    return list(unknown)


def _record_row(gradebook: Any, assignment: str, student: str, row: Row) -> bool:
    from nbgrader.api import MissingEntry

    cell = find_exercise(row.id).cell
    try:
        grade = gradebook.find_grade(f"{cell}-check", row.chapter, assignment, student)
        comment = gradebook.find_comment(cell, row.chapter, assignment, student)
    except MissingEntry:
        return False
    failed = row.status == "grader failed"
    grade.auto_score = None if failed else grade.max_score * row.score / row.points
    grade.needs_manual_grade = failed or grade.manual_score is not None  # as nbgrader does: a person decides
    comment.auto_comment = f"{row.status}. {advice(row)}".strip()
    return True


def _opened(url: str) -> Any:
    try:
        from nbgrader.api import Gradebook
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nbgrader is missing: pip install 'posenc-ref[test]'", name="nbgrader") from None
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        raise GradebookError(f"{url} is not there (nbgrader generate_assignment makes it)")
    try:
        return Gradebook(url)
    except Exception as error:
        raise GradebookError(f"{url} cannot be opened: {str(error).splitlines()[0]}") from None


def _assignment(gradebook: Any, name: str) -> Any:
    from nbgrader.api import MissingEntry

    try:
        return gradebook.find_assignment(name)
    except MissingEntry:
        there = ", ".join(a.name for a in gradebook.assignments) or "none"
        raise GradebookError(
            f"the gradebook has no assignment {name}; it has {there} (nbgrader generate_assignment makes one)"
        ) from None
