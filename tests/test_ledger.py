"""Claims and equations: every claim has one verdict, none changes unnoticed, and every check can fail."""

import ast
import json
import re
from functools import cache

import numpy as np
import pytest

from posenc_ref.bookkit import ledger as module
from posenc_ref.bookkit import verify
from posenc_ref.bookkit.ledger import CLAIMS, EQUATIONS, ROOT, Chapter, accepted, chapter, chapters, complaints, kind
from posenc_ref.bookkit.records import VERDICTS, Entry, NotVerified, ledger

BOOK = chapters()
HEADINGS, ENTRIES = ledger()
TOML = ROOT / "posenc_ref" / "bookkit" / "claims.toml"


# the ledger, as it is


def test_every_claim_has_one_verdict_which_is_the_ledgers():
    assert list(complaints(BOOK, ENTRIES)) == []


def test_the_pages_are_those_of_the_outputs():
    for path, text in module.pages(BOOK).items():
        assert path.read_text("utf-8") == text, "refresh it: python -m posenc_ref.bookkit.ledger"


def test_ids_and_sources():
    assert {id[0] for id in ENTRIES} == set(HEADINGS)
    assert len(ENTRIES) > 65
    assert len({entry.claim for entry in ENTRIES.values()}) == len(ENTRIES)
    found = [entry for id, entry in ENTRIES.items() if id.startswith("N")]
    assert len(found) >= 15
    keys = set(re.findall(r"^@\w+\{([^,]+),", (ROOT / "book/references.bib").read_text("utf-8"), flags=re.MULTILINE))
    for entry in found:
        cited = re.findall(r"\{cite\}`([^`]+)`", entry.source)
        assert set(cited) <= keys
        assert cited or re.fullmatch(r"\[[^\]]+\]\(https://[^)\s]+\)", entry.source)


def test_every_equation_of_the_book_is_on_the_page():
    text = EQUATIONS.read_text("utf-8")
    labels = [label for one in BOOK for label in one.formulas]
    assert re.findall(r"^\{eq\}`(.+)` `\1`$", text, flags=re.MULTILINE) == labels
    assert len(labels) > 100
    assert all(label in one.checks or label in one.definitions for one in BOOK for label in one.formulas)


# the complaints, on a book that is broken on purpose


def book(verdict="holds", because="2 of 2", times=1):
    verdicts = {"P1": (verdict, because)} if verdict else {}
    return [Chapter(number, "T", {}, frozenset(), {}, verdicts) for number in range(1, times + 1)]


P1 = {"P1": Entry("A.", "holds")}


def test_a_good_book_has_no_complaints():
    assert list(complaints(book(), P1)) == []


@pytest.mark.parametrize(
    ("chapters", "entries", "complaint"),
    [
        (book(verdict=None), P1, "P1 has no verdict: A."),
        (book(verdict="holds if causal"), P1, "P1 is “holds” in claims.toml, “holds if causal” in chapter 1"),
        (book(), {"P1": Entry("A.")}, "P1 is “not yet” in claims.toml, “holds” in chapter 1"),
        (book(times=2), P1, "P1 has verdicts in chapters 1, 2: keep one"),
        (book(because="one sees it"), P1, "P1 in chapter 1 gives no number: one sees it"),
        (book(), {}, "P1 in chapter 1 is not in claims.toml"),
        (
            [Chapter(1, "T", {"eq-a": "a"}, frozenset(), {}, {"P1": ("holds", "2 of 2")})],
            P1,
            "eq-a in chapter 1 is neither checked nor marked as a definition",
        ),
    ],
)
def test_a_broken_book_is_noticed(chapters, entries, complaint):
    assert list(complaints(chapters, entries)) == [complaint]


def test_what_cannot_be_tested_needs_no_number():
    verdict = "cannot be tested here: no source"
    assert list(complaints(book(verdict, "it has none"), {"P1": Entry("A.", verdict)})) == []


@pytest.mark.parametrize("verdict", VERDICTS)
def test_kinds(verdict):
    assert kind(f"{verdict} or so") == verdict


def test_a_chapter_is_read(tmp_path):
    prose = ["# Title\n", "$$ a\n= b $$ (eq-a)\n\n$$ c $$ (eq-c)\n", "<!-- definition: eq-c -->"]
    cells = [
        {"cell_type": "markdown", "source": prose},
        {"cell_type": "code", "source": ["x"], "outputs": [
            {"text": ["eq-a holds: exactly (one)\n", "eq-a holds: below 1e-12 (two)\n"]},
            {"text": ["Claim P1 (A.)\n  verdict: false\n  because: 3\n"]},
        ]},
    ]  # fmt: skip
    path = tmp_path / "07_x.ipynb"
    path.write_text(json.dumps({"cells": cells}), "utf-8")
    assert chapter(path) == Chapter(
        7, "Title", {"eq-a": "a = b", "eq-c": "c"}, frozenset({"eq-c"}),
        {"eq-a": ("exactly (one)", "below 1e-12 (two)")}, {"P1": ("false", "3")},
    )  # fmt: skip


