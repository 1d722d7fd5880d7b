"""Command line: grade exercises, show progress, or make the learners' notebooks from the authors' sources.

``python -m posenc_ref.grading [PATH…]``, ``… progress [FOLDER]`` and ``… release SOURCE…``
"""

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from posenc_ref.files import write_whole
from posenc_ref.grading import gradebook, progress, report
from posenc_ref.grading.exercise import Exercise, all_exercises
from posenc_ref.grading.grade import Graded, Grader
from posenc_ref.grading.journal import Journal, earlier_run, journal_of, version
from posenc_ref.grading.sandbox import Sandbox


class Refused(Exception):
    """Something is wrong with what was asked for; the message says what."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    commands = {"grade": _grade, "progress": _progress, "release": _release}
    try:
        command = commands.get(arguments[0]) if arguments else None
        return command(arguments[1:]) if command else _grade(arguments)
    except (ModuleNotFoundError, Refused, gradebook.GradebookError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        return 130


def _grade(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="posenc grade",
        description="Grade exercise notebooks. Answers run in a sandbox on inputs drawn anew for each run.",
        epilog="An interrupted run goes on with the same command. For authors: python -m posenc_ref.grading release",
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[Path("exercises")], metavar="PATH",
        help="a learner's folder of notebooks, or a class folder with one such folder for each learner "
        "(default: exercises)",
    )  # fmt: skip
    parser.add_argument(
        "--chapter", action="append", metavar="NN", help="grade this chapter only; may be given several times"
    )
    parser.add_argument(
        "--assignment", metavar="NAME", help="the notebooks of each learner lie in a folder NAME, as nbgrader collects"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where to write the result (default: PATH/report.json)"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE",
        help="where to write the page (default: PATH/report.html); the learners of a class get pages in a folder "
        "of that name beside it",
    )  # fmt: skip
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="a line for each learner (default: PATH/report.csv for a class)"
    )
    parser.add_argument(
        "--gradebook", metavar="URL", help="write scores to nbgrader's gradebook too: sqlite:///gradebook.db"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="draw the hidden inputs of an earlier run again")
    parser.add_argument("--anew", action="store_true", help="do not go on with an interrupted run, begin again")
    parser.add_argument(
        "--allow-weak-isolation", action="store_true",
        help="grade a class without bubblewrap: answers can then read your files and use the network",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.gradebook and not options.assignment:
        parser.error("--gradebook needs --assignment: the name that nbgrader knows")
    exercises = _asked(options.chapter, options.gradebook, options.assignment)
    folder = options.paths[0] if len(options.paths) == 1 else Path()
    html = options.html or folder / "report.html"
    folders = [f for path in options.paths for f in learners(path, options.assignment or "", html.with_suffix(""))]
    names = [name for name, _ in folders]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise Refused(f"two learners are called {double}; rename a folder")
    a_class = len(folders) > 1 or folders[0][1] not in options.paths
    if not any((folder / f"{e.chapter}.ipynb").exists() for _, folder in folders for e in exercises):
        wanted = " or ".join(f"{chapter}.ipynb" for chapter in dict.fromkeys(e.chapter for e in exercises))
        lies = next((p for path in options.paths for p in sorted(path.rglob("*.ipynb"))), None)
        hint = f"; {lies} is there: is --assignment right?" if lies else ""
        raise Refused(f"nobody handed in {wanted}{hint}")
    sandbox = Sandbox()
    if not sandbox.strong:
        if a_class and not options.allow_weak_isolation:
            print(f"A class is graded in a sandbox only. {sandbox.why_weak}.", file=sys.stderr)
            print("Or pass --allow-weak-isolation: answers can then read your files.", file=sys.stderr)
            return 2
        print(f"Isolation is weak: the answers can read your files and use the network. {sandbox.why_weak}.")
    elif not sandbox.bounded:
        print(f"Isolation: {sandbox.isolation}.")
    csv = options.csv or (html.with_suffix(".csv") if a_class else None)
    json = options.json or folder / "report.json"
    if len({path.resolve() for path in (html, csv, json) if path}) < 2 + bool(csv):
        raise Refused("--json, --csv and --html must be different files")
    run = _Run(folders, exercises, sandbox, json, html, csv, a_class)
    written = run(options.seed, options.anew)
    if options.gradebook:
        unknown = gradebook.record(options.gradebook, options.assignment, run.journal)
        written.append(options.gradebook)
        if unknown:
            print(f"Not in the gradebook, and not written there: {', '.join(unknown)}.", file=sys.stderr)
    run.journal.close(done=True)
    print(f"Seed {run.seed}. Written: {', '.join(map(str, written))}.")
    return 0


def _asked(chapters: Sequence[str] | None, url: str | None, assignment: str) -> tuple[Exercise, ...]:
    """The exercises of the chapters that were named, or that the gradebook's assignment has; else all."""
    exercises = all_exercises()
    known = dict.fromkeys(e.chapter for e in exercises)
    wanted = gradebook.chapters_of(url, assignment) & set(known) if url else set(known)
    if chapters:
        by_number = {c.partition("_")[0]: c for c in known} | {c: c for c in known}
        if odd := [c for c in chapters if c.zfill(2) not in by_number]:
            raise Refused(f"there are no exercises of chapter {odd[0]}; there are {', '.join(known)}")
        wanted &= {by_number[c.zfill(2)] for c in chapters}
    if not wanted:
        of_these = f" of chapter {', '.join(chapters)}" if chapters else ""
        raise Refused(f"assignment {assignment} has no notebook of the course{of_these}")
    return tuple(e for e in exercises if e.chapter in wanted)


