"""The pages of claims and of equations, made from the outputs that the chapters were committed with.

``python -m posenc_ref.bookkit.ledger`` refreshes ``book/claims.md`` and ``book/equations.md``, and writes the verdicts
of claims that had none into ``claims.toml``. A verdict that has changed it only names: ``--accept ID`` takes it over.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc_ref.bookkit.records import VERDICTS, Entry, ledger, read_records
from posenc_ref.files import write_whole

ROOT = Path(__file__).parents[2]
CLAIMS, EQUATIONS = ROOT / "book" / "claims.md", ROOT / "book" / "equations.md"
BEGIN, END = "<!-- made by python -m posenc_ref.bookkit.ledger -->", "<!-- end of what it makes -->"
_EQUATION = re.compile(r"\$\$((?:(?!\$\$|\n\n).)+)\$\$\s*\((eq-[a-z0-9-]+)\)\s*$", re.MULTILINE | re.DOTALL)
_DEFINITION = re.compile(r"<!-- definition: (eq-[a-z0-9-]+) -->")


@dataclass(frozen=True)
class Chapter:
    """What one chapter states, checks and judges."""

    number: int
    title: str
    formulas: dict[str, str]
    """Label of a displayed equation → its LaTeX, in order."""
    definitions: frozenset[str]
    """Labels that are marked as definitions."""
    checks: dict[str, tuple[str, ...]]
    """Label → what ``verify`` printed about it."""
    verdicts: dict[str, tuple[str, str]]
    """Claim → (verdict, because)."""


def chapter(path: Path) -> Chapter:
    """Read a chapter's notebook."""
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    prose = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    records = read_records("".join(output.get("text", [])) for output in outputs)
    title = re.search(r"^# (.+)$", prose, re.MULTILINE)
    return Chapter(
        number=int(path.name.partition("_")[0]),
        title=title[1] if title else path.stem,
        formulas={label: " ".join(formula.split()) for formula, label in _EQUATION.findall(prose)},
        definitions=frozenset(_DEFINITION.findall(prose)),
        checks=records.equations,
        verdicts=records.verdicts,
    )


def chapters(root: Path = ROOT) -> list[Chapter]:
    """The chapters of the book, which are those that its table of contents names, as far as they are written."""
    toc = (root / "_toc.yml").read_text("utf-8")
    names = re.findall(r"file: (notebooks/\d\d_\w+)", toc)
    paths = [root / f"{name}.ipynb" for name in names]
    return [chapter(path) for path in paths if path.exists()]


def kind(verdict: str | None) -> str:
    """Which of the four verdicts it is, or "not yet".

    >>> kind("holds if causal"), kind("holds, with a second table"), kind(None)
    ('holds if', 'holds', 'not yet')
    """
    longest_first = sorted(VERDICTS, key=len, reverse=True)
    return next((one for one in longest_first if (verdict or "").startswith(one)), "not yet")


# what is wrong: complaints


def complaints(book: list[Chapter], entries: dict[str, Entry]) -> Iterator[str]:
    """What does not agree between the chapters and the ledger."""
    for id, entry in entries.items():
        given = [(one.number, *one.verdicts[id]) for one in book if id in one.verdicts]
        if not given:
            yield f"{id} has no verdict: {entry.claim}"
        elif len(given) > 1:
            yield f"{id} has verdicts in chapters {', '.join(str(number) for number, *_ in given)}: keep one"
        elif given[0][1] != entry.verdict:
            yield f"{id} is “{entry.verdict or 'not yet'}” in claims.toml, “{given[0][1]}” in chapter {given[0][0]}"
        for number, verdict, because in given:
            if kind(verdict) != "cannot be tested here" and not re.search(r"\d", because + verdict):
                yield f"{id} in chapter {number} gives no number: {because}"
    for one in book:
        yield from (f"{id} in chapter {one.number} is not in claims.toml" for id in one.verdicts if id not in entries)
        for label in one.formulas.keys() - one.checks.keys() - set(one.definitions):
            yield f"{label} in chapter {one.number} is neither checked nor marked as a definition"


def accepted(toml: str, verdicts: dict[str, str]) -> str:
    """The text of ``claims.toml`` with these verdicts.

    >>> print(accepted('[P1]\\nclaim = "A."\\nverdict = "false"\\n\\n[P2]\\nclaim = "B."\\n', {"P1": "holds"}))
    [P1]
    claim = "A."
    verdict = "holds"
    <BLANKLINE>
    [P2]
    claim = "B."
    """
    for id, verdict in verdicts.items():
        line = f"verdict = {json.dumps(verdict, ensure_ascii=False)}"
        entry = re.compile(rf"(^\[{id}\]\nclaim = .+\n)(?:verdict = .+\n)?", re.MULTILINE)
        toml = entry.sub(lambda found, line=line: f"{found[1]}{line}\n", toml)  # type: ignore[misc]
    return toml


