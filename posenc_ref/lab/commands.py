"""Command line of the lab: ``posenc lab run`` and ``posenc lab show``."""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posenc_ref.lab import store
from posenc_ref.lab.config import Job


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="posenc lab", description="Train small models and show what was measured.")
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="run the experiments of a suite whose results are missing")
    runner.add_argument("--suite", default="quick", help="quick, chapters, book or full (default: quick)")
    runner.add_argument("--experiment", help="only this one of the suite")
    runner.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, such as tcp://10.0.0.1:8786")
    runner.add_argument("--workers", type=int, default=2, metavar="N", help="local processes without one (default: 2)")
    runner.add_argument("--device", default="cpu", help="where models are trained, such as cuda (default: cpu)")
    shower = commands.add_parser("show", help="list the experiments, or show the figures of one")
    shower.add_argument("experiment", nargs="?")
    for command in (runner, shower):
        command.add_argument("--folder", type=Path, default=store.RESULTS, help="where the results lie")
    options = parser.parse_args(arguments)
    try:
        return _run(options) if options.command == "run" else _show(options)
    except (FileNotFoundError, KeyError, ValueError) as error:
        print(error.args[0] if isinstance(error, KeyError) else error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; what is done is kept, and the same command goes on from here.", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    jobs = store.suite(options.suite)
    if options.experiment:
        experiment = store.find(options.experiment)
        jobs = [job for job in jobs if job in experiment.jobs]
        if not jobs:
            suites = ", ".join(sorted({*experiment.suites, "full"}))
            raise ValueError(f"suite must hold the experiment {options.experiment}: {suites}; got {options.suite!r}")
    missing = [job for job in jobs if not (options.folder / job.name).exists()]
    print(f"{len(jobs)} jobs, {len(jobs) - len(missing)} of them done before.")
    if not missing:
        return 0
    from posenc_ref.lab.cluster import connect, run_all  # torch and Dask take a second to import

    progress = Progress(len(missing))
    try:
        with connect(options.scheduler, options.workers) as client:
            failed = run_all(missing, client, options.folder, progress, options.device)
    except OSError as error:
        print(f"cannot reach the scheduler: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


class Progress:
    """A bar with the number of jobs done and the time left; one line for each job where there is no terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.start = total, 0, time.monotonic()
        self.terminal = sys.stderr.isatty()

    def __call__(self, job: Job, message: str) -> None:
        """Count one job; say why it failed, if it did."""
        self.done += 1
        left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        bar = "█" * (30 * self.done // self.total)
        text = f"{bar:<30} {self.done} of {self.total}, about {left / 60:.0f} min left  {job.name}"
        print(f"\r\033[K{text}" if self.terminal else text, end="" if self.terminal else "\n", file=sys.stderr)
        if message:
            print(f"\n{job.name} failed: {message}", file=sys.stderr)
        if self.terminal and self.done == self.total:
            print(file=sys.stderr)


def _show(options: argparse.Namespace) -> int:
    if options.experiment is None:
        for e in store.experiments().values():
            done = sum((options.folder / job.name).exists() for job in e.jobs)
            print(f"{e.name:<20} {done:>3} of {len(e.jobs):<3} {'/'.join(e.suites):<14} {e.about}")
        return 0
    found = store.results(options.experiment, folder=options.folder)
    print(f"{store.find(options.experiment).about}\nMean over seeds, and the range.")
    for encoding in dict.fromkeys(str(r["job"]["encoding"]) for r in found):
        runs = [dict(_leaves(r["figures"])) for r in found if str(r["job"]["encoding"]) == encoding]
        print(f"\n{encoding}, {len(runs)} seeds")
        for name in runs[0]:
            numbers = [run[name] for run in runs]
            print(f"  {name:<40} {statistics.fmean(numbers):>9.4g}   {min(numbers):.4g} … {max(numbers):.4g}")
    return 0


def _leaves(figures: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The single numbers, named by their path; lists hold curves, tables and pairs, which the chapters draw."""
    if isinstance(figures, dict):
        for key, value in figures.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(figures, int | float):
        yield path, figures
