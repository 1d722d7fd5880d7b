"""The package as a whole: what importing costs, lint, types, and a wheel that needs NumPy only."""

import importlib.metadata
import os
import re
import shutil
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, cwd=ROOT, **environment):
    result = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


def test_import_takes_less_than_three_tenths_of_a_second():
    """Processor time of the import in five fresh processes, their median: other work on the machine does not count."""
    script = "import time; t = time.process_time(); import posenc_ref; print(time.process_time() - t)"
    run(sys.executable, "-c", script)  # writes the byte code and warms the disk cache
    assert statistics.median(float(run(sys.executable, "-c", script)) for _ in range(5)) <= 0.3


def test_import_loads_numpy_and_array_api_compat_only():
    script = """
import sys, sysconfig
before = set(sys.modules)
import posenc_ref, posenc_ref.positions, posenc_ref.rotary, posenc_ref.embedding
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - sys.stdlib_module_names))
"""
    loaded = {n for n in run(sys.executable, "-c", script).split() if not n.startswith("__")}
    assert loaded <= {"posenc_ref", "numpy", "array_api_compat"} and "numpy" in loaded


@pytest.mark.parametrize(
    "command",
    [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]],
    ids=["lint", "format", "types"],
)
def test_code_is_clean(command):
    run(sys.executable, "-m", *command, *([] if command == ["mypy"] else ["posenc_ref", "tests"]))


def test_mypy_is_strict():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r"^strict = true$", pyproject, re.M) and not re.search(
        r"ignore_errors|disable_error_code", pyproject
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "posenc_ref", source / "posenc_ref", ignore=shutil.ignore_patterns("__pycache__"))
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
        ".",
        cwd=source,
    )
    return next(source.glob("*.whl"))


def test_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode()
    files = {str(p.relative_to(ROOT)) for p in (ROOT / "posenc_ref").rglob("*.*") if p.suffix != ".pyc"}
    assert {n for n in names if ".dist-info/" not in n} == files
    required = [r for r in re.findall(r"^Requires-Dist: (.*)$", metadata, re.M) if "extra ==" not in r]
    assert sorted(re.match(r"[\w-]+", r)[0] for r in required) == ["array-api-compat", "numpy"]


def test_wheel_works_with_numpy_alone(wheel, tmp_path):
    """In a directory with the wheel, NumPy and array-api-compat, and no other package in reach."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    for name in ("numpy", "array-api-compat"):
        files = importlib.metadata.files(name)
        for top in {f.parts[0] for f in files} - {"..", "__pycache__"}:
            (tmp_path / top).symlink_to(files[0].locate().parents[len(files[0].parts) - 1] / top)
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import importlib.util
assert importlib.util.find_spec("torch") is None
import numpy as np, posenc_ref
from posenc_ref.positions import causal
assert posenc_ref.__file__.startswith({str(tmp_path)!r})
rope, x, p = posenc_ref.create("rope", head_dim=4, layout="half"), np.ones((1, 2, 3, 4)), np.arange(3)
y = posenc_ref.attention(x, x, x, encoding=rope, q_positions=p, k_positions=p, mask=causal(p, p))
assert np.allclose(y, 1)
print("works")
"""
    assert run(sys.executable, "-I", "-S", "-c", script, cwd=tmp_path) == "works\n"


def test_doctests_are_run():
    """Every public function shows an example; the Makefile runs them."""
    assert "--doctest-modules" in (ROOT / "Makefile").read_text(encoding="utf-8")
    script = """
import doctest, importlib, inspect, pkgutil, posenc_ref
from posenc_ref import attention, checks, positions, registry
from posenc_ref import embedding, rotary
for package in (attention, checks, positions, registry, embedding, rotary):
    for name, f in vars(package).items():
        if inspect.isfunction(f) and f.__module__.startswith("posenc_ref") and not name.startswith("_"):
            if not doctest.DocTestFinder(recurse=False).find(f)[0].examples:
                print(f.__module__, name)
"""
    assert run(sys.executable, "-c", script) == ""
