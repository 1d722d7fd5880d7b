"""The benchmark runs and reports what it measured; how fast anything is, is not tested."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "bench.py"


@pytest.fixture
def bench(monkeypatch):
    spec = importlib.util.spec_from_file_location("bench", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROUNDS", 2)
    return module


def test_forms_are_compared_with_the_first(bench, capsys):
    calls = []
    result = bench.compare("two forms", {"one": lambda: calls.append(1), "two": lambda: calls.append(2)})
    assert calls == [1, 2, 1, 2, 1, 2]  # once to warm up, then in turn
    assert result["forms"]["one"]["ratio"] == 1 and result["forms"]["two"]["ratio"] > 0
    assert "two forms" in capsys.readouterr().out


def test_extra_memory_is_that_of_the_call(bench):
    few, many = (bench.extra_memory(lambda n=n: np.ones(n * 2**17)) for n in (0, 64))  # 64 MiB
    assert few < 16 and 60 < many < 80


@pytest.mark.parametrize("work", ["rotation", "biases", "contents", "in_numpy"])
def test_each_work_runs(bench, work, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # takes a minute, and is tested elsewhere
    arguments = (torch.bfloat16, 16) if work == "rotation" else (16,)
    tables = getattr(bench, work)(*arguments)
    for table in tables if isinstance(tables, list) else [tables]:
        assert len(table["forms"]) >= 2 and all(form["ratio"] > 0 for form in table["forms"].values())


def test_committed_results_are_those_of_this_script():
    result, source = json.loads(PATH.with_name("results.json").read_text()), PATH.read_text()
    assert result["rounds"] >= 20 and result["threads"] >= 1 and "torch" in result["versions"]
    names = [name for table in result["tables"] for name in table["forms"]]
    assert len(result["tables"]) == 11 and all(name.split(", ")[0] in source for name in names)
