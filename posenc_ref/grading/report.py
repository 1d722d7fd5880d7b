"""The result of grading for the terminal, as JSON, as CSV, and as HTML pages. Hidden inputs appear in none of them.

What is written for a class takes learners one by one and gives lines or pieces, so that memory does not grow.
"""

import csv
import io
import json
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any
from urllib.parse import quote

from posenc_ref.grading.exercise import chapter_title
from posenc_ref.grading.grade import Graded, Row


@dataclass(frozen=True, slots=True)
class Summary:
    """What an overview of a class tells of a learner."""

    name: str
    score: int
    points: int
    passed: int
    exercises: int
    notes: int


def summary(graded: Graded) -> Summary:
    """One learner in numbers."""
    return Summary(graded.name, graded.score, graded.points, graded.passed, len(graded.rows), len(graded.notes))


def clean(text: str) -> str:
    """Text of a learner's with no control characters, which could move a terminal's cursor or hide lines."""
    return "".join(c if c.isprintable() else " " for c in text)


def table(graded: Graded, width: int) -> str:
    """One learner's exercises, for the terminal."""
    titles = max(len(r.title) for r in graded.rows)
    lines, chapter = [], ""
    for row in graded.rows:
        if row.chapter != chapter:
            chapter = row.chapter
            lines.append(chapter_title(chapter))
        line = f"  {row.number:>5}  {row.title:<{titles}}  {row.score}/{row.points}  {row.status:<11}  {_attempts(row)}"
        lines.append(line.rstrip())
        lines += textwrap.wrap(advice(row), width, initial_indent=" " * 9, subsequent_indent=" " * 9)
    lines += [f"Note: {clean(n)}." for n in graded.notes]
    lines.append(f"Score: {graded.score} of {graded.points}.")
    to_do = next((r for r in graded.rows if r.status != "passed"), None)
    return "\n".join(lines) + (f" Go on with exercise {to_do.number}, {to_do.title}." if to_do else " All passed.")


def _attempts(row: Row) -> str:
    """How often check was called; an answer may be a stub again after that."""
    started = row.attempts and row.status != "not started"
    return f"{row.attempts} attempt{'s' * (row.attempts != 1)}" if started else ""


def overview(learners: Sequence[Summary]) -> str:
    """A class, one line a learner, for the terminal."""
    names = max(len(clean(g.name)) for g in learners)
    return "\n".join(
        f"  {clean(g.name):<{names}}  {g.score:>3}/{g.points}  {g.passed} of {g.exercises} exercises passed"
        + (f"; {g.notes} note{'s' * (g.notes > 1)}" if g.notes else "")
        for g in learners
    )


def advice(row: Row) -> str:
    """What to tell the learner about a row: the diagnosis and the next step."""
    next_step = f"Next: {row.next_step}" if row.next_step else ""
    message = clean(row.message)
    message = message[:1].upper() + message[1:]
    if message and message[-1] not in ".?!":
        message += "."
    return f"{message} {next_step}".strip()


def as_json(learners: Iterable[Graded], seed: int, isolation: str) -> Iterator[str]:
    """The whole result; the same for the same submissions and seed."""
    start = json.dumps({"seed": seed, "isolation": isolation, "learners": []}, indent=1, ensure_ascii=False)
    yield start.removesuffix("]\n}")
    comma = ""
    for graded in learners:
        yield comma + textwrap.indent("\n" + json.dumps(_plain(graded), indent=1, ensure_ascii=False), "  ")
        comma = ","
    yield "\n ]\n}\n"


def _plain(graded: Graded) -> dict[str, Any]:
    return {
        "name": graded.name, "score": graded.score, "points": graded.points, "notes": list(graded.notes),
        "exercises": [asdict(r) for r in graded.rows],
    }  # fmt: skip


