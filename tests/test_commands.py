"""The Makefile: what is missing is said in one line, with what to install, and nothing is half-made."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path):
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def script(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def make(folder, *arguments, path=None):
    env = {"PATH": path or os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        [shutil.which("make"), *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )


def installed(folder, python_body):
    """A stand-in for an installed .venv."""
    script(folder / ".venv/bin/python", python_body)
    (folder / ".venv/.ready").touch()


@pytest.mark.parametrize("target", ["book", "test", "lab", "grade", "notebooks", "test-fast"])
def test_an_old_python_is_named_and_nothing_is_made(clone, target):
    script(clone / "old-python", "exit 1")
    result = make(clone, target, "PYTHON=./old-python")
    assert result.returncode != 0
    assert "Python 3.11 or newer is needed: sudo apt install python3 python3-venv" in result.stdout
    assert not (clone / ".venv").exists()


def test_a_python_without_venv_is_named_and_nothing_is_made(clone):
    script(clone / "no-venv", 'if [ "$1" = -c ]; then exit 0; fi; mkdir -p .venv; exit 1')
    result = make(clone, "book", "PYTHON=./no-venv")
    assert result.returncode != 0
    assert "sudo apt install python3-venv" in result.stdout
    assert not (clone / ".venv").exists()


def test_a_stopped_installation_is_not_taken_for_a_finished_one(clone):
    installed(clone, "exit 1")
    (clone / ".venv/.ready").unlink()
    result = make(clone, "book")
    assert result.returncode != 0
    assert "The installation stopped; the same command goes on from here." in result.stdout
    assert not (clone / ".venv/.ready").exists()


@pytest.mark.parametrize("target", ["test", "notebooks"])
def test_missing_torch_is_named(clone, target):
    installed(clone, "exit 1")
    result = make(clone, target)
    assert result.returncode != 0
    assert "PyTorch is missing: .venv/bin/pip install torch==2.13.0" in result.stdout


@pytest.mark.parametrize(("tool", "package"), [("chromium", "chromium"), ("bwrap", "bubblewrap")])
def test_missing_debian_packages_are_named(clone, tool, package):
    installed(clone, "exit 0")
    for other in {"chromium", "bwrap"} - {tool}:
        script(clone / "bin" / other, "exit 0")
    for needed in ("sh", "sed", "touch", "test", "echo"):
        (clone / "bin" / needed).symlink_to(shutil.which(needed))
    result = make(clone, "test", path=str(clone / "bin"))
    assert result.returncode != 0
    assert f"sudo apt install {package}" in result.stdout


def test_help_has_one_line_for_each_command(clone):
    text = (clone / "Makefile").read_text()
    commands = re.findall(r"^([a-z][a-z-]*): .*##", text, re.MULTILINE)
    assert {"book", "test", "test-fast", "lab", "grade", "notebooks", "clean", "help"} <= set(commands)
    lines = make(clone).stdout.splitlines()
    assert [line.split()[1] for line in lines] == commands
    assert all(len(line) < 120 for line in lines)