def learners(path: Path, assignment: str = "", pages: Path = Path("report")) -> list[tuple[str, Path]]:
    """The (name, folder) of each learner under ``path``: itself if it holds a chapter, else its subfolders.

    With an assignment, the notebooks lie in a subfolder of that name. ``pages`` holds reports and is no learner.
    """
    if not path.is_dir():
        raise Refused(f"{path} is not a folder; give a folder of exercise notebooks, or a class folder")
    found = [(p.name, p) for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith((".", "__"))]
    found = [(n, p) for n, p in found if _holds_notebooks(p) or (n != "report" and p.resolve() != pages.resolve())]
    a_chapter_is_here = any((path / f"{e.chapter}.ipynb").exists() for e in all_exercises())
    stray = any(path.glob("*.ipynb")) and any(any(folder.glob("*.ipynb")) for _, folder in found)
    if a_chapter_is_here and not assignment:
        chapters = {e.chapter for e in all_exercises()}
        if inside := [n for n, p in found if n != "source" and any(f.stem in chapters for f in p.glob("*.ipynb"))]:
            raise Refused(f"{path} holds a chapter and a learner's folder, {inside[0]}: move one of them")
    if assignment:
        found = [(name, p if p.is_symlink() else p / assignment) for name, p in found]
    elif a_chapter_is_here or (any(path.glob("*.ipynb")) and not stray):
        return [(path.resolve().name, path)]
    if not found:
        raise Refused(f"{path} holds no notebooks and no learners' folders")
    return found


def _holds_notebooks(folder: Path) -> bool:
    return any(folder.rglob("*.ipynb"))


