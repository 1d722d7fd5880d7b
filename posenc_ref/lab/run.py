"""One job from its settings to its result: pure, so that it gives the same figures alone, in a cluster, or again."""

import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch

from posenc_ref.lab import corpus
from posenc_ref.lab.config import RECIPE, Job
from posenc_ref.lab.measures import MEASURES, TIMED, take
from posenc_ref.lab.training import Fit, train_config

DIGITS = 5
"""Significant digits of the figures in a result: more than survive on another machine, fewer than fill the disk."""


def run(job: Job, device: str = "cpu") -> dict[str, Any]:
    """Train and measure; return the result, ready for JSON.

    ``figures`` depend on the job alone; ``cost`` and ``versions`` on the machine. One thread: sums in another order
    differ in their last digits, and two threads on a busy machine cost more than they gain.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _run(job, device)
    finally:
        torch.set_num_threads(threads)


def _run(job: Job, device: str) -> dict[str, Any]:
    config, curve = job.config, []
    if odd := sorted({*config.measures, *config.watch, *config.settings} - MEASURES.keys()):
        raise ValueError(f"measures must be of {', '.join(MEASURES)}, got {odd[0]!r}")
    start = time.process_time()
    overhead = 0.0

    def watch(step: int, fit: Fit) -> None:
        nonlocal overhead
        begin = time.process_time()
        curve.append({"step": step} | take(fit, config.watch))
        overhead += time.process_time() - begin

    fit = train_config(job.encoding, config, job.seed, watch, config.checkpoints, device)
    training = time.process_time() - start - overhead
    figures = take(fit, [name for name in config.measures if name not in TIMED])
    if curve:
        figures["curve"] = curve
    timed = take(fit, [name for name in config.measures if name in TIMED])
    tokens = config.steps * config.batch * config.length
    return {
        "job": job.as_dict(),
        "key": job.key,
        "recipe": RECIPE,
        "config": asdict(config),
        "figures": rounded(figures),
        "cost": {
            "parameters": sum(p.numel() for p in fit.model.parameters()),
            "cpu_seconds": rounded(time.process_time() - start, 3),
            "training_tokens_per_second": rounded(tokens / training, 3),
            **rounded(timed, 3),
            **({} if device == "cpu" else {"device": device}),
        },
        "corpus": corpus.sha256(),
        "versions": {"python": platform.python_version(), "torch": version("torch"), "numpy": version("numpy")},
    }


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """Return ``value`` with all its floats rounded to significant digits, in lists and dicts too.

    >>> rounded({"a": [1.23456789, 1234567.0, 3]})
    {'a': [1.2346, 1234600.0, 3]}
    """
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v, digits) for v in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
