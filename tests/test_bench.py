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
    monkeypatch.setattr(module, "STARTS", 3)
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


@pytest.mark.parametrize("work", ["rotation", "biases", "contents", "in_numpy", "step"])
def test_each_work_runs(bench, work, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # takes a minute, and is tested elsewhere
    arguments = (torch.bfloat16, 16) if work == "rotation" else (16,)
    tables = getattr(bench, work)(*arguments)
    for table in tables if isinstance(tables, list) else [tables]:
        assert len(table["forms"]) >= 2 and all(form["ratio"] > 0 for form in table["forms"].values())


def test_forms_of_a_step_give_what_the_reference_gives(bench):
    """The row for ALiBi, the turned query and key for RoPE: each against attention from positions and formulas."""
    import torch

    from posenc_ref.attention import attention
    from posenc_ref.bias import ALiBi
    from posenc_ref.rotary import RoPE

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 8, 1, 128)
    keys, values = torch.randn(2, 1, 8, 41, 128)
    torch.manual_seed(0)  # step_forms draws the same
    forms = bench.step_forms(40)
    p = torch.arange(41)
    at = {"q_positions": p[-1:], "k_positions": p}
    rope = RoPE(128, layout="half")
    new_q, new_k = rope.rotate(q, k, q_positions=p[-1:], k_positions=p[-1:])
    cached = torch.cat([keys[:, :, :-1], new_k], dim=2)  # the form takes cached keys as turned already
    keys[:, :, -1:], values[:, :, -1:] = k, v
    right = {
        "no encoding": attention(q, keys, values),
        "RoPE, query and new key turned": attention(new_q, cached, values),
        "RoPE, all keys turned": attention(q, keys, values, encoding=rope, **at),
        "ALiBi, row made before": attention(q, keys, values, encoding=ALiBi(8, causal=True), **at),
    }
    right["ALiBi, row made anew"] = right["ALiBi, row made before"]
    for name, expected in right.items():
        assert (forms[name]() - expected).abs().max() < 1e-5, name
    assert forms["no cache, all queries"]().shape == (1, 8, 41, 128)


def test_one_work_leaves_the_tables_of_others(bench, monkeypatch, tmp_path):
    def work(title, ratio):
        return lambda: [{"title": title, "forms": {"x": {"ratio": ratio}}}]

    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(bench, "WORKS", {"a": work("A", 1), "b": work("B", 2)})
    bench.main()
    first = json.loads(bench.RESULTS.read_text())
    monkeypatch.setattr(bench, "WORKS", {"a": work("A", 3), "b": work("B", 4)})
    bench.main("b")
    second = json.loads(bench.RESULTS.read_text())
    assert [t["forms"]["x"]["ratio"] for t in first["tables"]] == [1, 2]
    assert [t["forms"]["x"]["ratio"] for t in second["tables"]] == [1, 4]
    monkeypatch.setattr(bench, "ROUNDS", 99)
    with pytest.raises(SystemExit, match="run all works"):
        bench.main("a")
    assert json.loads(bench.RESULTS.read_text()) == second


def test_committed_results_are_those_of_this_script():
    result, source = json.loads(PATH.with_name("results.json").read_text()), PATH.read_text()
    assert result["rounds"] >= 20 and result["threads"] >= 1 and "torch" in result["versions"]
    names = [name for table in result["tables"] for name in table["forms"]]
    assert len(result["tables"]) == 15 and all(name.split(", ")[0] in source for name in names)