def as_csv(learners: Iterable[Graded]) -> Iterator[str]:
    """A line for each learner: score, points, and the score of each exercise."""

    def line(cells: Sequence[Any]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue()

    for number, graded in enumerate(learners):
        if number == 0:
            yield line(["learner", "score", "points", *(f"{r.number} {r.id}" for r in graded.rows)])
        yield line([_cell(graded.name), graded.score, graded.points, *(r.score for r in graded.rows)])


def _cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    text = clean(text)
    return "'" + text if text.lstrip().startswith(("=", "+", "-", "@")) else text


def as_html(graded: Graded, seed: int, isolation: str) -> str:
    """One learner's page. It needs nothing else, and everything of the learner's is escaped."""
    return _page(f"<h1>Exercises</h1>\n{_section(graded)}", seed, isolation)


def class_html(learners: Sequence[Summary], seed: int, isolation: str, folder: str) -> str:
    """The page of a class, with links to the learners' pages in ``folder``."""
    rows = "".join(
        f'<tr><td><a href="{quote(folder)}/{quote(os.fsencode(g.name))}.html">{_text(g.name)}</a></td>'
        f'<td class="n">{g.score} / {g.points}</td><td>{g.passed} of {g.exercises} passed'
        f"{f'; {g.notes} note' + 's' * (g.notes > 1) if g.notes else ''}</td></tr>"
        for g in learners
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Learner", "Points", "Exercises"))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return _page(f"<h1>Exercises of a class</h1>\n{table}", seed, isolation)


def _page(body: str, seed: int, isolation: str) -> str:
    foot = f"<footer>Seed of the hidden inputs: {seed}. Isolation: {_text(isolation)}.</footer>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Exercises: report</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n{foot}\n</body></html>\n"
    )


def _section(graded: Graded) -> str:
    share = 100 * graded.score / graded.points if graded.points else 0
    rows, chapter = [], ""
    for row in graded.rows:
        if row.chapter != chapter:
            chapter = row.chapter
            rows.append(
                f'<tr class="chapter"><th colspan="4" scope="rowgroup">{_text(chapter_title(chapter))}</th></tr>'
            )
        kind = row.status.replace(" ", "-")
        rows.append(
            f'<tr><td class="n">{row.number}</td><td>{_text(row.title)}<p>{_text(advice(row))}</p></td>'
            f'<td class="n">{row.score} / {row.points}</td>'
            f'<td class="n"><span class="{kind}">{row.status}</span><p>{_attempts(row)}</p></td></tr>'
        )
    notes = "".join(f"<li>{_text(n)}</li>" for n in graded.notes)
    return (
        f"<h2>{_text(graded.name)}</h2>"
        f'<p class="score"><b>{graded.score}</b> of {graded.points} points'
        f'<span class="bar" role="img" aria-label="{share:.0f} percent"><i style="width:{share:.0f}%"></i></span></p>'
        + (f"<h3>Notes</h3><ul>{notes}</ul>" if notes else "")
        + '<table class="exercises"><thead><tr><th scope="col">Nr</th><th scope="col">Exercise</th>'
        f'<th scope="col">Points</th><th scope="col">Result</th></tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _text(text: str) -> str:
    return escape(clean(text))


_STYLE = """
:root { color-scheme: light dark; --line: #8886; --good: #1a7f37; --bad: #c0392b; --quiet: #6a6a6a; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff8577; --quiet: #a5a5a5; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
td, th { text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid var(--line); }
td p { margin: .15rem 0 0; color: var(--quiet); overflow-wrap: anywhere; }
td p:empty { display: none; }
.n { white-space: nowrap; font-variant-numeric: tabular-nums; }
.chapter th { padding-top: 1.2rem; }
.passed { color: var(--good); font-weight: 600; }
.failed, .missing, .grader-failed { color: var(--bad); font-weight: 600; }
.not-started { color: var(--quiet); }
.score b { font-size: 1.6rem; }
.bar { display: block; height: .5rem; border-radius: .25rem; background: var(--line); }
.bar i { display: block; height: 100%; border-radius: .25rem; background: var(--good); }
@media (max-width: 36rem) {
  .exercises, .exercises tbody, .exercises th, .exercises td { display: block; }
  .exercises thead { display: none; }
  .exercises tr { display: grid; grid-template-columns: 3rem 1fr; border-bottom: 1px solid var(--line); }
  .exercises tr > * { border: 0; padding: .3rem .3rem .3rem 0; }
  .exercises tr > :nth-child(n + 3) { grid-column: 2; padding-top: 0; }
  .chapter th { grid-column: 1 / -1; }
}
h2, li { overflow-wrap: anywhere; }
footer { color: var(--quiet); font-size: .85rem; }
"""