def test_accepting_changes_only_the_verdicts_that_are_named():
    text = TOML.read_text("utf-8")
    assert accepted(text, {id: entry.verdict for id, entry in ENTRIES.items() if entry.verdict}) == text
    changed = accepted(text, {"P1": 'holds if "quoted"'})
    assert changed.count("\n") == text.count("\n")
    assert [line for line in changed.splitlines() if line not in text] == ['verdict = "holds if \\"quoted\\""']


def test_the_command_names_a_changed_verdict_and_does_not_take_it_over(monkeypatch, tmp_path, capsys):
    """The verdict of P1 is changed in the ledger; the command must say so, and must not change it back."""
    toml, before = tmp_path / "claims.toml", TOML.read_text("utf-8")
    toml.write_text(accepted(before, {"P1": "false"}), "utf-8")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "ledger.py"))
    monkeypatch.setattr(module, "ledger", cache(lambda: (HEADINGS, ENTRIES | {"P1": Entry("A.", "false")})))
    monkeypatch.setattr(module, "chapters", lambda: BOOK[:1])
    monkeypatch.setattr(module, "pages", lambda book: {})
    assert module.main([]) == 1
    assert "P1 is “false” in claims.toml, “holds” in chapter 1" in capsys.readouterr().err
    assert toml.read_text("utf-8") == accepted(before, {"P1": "false"})
    module.main(["--accept", "P1"])
    assert toml.read_text("utf-8") == before
    with pytest.raises(SystemExit):
        module.main(["--accept", "X99"])
    assert "no chapter judges X99" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["no mark", module.BEGIN, module.END, 2 * (module.BEGIN + module.END)])
def test_a_page_without_its_marks_is_refused(page):
    with pytest.raises(ValueError, match="once each"):
        module.renewed(page, "made")


def test_text_outside_the_marks_stays():
    for path in (CLAIMS, EQUATIONS):
        page = path.read_text("utf-8")
        assert module.renewed(module.renewed(page, "other"), "more").split("<!--")[0] == page.split("<!--")[0]
        assert module.renewed(page, "x").endswith('<script defer src="../_static/ledger.js"></script>\n')


# checks that can fail

ramp = np.arange(1.0, 13.0)


@pytest.mark.parametrize(
    ("left", "tol", "passes"),
    [
        (np.zeros(3), 1e-12, "with its sign turned"),
        (np.array([1e-14, -2e-14]), 1e-12, "with its sign turned"),
        (0.0, 0, "with its sign turned"),
        (np.array([0.5, 0.52]), 0.4, "a tenth larger"),
        (np.ones(5), 1e-12, "moved by one place"),
        (np.array([1.0, 1.0 + 1e-7]), 1e-6, "moved by one place"),
        (ramp[:3, None] * ramp[:3], 1e-12, "with axes 0 and 1 exchanged"),
        (np.eye(4)[None].repeat(3, 0), 1e-12, "with axes 1 and 2 exchanged"),
    ],
)
def test_verify_refuses_a_check_that_passes_with_a_wrong_left_side(left, tol, passes):
    with pytest.raises(ValueError, match=f"eq-x cannot fail: its left side .*{passes}"):
        verify("eq-x", left, np.copy(left), tol)


@pytest.mark.parametrize("left", [2.5, 3, True, ramp, ramp.reshape(3, 4), ramp[:9].reshape(3, 3), 1j * ramp])
def test_each_mutant_of_an_accepted_check_fails(left):
    """What verify accepts, it no longer accepts with the left side damaged: sign, off by one, transposed."""
    left = np.asarray(left)
    verify("eq-x", left, left.copy(), 1e-9)
    mutants = [-left.astype(complex), 1.1 * left, left + 1, *(np.roll(left, 1, axis) for axis in range(left.ndim))]
    mutants += [left.T] if left.ndim == 2 and left.shape[0] == left.shape[1] else []
    for mutant in mutants:
        with pytest.raises(NotVerified):
            verify("eq-x", mutant, left.copy(), 1e-9)


def calls(source):
    """The calls of verify in a cell, as (left, right) in the form that ast.dump gives."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "verify" and len(node.args) > 2:
            yield ast.dump(node.args[1]), ast.dump(node.args[2])


def sources():
    for path in sorted(ROOT.glob("notebooks/[!.]*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield path.stem, "".join(cell["source"])


def test_no_check_compares_an_expression_with_itself():
    every = [(name, *call) for name, source in sources() for call in calls(source)]
    assert len(every) > 100
    assert [name for name, left, right in every if left == right] == []


def test_comparing_an_expression_with_itself_is_noticed():
    ((left, right),) = calls("verify('eq-x', f(a) + 1, f( a ) + 1, 0)")
    assert left == right
