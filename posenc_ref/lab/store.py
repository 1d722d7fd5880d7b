"""Experiments and their results: ``suites.toml`` lists the jobs, a folder holds a file for each. Needs no torch."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from posenc_ref.files import write_whole
from posenc_ref.lab.config import Job

RESULTS = Path(__file__).parents[2] / "notebooks" / "results"
"""Where the committed results lie, in a clone of the course."""


@dataclass(frozen=True)
class Experiment:
    """Jobs that answer one question."""

    name: str
    about: str
    suites: list[str]
    jobs: list[Job]


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments of ``suites.toml``, by name: each of its encodings with each of its seeds.

    >>> [job.seed for job in experiments()["quick"].jobs]
    [0, 0]
    """
    found = {}
    for entry in tomllib.loads((files("posenc_ref.lab") / "suites.toml").read_text("utf-8"))["experiment"]:
        task, overrides = entry.get("task", "lm"), entry.get("overrides", {})
        jobs = [Job(task, encoding, seed, overrides) for seed in entry["seeds"] for encoding in entry["encodings"]]
        if entry["name"] in found:
            raise ValueError(f"name must be one experiment's, got {entry['name']!r} twice in suites.toml")
        found[entry["name"]] = Experiment(entry["name"], entry["about"], entry["suites"], jobs)
    return found


def suite(name: str) -> list[Job]:
    """Jobs of a suite, each once, in the order of the file; ``"full"`` has all.

    >>> len(suite("quick"))
    2
    """
    names = sorted({s for e in experiments().values() for s in e.suites} | {"full"})
    if name not in names:
        raise ValueError(f"suite must be one of {', '.join(names)}, got {name!r}")
    jobs = [job for e in experiments().values() if name in ("full", *e.suites) for job in e.jobs]
    return list({job.key: job for job in jobs}.values())


def find(name: str) -> Experiment:
    """The experiment of that name; KeyError if there is none."""
    if name not in experiments():
        raise KeyError(f"experiment must be one of {', '.join(experiments())}, got {name!r}")
    return experiments()[name]


def results(
    experiment: str, *, encoding: str | Sequence[str] | None = None, seed: int | None = None, folder: Path = RESULTS
) -> list[dict[str, Any]]:
    """Results of an experiment, by seed, in the order of its encodings; ``encoding`` and ``seed`` choose among them.

    Each has ``job``, ``config``, ``figures`` (what was measured), ``cost``, ``versions`` and ``corpus``.

    Raises
    ------
    KeyError : an experiment that ``suites.toml`` does not know. ValueError : a choice that leaves no job.
    FileNotFoundError : no result, or only one of another recipe: the file's name holds a hash of all settings.
    """
    jobs = find(experiment).jobs
    chosen = [job for job in jobs if encoding in (None, job.encoding) and seed in (None, job.seed)]
    if not chosen:
        raise ValueError(f"{experiment} has no job with encoding = {encoding!r} and seed = {seed!r}")
    return [load(job, folder) for job in chosen]


def load(job: Job, folder: Path = RESULTS) -> dict[str, Any]:
    """The result of ``job``; FileNotFoundError if there is none of its recipe, ValueError if the file lies."""
    path = folder / job.name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing or of another recipe; make it with: posenc lab run --suite full")
    result: dict[str, Any] = json.loads(path.read_text("utf-8"))
    held = Job(**result["job"])
    if not held.key == result["key"] == job.key:
        raise ValueError(f"{path} must hold the result of job {job.key}, got {result['key']} with {held}")
    return result


def save(result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result, whole or not at all."""
    path = folder / Job(**result["job"]).name
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, as_json(result))
    return path


def as_json(result: dict[str, Any]) -> str:
    """Text of a result: a line for each of its parts and each figure, so that a diff shows which one changed.

    >>> print(as_json({"key": "a", "figures": {"loss": 1.5}}), end="")
    {
     "key": "a",
     "figures": {
      "loss": 1.5
     }
    }
    """
    lines = []
    for part, value in result.items():
        text = json.dumps(value, ensure_ascii=False)
        if part == "figures":
            figures = (f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
            text = "{\n" + ",\n".join(figures) + "\n }"
        lines.append(f" {json.dumps(part)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def unknown_files(folder: Path = RESULTS) -> list[Path]:
    """Files that no job of ``suites.toml`` explains: results of an older recipe, or left over."""
    known = {job.name for job in suite("full")}
    return sorted(path for path in folder.iterdir() if path.name not in known) if folder.exists() else []