# the pages


def claims_list(book: list[Chapter], headings: dict[str, str], entries: dict[str, Entry]) -> str:
    """Markdown: all claims under their headings, each with verdict, reason and link."""
    found = {id: (one, *given) for one in book for id, given in one.verdicts.items()}
    total = Counter(kind(found[id][1] if id in found else None) for id in entries)
    names = {
        "holds": "hold",
        "holds if": "hold under a condition",
        "false": "are false",
        "not yet": "have no verdict yet",
    }
    counts = [f"{total[one]} {names.get(one, one)}" for one in (*VERDICTS, "not yet") if total[one]]
    parts = [f"{len(entries)} statements: {', '.join(counts)}.", CONTROLS]
    for letter, heading in headings.items():
        items = []
        for id, entry in entries.items():
            if not id.startswith(letter):
                continue
            if id in found:
                one, verdict, because = found[id]
                lines = [
                    badge(kind(verdict), verdict)
                    + f": {plain(because)}. {{ref}}`Chapter {one.number} <claim-{id.lower()}>`"
                ]
            else:
                lines = [badge("not yet", "not yet")]
            source = f" ({entry.source})" if entry.source else ""
            items.append("\n: ".join([f"**{id}** {plain(entry.claim)}{source}", *lines]))
        parts += [f"## {heading}", in_ledger(items)]
    return "\n\n".join(parts)


def equations_list(book: list[Chapter]) -> str:
    """Markdown: all equations by chapter, each with what was compared and the bound that held."""
    verified = sum(label in one.checks for one in book for label in one.formulas)
    defined = sum(len(one.definitions) for one in book)
    parts = [f"{verified} equations were checked; {defined} define something.", CONTROLS]
    for one in book:
        items = []
        for label, formula in one.formulas.items():
            if label in one.checks:
                lines = [f"{badge('checked', 'checked')}: {plain(held)}" for held in dict.fromkeys(one.checks[label])]
            else:
                lines = [badge("definition", "definition")]
            items.append("\n: ".join([f"{{eq}}`{label}` `{label}`", f"$$ {formula} $$", *lines]))
        if items:
            parts += [f"## {one.number} {one.title}", in_ledger(items)]
    return "\n\n".join(parts)


CONTROLS = '<div class="ledger-controls"></div>'
"""Where ledger.js puts its search field."""


def in_ledger(items: list[str]) -> str:
    """A definition list that ledger.css and ledger.js know."""
    return ":::{container} ledger\n" + "\n\n".join(items) + "\n:::"


def badge(kind: str, text: str) -> str:
    """A word that says how it came out."""
    return f'<b class="badge-{kind.replace(" ", "-")}">{plain(text)}</b>'


def plain(text: str) -> str:
    r"""Markdown that shows the text as it is.

    >>> print(plain("|x| < 2·10^5 [a_b]"))
    \|x\| \< 2·10\^5 \[a\_b\]
    """
    return re.sub(r"([\\`*_{}\[\]<>$|#~^])", r"\\\1", text)


def renewed(page: str, made: str) -> str:
    """The page with what is made put between its marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must have {BEGIN} and {END} once each")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def pages(book: list[Chapter]) -> dict[Path, str]:
    """Both pages as they should be."""
    made = {CLAIMS: claims_list(book, *ledger()), EQUATIONS: equations_list(book)}
    return {path: renewed(path.read_text("utf-8"), text) for path, text in made.items()}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m posenc_ref.bookkit.ledger", description=__doc__)
    parser.add_argument("--accept", nargs="+", default=[], metavar="ID", help="claims whose changed verdict is meant")
    options = parser.parse_args(arguments)
    book, entries = chapters(), ledger()[1]
    given = {id: verdict for one in book for id, (verdict, _) in one.verdicts.items() if id in entries}
    if odd := sorted(set(options.accept) - given.keys()):
        parser.error(f"no chapter judges {', '.join(odd)}")
    take = {id: verdict for id, verdict in given.items() if id in options.accept or not entries[id].verdict}
    toml = Path(__file__).with_name("claims.toml")
    write_whole(toml, accepted(toml.read_text("utf-8"), take))
    ledger.cache_clear()
    for path, text in pages(book).items():
        write_whole(path, text)
    found = list(complaints(book, ledger()[1]))
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
