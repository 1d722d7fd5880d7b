"""verify and claim refuse what proves nothing; executing a notebook is all or nothing, and gives the same bytes."""

import nbformat
import numpy as np
import pytest

from posenc_ref.bookkit import claim, verify
from posenc_ref.bookkit.notebooks import CellFailed, execute, main
from posenc_ref.bookkit.records import NotVerified, claims, read_records


def notebook(path, *sources):
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(sources)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.mark.parametrize(
    ("lhs", "rhs", "message"),
    [
        (np.ones(3), np.ones(3) + 2e-12, "largest difference 2e-12"),
        (np.ones((2, 3)), np.ones(3), "left has shape"),
        (np.ones(1), 1.0, "left has shape"),
        (np.array([np.nan]), np.array([np.nan]), "not all numbers are finite"),
        (np.array([np.inf]), np.array([np.inf]), "not all numbers are finite"),
        (np.zeros(0), np.zeros(0), "both sides are empty"),
        (True, False, "largest difference 1"),
    ],
)
def test_verify_fails(lhs, rhs, message, capsys):
    with pytest.raises(NotVerified, match=message):
        verify("eq-x", lhs, rhs, 1e-12)
    assert not capsys.readouterr().out


def test_verify_refuses_what_cannot_fail():
    x = np.ones(3)
    with pytest.raises(ValueError, match="compares an object with itself"):
        verify("eq-x", x, x, 1e-12)
    with pytest.raises(ValueError, match=r"tol must be in \[0, 1\), got inf"):
        verify("eq-x", x, x + 5, float("inf"))
    with pytest.raises(ValueError, match="label must look like"):
        verify("rope", x, x + 0, 1e-12)
    with pytest.raises(TypeError, match="both sides must be numbers"):
        verify("eq-x", "a", "a", 1e-12)


def test_verify_takes_tensors_and_complex_numbers(capsys):
    torch = pytest.importorskip("torch")
    verify("eq-a", torch.tensor([1.0, 2.0], requires_grad=True), np.array([1.0, 2.0]), 1e-6)
    with pytest.raises(NotVerified):
        verify("eq-a", np.array([1j]), np.array([1.0]), 1e-6)
    assert capsys.readouterr().out == "eq-a holds: below 1e-06 (2, float32)\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": "Z9", "verdict": "holds", "because": "x"}, "claim id must be one of"),
        ({"id": "O1", "verdict": "perhaps", "because": "x"}, "verdict must start with one of"),
        ({"id": "O1", "verdict": "holds", "because": "a\nb"}, "because must be one line"),
    ],
)
def test_claim_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        claim(**arguments)


def test_records_are_read_back_from_what_was_printed(capsys):
    verify("eq-a", 1.0, 1.0, 1e-12, "one pair")
    verify("eq-a", 2, 2, 0, "one number")
    for id in claims():
        claim(id, verdict="holds if causal", because=f"reason (of {id})")
    records = read_records([capsys.readouterr().out])
    assert records.equations == {"eq-a": ("below 1e-12 (one pair)", "exactly (one number)")}
    assert records.verdicts == {id: ("holds if causal", f"reason (of {id})") for id in claims()}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import time; time.sleep(60)", "CellTimeoutError"),
        ("import os; os._exit(1)", "DeadKernelError"),
    ],
)
def test_a_failing_notebook_is_named_and_left_alone(tmp_path, source, reason, capsys):
    path = notebook(tmp_path / "bad.ipynb", "print('fine')", source)
    before = path.read_bytes()
    with pytest.raises(CellFailed, match=rf"bad.ipynb: cell 1: {reason}"):
        execute(path, timeout=3)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["bad.ipynb"]


def test_the_command_line_stops_with_status_1(tmp_path, capsys):
    assert main(["execute", str(notebook(tmp_path / "bad.ipynb", "x"))]) == 1
    assert main(["execute", str(tmp_path / "missing.ipynb")]) == 1
    (tmp_path / "broken.ipynb").write_text("{")
    assert main(["normalise", str(tmp_path / "broken.ipynb")]) == 1
    error = capsys.readouterr().err
    for part in ("bad.ipynb: cell 0: NameError", "missing.ipynb", "broken.ipynb"):
        assert part in error


def test_executing_twice_gives_the_same_bytes(tmp_path):
    figure = "from posenc_ref.bookkit import use_style\nuse_style()\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    prints = "for i in range(50): print(i, flush=True)"
    path = notebook(tmp_path / "good.ipynb", figure, prints)
    execute(path)
    once = path.read_bytes()
    execute(path)
    assert path.read_bytes() == once
    cells = nbformat.read(path, as_version=4).cells
    assert [c.execution_count for c in cells] == [1, 2]
    assert len(cells[1].outputs) == 1
    assert any("image/png" in output.get("data", {}) for output in cells[0].outputs)