class _Run:
    """Grades, keeps what it has in a journal, and writes the reports from there."""

    journal: Journal
    seed: int

    def __init__(
        self, folders: Sequence[tuple[str, Path]], exercises: Sequence[Exercise], sandbox: Sandbox,
        json: Path, html: Path, csv: Path | None, a_class: bool,
    ) -> None:  # fmt: skip
        self.folders, self.exercises, self.sandbox = folders, exercises, sandbox
        self.json, self.html, self.csv, self.a_class = json, html, csv, a_class
        self.pages = html.with_suffix("")
        if a_class and not html.suffix:
            raise Refused(f"--html must end in .html, as the learners' pages go into a folder of that name, got {html}")
        if a_class and self.pages.is_dir() and _holds_notebooks(self.pages):
            raise Refused(f"{self.pages} holds notebooks, and the reports go there; choose another with --html")
        for path in (json, html, *([csv] if csv else [])):
            if not os.access(path.parent, os.W_OK):
                raise Refused(f"cannot write to {path.parent}; choose other files with --json, --html and --csv")

    def __call__(self, seed: int | None, anew: bool) -> list[str | Path]:
        """Grade, print and write; returns what was written."""
        path = journal_of(self.json)
        depends = {
            "isolation": self.sandbox.isolation,
            "version": version(),
            "exercises": [e.id for e in self.exercises],
        }
        begun = {} if anew else earlier_run(path)
        # The seed of another run may be known to the learners by now.
        earlier = begun.get("seed") if begun == depends | {"seed": begun.get("seed")} else None
        self.seed = next((n for n in (seed, earlier) if n is not None), secrets.randbelow(10**12))
        try:
            if anew:
                path.unlink(missing_ok=True)
            self.journal = Journal(path, depends | {"seed": self.seed})
        except OSError as error:
            raise Refused(f"cannot write {path}: {error.strerror}") from None
        try:
            return self._graded()
        except BaseException:
            self.journal.close(done=False)
            raise

    def _graded(self) -> list[str | Path]:
        print(f"Grading {len(self.exercises)} exercises of {len(self.folders)} learner{'s' * (len(self.folders) > 1)}.")
        if self.journal.known:
            print(f"Going on with an interrupted run: {self.journal.known} of them are done.")
        isolation, last, summaries = self.sandbox.isolation, None, []
        grader = Grader(self.exercises, self.sandbox, self.seed)
        step = _bar(len(self.folders) * len(self.exercises))
        for last in grader.grade(self.folders, step, self.journal.find):
            self.journal.add(last)
            summaries.append(report.summary(last))
        assert last is not None
        if self.a_class:
            for graded in self.journal:  # not before the end: a page names the seed
                self._write_page(graded)
            print(report.overview(summaries))
            page = report.class_html(summaries, self.seed, isolation, self.pages.name)
        else:
            print(report.table(last, min(shutil.get_terminal_size((100, 24)).columns, 110)))
            page = report.as_html(last, self.seed, isolation)
        written = {self.json: report.as_json(self.journal, self.seed, isolation), self.html: page}
        if self.csv:
            written[self.csv] = report.as_csv(self.journal)
        for path, text in written.items():
            try:
                write_whole(path, text)
            except OSError as error:
                raise Refused(f"cannot write {path}: {error.strerror}") from None
        return [*written, *([self.pages] if self.a_class else [])]

    def _write_page(self, graded: Graded) -> None:
        try:
            self.pages.mkdir(exist_ok=True)
            text = report.as_html(graded, self.seed, self.sandbox.isolation)
            write_whole(self.pages / f"{graded.name}.html", text)
        except OSError as error:  # a name that is too long, say: the score is in the other reports
            print(f"No page for {report.clean(graded.name)}: {error.strerror}", file=sys.stderr)


def _bar(total: int) -> Callable[[], None]:
    """A function to call after each of ``total`` steps, which draws how many are done."""
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            bar = "█" * (30 * done // total)
            end = "\r" + " " * 60 + "\r" if done == total else ""
            print(f"\r{bar:<30} {done} of {total}", end=end, file=sys.stderr, flush=True)

    return step


def _progress(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="posenc progress", description="Show chapter by chapter which exercises are done, and the next one."
    )
    here = Path() if any((Path() / f"{e.chapter}.ipynb").exists() for e in all_exercises()) else Path("exercises")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=here, metavar="FOLDER",
        help="the folder of your notebooks (default: this one, or exercises)",
    )  # fmt: skip
    folder = parser.parse_args(arguments).folder
    if not folder.is_dir():
        raise Refused(f"{folder} is not a folder; give the folder of your notebooks")
    chosen = os.environ.get("POSENC_PROGRESS", "")
    path = Path(chosen) if chosen not in ("", "off") else folder / progress.FILE
    try:
        entries = progress.read(path)
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from None
    given = [e for e in all_exercises() if (folder / f"{e.chapter}.ipynb").exists()]
    print(progress.summary(given or all_exercises(), entries))
    return 0


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
