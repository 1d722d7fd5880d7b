"""Command line: grade exercises, or make the learners' notebooks from the authors' sources.

``python -m posenc_ref.grading [PATH…]`` and ``python -m posenc_ref.grading release SOURCE…``
"""

import argparse
import os
import secrets
import shutil
import sys
from pathlib import Path

from posenc_ref.grading import progress, report
from posenc_ref.grading.exercise import all_exercises
from posenc_ref.grading.grade import Graded, Grader
from posenc_ref.grading.sandbox import Sandbox


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _release(arguments[1:]) if arguments[:1] == ["release"] else _grade(arguments)
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; no report was written.", file=sys.stderr)
        return 130


def _grade(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m posenc_ref.grading",
        description="Grade exercise notebooks. Answers run in a sandbox on inputs drawn anew for each run.",
        epilog="For authors: python -m posenc_ref.grading release --help",
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[Path("exercises")], metavar="PATH",
        help="a learner's folder of notebooks, or a class folder with one such folder for each learner "
        "(default: exercises)",
    )  # fmt: skip
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where to write the result (default: PATH/report.json)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="where to write the page (default: PATH/report.html)")
    parser.add_argument("--seed", type=int, metavar="N", help="draw the hidden inputs of an earlier run again")
    parser.add_argument(
        "--allow-weak-isolation", action="store_true",
        help="grade a class without bubblewrap: answers can then read your files and use the network",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        folders = [f for path in options.paths for f in learners(path)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    sandbox = Sandbox()
    isolation = "bubblewrap" if sandbox.strong else f"weak ({sandbox.why_weak})"
    if not sandbox.strong:
        if len(folders) > 1 and not options.allow_weak_isolation:
            print(f"A class is graded in a sandbox only. {sandbox.why_weak}.", file=sys.stderr)
            print("Or pass --allow-weak-isolation: answers can then read your files.", file=sys.stderr)
            return 2
        print(f"Isolation is weak: the answers can read your files and use the network. {sandbox.why_weak}.")
    folder = options.paths[0] if len(options.paths) == 1 else Path()
    outputs = {
        options.json or folder / "report.json": report.as_json,
        options.html or folder / "report.html": report.as_html,
    }
    if missing := [str(p.parent) for p in outputs if not os.access(p.parent, os.W_OK)]:
        print(f"cannot write to {missing[0]}; choose other files with --json and --html", file=sys.stderr)
        return 2
    seed = secrets.randbelow(10**12) if options.seed is None else options.seed
    graded = _graded(folders, sandbox, seed)
    print(f"Seed {seed}.", end=" ")
    for path, as_text in outputs.items():
        try:
            progress.write(path, as_text(graded, seed, isolation))
        except OSError as error:
            print(f"\ncannot write {path}: {error.strerror}", file=sys.stderr)
            return 1
    print(f"Written: {', '.join(map(str, outputs))}.")
    return 0


def learners(path: Path) -> list[tuple[str, Path]]:
    """The (name, folder) of each learner under ``path``: itself if it holds a chapter, else its subfolders."""
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; give a folder of exercise notebooks, or a class folder")
    found = [(p.name, p) for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith((".", "__"))]
    chapters = {f"{e.chapter}.ipynb" for e in all_exercises()}
    if any((path / name).exists() for name in chapters):
        return [(path.resolve().name, path)]
    if any(path.glob("*.ipynb")) and not any(any(folder.glob("*.ipynb")) for _, folder in found):
        return [(path.resolve().name, path)]
    if not found:
        raise ValueError(f"{path} holds no notebooks and no learners' folders")
    return found


def _graded(folders: list[tuple[str, Path]], sandbox: Sandbox, seed: int) -> list[Graded]:
    exercises = all_exercises()
    total, done, width = len(folders) * len(exercises), 0, shutil.get_terminal_size((100, 24)).columns
    print(f"Grading {len(exercises)} exercises of {len(folders)} learner{'s' * (len(folders) > 1)}.")

    def step() -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            bar = "█" * (30 * done // total)
            print(
                f"\r{bar:<30} {done} of {total}", end="\r" + " " * 60 + "\r" if done == total else "", file=sys.stderr
            )

    graded = list(Grader(exercises, sandbox, seed).grade(folders, step))
    if len(graded) == 1:
        print(report.table(graded[0], min(width, 110)))
    else:
        print(report.overview(graded))
    return graded


def _release(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m posenc_ref.grading release",
        description="Make the learners' notebooks, one folder up: no solutions in the cells, no outputs.",
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="a notebook in exercises/source")
    options = parser.parse_args(arguments)
    from posenc_ref.grading.notebooks import release

    for path in options.sources:
        target = path.resolve().parent.parent / path.name
        try:
            changed = release(path, target)
        except (OSError, ValueError, RuntimeError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        print(f"{target.name}: {'written' if changed else 'unchanged'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
