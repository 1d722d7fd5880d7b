"""Exercises, their checker, and the grading of notebooks: ``from posenc_ref.grading import check``."""

import os

from posenc_ref.grading import checker
from posenc_ref.grading.exercise import Function

__all__ = ["check"]


def check(id: str, function: Function, *, draw: bool | None = None) -> checker.Verdict:
    """Check an answer: :func:`posenc_ref.grading.checker.check`. Under nbgrader, which sees exceptions only, a verdict
    that is no pass raises one, so that ``nbgrader validate`` does not call an unfinished notebook a success.
    """
    verdict = checker.check(id, function, draw=draw)
    if not verdict and "NBGRADER_EXECUTION" in os.environ:
        raise AssertionError(verdict.diagnosis)
    return verdict
