"""Exercises, their checker, and the grading of notebooks: ``from posenc_ref.grading import check``."""

from posenc_ref.grading.checker import check

__all__ = ["check"]
