"""The exercise notebooks: from the authors' source with solutions to the learner's copy.

A source, ``exercises/source/NN_name.ipynb``, is in nbgrader's format. Each exercise is these cells, in this order:

1. Markdown: ``## `` + :attr:`~posenc_ref.grading.exercise.Exercise.heading`, a line with
   :attr:`~posenc_ref.grading.exercise.Exercise.effort`, then the task in two or three sentences with the formula;
2. code, ``grade_id`` ``rope-rotate``, a solution cell: the function with its docstring, the answer between
   ``### BEGIN SOLUTION`` and ``### END SOLUTION``;
3. code, ``grade_id`` ``rope-rotate-check``, locked and with points: ``check("rope.rotate", rotate)``;
4. Markdown: two or three ``<details><summary>Hint 1</summary>`` blocks, from a nudge to nearly the answer;
5. Markdown: ``<details><summary>Help: I get …</summary>`` blocks for the common errors.

:func:`released` replaces each solution by ``raise NotImplementedError("exercise 8.1")``, clears outputs and puts the
solution, folded, behind the help. Answers are exec'd by the grader with ``np`` and ``math`` and nothing else.
"""

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

from posenc_ref.bookkit.notebooks import normalised, write
from posenc_ref.grading.exercise import Exercise, all_exercises

CHECK = "-check"


def grade_id(cell: Any) -> str:
    """The nbgrader id of a cell, or an empty string."""
    entry = cell.metadata.get("nbgrader", {})
    return str(entry.get("grade_id", "")) if isinstance(entry, dict) else ""


def exercises_of(chapter: str) -> list[Exercise]:
    """The exercises of a notebook in their order."""
    return [e for e in all_exercises() if e.chapter == chapter]


def released(source: Any, exercises: Sequence[Exercise]) -> Any:
    """The learner's notebook made from the authors' one."""
    try:
        from nbgrader.preprocessors import ClearOutput, ClearSolutions
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nbgrader is missing: pip install 'posenc-ref[test]'", name="nbgrader") from None

    notebook = copy.deepcopy(source)
    clear, resources = ClearSolutions(), {"language": "python"}
    by_cell = {e.cell: e for e in exercises}
    cells: list[Any] = []
    solution: Any = None
    for index, cell in enumerate(notebook.cells):
        if solution and cell.cell_type == "markdown" and cell.source.startswith("## "):
            cells.append(solution)
            solution = None
        exercise = by_cell.get(grade_id(cell))
        if exercise:
            solution = _solution_cell(cell, exercise)
            clear.code_stub = {"python": f'raise NotImplementedError("exercise {exercise.number}")'}
            cell, _ = clear.preprocess_cell(cell, resources, index)
        cells.append(cell)
    notebook.cells = cells + ([solution] if solution else [])
    notebook, _ = ClearOutput().preprocess(notebook, {})
    return normalised(notebook)


def _solution_cell(cell: Any, exercise: Exercise) -> Any:
    code = re.sub(r"^[ \t]*### (BEGIN|END) SOLUTION.*\n?", "", cell.source, flags=re.MULTILINE).strip()
    text = f"<details><summary>Solution</summary>\n\n```python\n{code}\n```\n\n</details>"
    return nbformat.v4.new_markdown_cell(text, id=f"{exercise.cell}-solution")


def release(path: Path, target: Path) -> bool:
    """Write the learner's copy of the source at ``path`` to ``target``; say whether it changed."""
    notebook = released(nbformat.read(path, as_version=4), exercises_of(path.stem))
    before = target.read_text("utf-8") if target.exists() else ""
    if before == nbformat.writes(notebook) + "\n":
        return False
    write(target, notebook)
    return True
