"""Notebooks as files: executed in order, free of errors and traces of a machine, equations and links bound.

Nothing is executed here; nbval does that. Each check is a function from a notebook to its complaints, and each is
fed a broken notebook at the end of this file, so that none can pass because it sees nothing.
"""

import base64
import copy
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from mdit_py_plugins.anchors.index import slugify

from posenc_ref.bookkit.records import claims, read_records

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted(ROOT.glob("notebooks/[!.]*.ipynb"))
SOURCES = sorted(ROOT.glob("exercises/source/[!.]*.ipynb"))
LEARNERS = sorted(ROOT.glob("exercises/[!.]*.ipynb"))
PAGES = sorted(ROOT.glob("book/*.md"))

FIGURE_LIMIT, FILE_LIMIT, CELL_LIMIT = 60_000, 800_000, 30  # bytes, bytes, lines

LAZY = re.compile(
    r"\b(?:obvious(?:ly)?|clearly|simply|trivial(?:ly)?|basically|of course|needless to say|easy to see|"
    r"as you can see|just(?! (?:as|above|below|before|after|past|under|over|inside|outside|short)\b)|"
    r"powerful|amazing|seamless(?:ly)?|cutting-edge|state-of-the-art|revolutionary)\b",
    re.IGNORECASE,
)
MACHINE = re.compile(r"0x[0-9a-f]{6,}|(?<![\w.:/])/\w[\w.-]*/[\w.-]+|\b[A-Z]:\\\w+")  # an address, an absolute path


# what a notebook consists of


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def prose(notebook):
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def texts(cell):
    """All text that a cell put out."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        else:
            yield from (text for kind, text in output.get("data", {}).items() if kind.startswith("text/"))


def without_code(markdown):
    markdown = re.sub(r"^(```+|~~~+).*?^\1", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(`+).*?\1", "", markdown, flags=re.DOTALL)


def labels(notebook):
    return re.findall(r"\$\$\s*\(([^)\s]+)\)\s*$", prose(notebook), flags=re.MULTILINE)


# checks: notebook -> complaints


def check_executed(notebook):
    """Every code cell ran, once, in order, and neither raised nor wrote to stderr."""
    for number, cell in enumerate(code_cells(notebook), 1):
        if cell.execution_count != number:
            yield f"{cell.id}: execution count is {cell.execution_count}, expected {number}"
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"{cell.id}: raised {output.ename}"
            if output.output_type == "stream" and output.name != "stdout":
                yield f"{cell.id}: wrote to {output.name}"


def check_unexecuted(notebook):
    """A learner's copy: stubs to fill in, nothing executed, no solution left in an answer cell."""
    for cell in code_cells(notebook):
        if cell.execution_count is not None or cell.outputs:
            yield f"{cell.id}: was executed"
        if "SOLUTION" in cell.source:
            yield f"{cell.id}: still holds its solution"
    stubs = [cell for cell in code_cells(notebook) if cell.metadata.get("nbgrader", {}).get("solution")]
    if not stubs:
        yield "there is no answer cell"
    yield from (f"{cell.id}: is no stub" for cell in stubs if "raise NotImplementedError" not in cell.source)


def check_form(notebook):
    """Format 4.5, kernel python3, ids that are unique and say where they belong."""
    if (notebook.nbformat, notebook.nbformat_minor) != (4, 5):
        yield f"format is {notebook.nbformat}.{notebook.nbformat_minor}, expected 4.5"
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield f"kernel is {kernel}, expected python3"
    ids = [cell.id for cell in notebook.cells]
    yield from (f"{id}: id is used twice" for id in sorted({id for id in ids if ids.count(id) > 1}))
    yield from (
        f"{id}: id should look like rope-07" for id in ids if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", id)
    )


def check_figures(notebook):
    """Each image is small, has a text for those who cannot see it, and a caption that concludes."""
    for cell in code_cells(notebook):
        images = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
        meta = cell.metadata.get("mystnb", {})
        alt, figure = meta.get("image", {}).get("alt", ""), meta.get("figure", {})
        for image in images:
            if (size := len(base64.b64decode(image))) > FIGURE_LIMIT:
                yield f"{cell.id}: image of {size} bytes, at most {FIGURE_LIMIT}"
        if images and len(alt) < 20:
            yield f"{cell.id}: image without a text that says what is to be seen (mystnb.image.alt)"
        if images and (len(figure.get("caption", "")) < 20 or not figure.get("name", "").startswith("fig-")):
            yield f"{cell.id}: image without caption and name (mystnb.figure)"


def check_outputs(notebook):
    """Outputs are the same on every machine, and of kinds that a page shows without a network."""
    for cell in code_cells(notebook):
        for text in texts(cell):
            if found := MACHINE.search(text):
                yield f"{cell.id}: output names this machine: {found.group()}"
            if found := re.search(r"\d\.\d{9,}", text):
                yield f"{cell.id}: output has digits that differ by machine: {found.group()}"
        kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
        for kind in kinds - {"text/plain", "text/html", "text/latex", "text/markdown", "image/png"}:
            yield f"{cell.id}: output of kind {kind}"


def check_length(notebook):
    """Cells are short enough to read."""
    for cell in code_cells(notebook):
        if (lines := len(cell.source.splitlines())) > CELL_LIMIT:
            yield f"{cell.id}: {lines} lines, at most {CELL_LIMIT}"


def check_equations(notebook):
    """Each labelled equation is verified by a cell or marked as a definition; nothing else is."""
    labelled = set(labels(notebook))
    verified = set(read_records(text for cell in code_cells(notebook) for text in texts(cell)).equations)
    defined = set(re.findall(r"<!-- definition: (\S+) -->", prose(notebook)))
    yield from (
        f"{label}: neither verified nor marked as a definition" for label in sorted(labelled - verified - defined)
    )
    yield from (f"{label}: verified, but no equation has this label" for label in sorted(verified - labelled))
    yield from (
        f"{label}: marked as a definition, but no equation has this label" for label in sorted(defined - labelled)
    )
    yield from (f"{label}: label should start with eq-" for label in sorted(labelled) if not label.startswith("eq-"))
    if "\\label{" in prose(notebook):
        yield "an equation is labelled by \\label{…}: write $$ … $$ (eq-name)"


def check_claims(notebook):
    """Each verdict is about a statement of the ledger, in the form that tools read back."""
    output = "\n".join(text for cell in code_cells(notebook) for text in texts(cell))
    verdicts = read_records([output]).verdicts
    yield from (f"claim {id} is not in the ledger" for id in verdicts if id not in claims())
    if (lines := len(re.findall(r"^Claim ", output, flags=re.MULTILINE))) != len(verdicts):
        yield f"{lines} lines start with Claim, {len(verdicts)} of them are records: print them with claim()"


def check_words(notebook):
    """No word that stands in for an argument, and no sales talk."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from (f"{cell.id}: “{word.group()}”" for word in LAZY.finditer(without_code(cell.source)))


CHECKS_OF_EXECUTED = (
    check_executed, check_form, check_figures, check_outputs, check_length, check_equations, check_claims, check_words,
)  # fmt: skip


def check_links(path, markdown, root=ROOT):
    """Links to files and headings of the book lead somewhere."""
    for target in re.findall(r"\]\(<?([^)>\s]+)>?\)", without_code(markdown)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = (path.parent / name).resolve() if name else None
        if file and (not file.is_file() or root not in file.parents):
            yield f"{target}: there is no such file"
        elif fragment and fragment not in anchors(markdown_of(file) if file else markdown):
            yield f"{target}: there is no such heading"


def markdown_of(file):
    return prose(read(file)) if file.suffix == ".ipynb" else file.read_text("utf-8")


def anchors(markdown):
    headings = re.findall(r"^#{1,4} (.+)$", markdown, flags=re.MULTILINE)
    return {slugify(heading) for heading in headings} | set(
        re.findall(r"^\(([\w-]+)\)=$", markdown, flags=re.MULTILINE)
    )


# the checks, on the files


def read(path):
    return nbformat.read(path, as_version=4)


def name(path):
    return str(path.relative_to(ROOT)) if isinstance(path, Path) else None


@pytest.mark.parametrize("check", CHECKS_OF_EXECUTED, ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", CHAPTERS + SOURCES, ids=name)
def test_executed_notebook(path, check):
    assert list(check(read(path))) == []


@pytest.mark.parametrize("path", LEARNERS, ids=name)
@pytest.mark.parametrize("check", [check_unexecuted, check_form, check_words], ids=lambda check: check.__name__)
def test_learners_copy(path, check):
    nbformat.validate(read(path))
    assert list(check(read(path))) == []


@pytest.mark.parametrize("path", CHAPTERS + SOURCES + LEARNERS, ids=name)
def test_size_of_file(path):
    assert path.stat().st_size < FILE_LIMIT


@pytest.mark.parametrize("path", CHAPTERS + LEARNERS, ids=name)  # a source's links are written for its copy
def test_links_of_notebook(path):
    assert list(check_links(path, prose(read(path)))) == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_page(path):
    text = path.read_text("utf-8")
    assert list(check_links(path, text)) == []
    assert LAZY.findall(without_code(text)) == []


def test_no_label_twice_in_the_book():
    used = [label for path in CHAPTERS + LEARNERS for label in labels(read(path))]
    used += [label for path in PAGES for label in re.findall(r"\$\$\s*\((eq-[^)\s]+)\)", path.read_text("utf-8"))]
    assert sorted({label for label in used if used.count(label) > 1}) == []


def test_every_chapter_is_in_the_book_and_has_exercises():
    toc = str(yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8")))
    assert CHAPTERS
    for path in CHAPTERS:
        assert f"'notebooks/{path.stem}'" in toc
        assert f"'exercises/{path.stem}'" in toc
    assert [p.stem for p in CHAPTERS] == [p.stem for p in SOURCES] == [p.stem for p in LEARNERS]


# the checks, on notebooks that are broken on purpose

PIXEL = base64.b64encode(b"a small image").decode()


def good():
    """A notebook without any fault."""
    v4 = nbformat.v4
    stdout = [v4.new_output("stream", text="eq-x-same holds: below 1e-12 (3, float64)\n")]
    claim = [v4.new_output("stream", text="Claim O5 (The rotation keeps norms.)\n  verdict: holds\n  because: 1 = 1\n")]
    image = [v4.new_output("display_data", data={"image/png": PIXEL, "text/plain": "<Figure size 660x374>"})]
    meta = {
        "image": {"alt": "A line that rises from left to right."},
        "figure": {"caption": "It rises, as we expected.", "name": "fig-x"},
    }
    notebook = v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        cells=[
            v4.new_markdown_cell(
                "# X\n\n$$ a = b $$ (eq-x-same)\n\n$$ b = c $$ (eq-x-def)\n<!-- definition: eq-x-def -->"
            ),
            v4.new_code_cell("verify()", outputs=stdout, execution_count=1),
            v4.new_code_cell("claim()", outputs=claim, execution_count=2),
            v4.new_code_cell("plot()", outputs=image, execution_count=3, metadata={"mystnb": meta}),
            v4.new_markdown_cell("Just as before, `simply` in code is fine. See [X](#x)."),
        ],
    )
    for number, cell in enumerate(notebook.cells):
        cell.id = f"x-{number:02d}"
    return notebook


def good_learners():
    notebook = good()
    notebook.cells = [notebook.cells[0], notebook.cells[1]]
    notebook.cells[1].update(source="def f(x):\n    raise NotImplementedError", outputs=[], execution_count=None)
    notebook.cells[1].metadata["nbgrader"] = {"solution": True}
    return notebook


def printing(text, stream="stdout"):
    return lambda nb: nb.cells[1].outputs.append(nbformat.v4.new_output("stream", text=text, name=stream))


def raising(name):
    error = nbformat.v4.new_output("error", ename=name, evalue="", traceback=[])
    return lambda nb: nb.cells[1].outputs.append(error)


def showing(kind, data):
    return lambda nb: nb.cells[3].outputs[0].data.update({kind: data})


def writing(text):
    return lambda nb: nb.cells[0].update(source=nb.cells[0].source + "\n\n" + text)


def setting(number, **values):
    return lambda nb: nb.cells[number].update(**values)


BROKEN = [
    (check_executed, setting(1, execution_count=None), "x-01: execution count is None, expected 1"),
    (check_executed, setting(2, execution_count=3), "x-02: execution count is 3, expected 2"),
    (check_executed, printing("a warning", "stderr"), "x-01: wrote to stderr"),
    (check_executed, raising("ValueError"), "x-01: raised ValueError"),
    (check_form, lambda nb: nb.metadata.kernelspec.update(name="venv"), "kernel is venv"),
    (check_form, lambda nb: nb.update(nbformat_minor=4), "format is 4.4"),
    (check_form, setting(1, id="x-00"), "x-00: id is used twice"),
    (check_form, setting(1, id="8c6f1a2b"), "8c6f1a2b: id should look like"),
    (check_figures, lambda nb: nb.cells[3].metadata.mystnb.pop("image"), "x-03: image without a text"),
    (check_figures, lambda nb: nb.cells[3].metadata.mystnb.pop("figure"), "x-03: image without caption"),
    (check_figures, showing("image/png", base64.b64encode(bytes(60_001)).decode()), "x-03: image of 60001 bytes"),
    (check_outputs, printing("<object at 0x7f3a2b4c5d6e>"), "x-01: output names this machine: 0x7f3a2b4c5d6e"),
    (check_outputs, printing("/home/me/notebook"), "x-01: output names this machine: /home/me"),
    (check_outputs, printing("C:\\Users\\me"), "x-01: output names this machine: C:\\Users"),
    (check_outputs, printing("/tmp/ipykernel_12/3.py"), "x-01: output names this machine"),
    (check_outputs, printing("0.30000000000000004"), "x-01: output has digits that differ by machine"),
    (check_outputs, showing("application/vnd.jupyter.widget-view+json", {}), "x-03: output of kind application"),
    (check_length, setting(1, source="x = 1\n" * 31), "x-01: 31 lines"),
    (check_equations, setting(1, outputs=[]), "eq-x-same: neither verified nor marked"),
    (check_equations, printing("eq-x-other holds: below 1e-12 (3)\n"), "eq-x-other: verified, but no equation"),
    (check_equations, writing("<!-- definition: eq-x-none -->"), "eq-x-none: marked as a definition, but"),
    (check_equations, writing("$$ a = b $$ (x-bare)\n<!-- definition: x-bare -->"), "x-bare: label should start"),
    (check_equations, writing("\\begin{align} \\label{eq-x} a \\end{align}"), "an equation is labelled by \\label"),
    (check_claims, printing("Claim Z9 (Anything.)\n  verdict: holds\n  because: 1\n"), "claim Z9 is not in the ledger"),
    (check_claims, printing("Claim O5: it holds\n"), "2 lines start with Claim, 1 of them are records"),
    (check_words, writing("This is obviously true."), "x-00: “obviously”"),
    (check_words, writing("You just add it."), "x-00: “just”"),
    (check_words, writing("A powerful idea."), "x-00: “powerful”"),
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS_OF_EXECUTED, ids=lambda check: check.__name__)
def test_a_good_notebook_passes(check):
    assert list(check(good())) == []


@pytest.mark.parametrize(("check", "damage", "complaint"), BROKEN, ids=[complaint[:40] for *_, complaint in BROKEN])
def test_a_broken_notebook_is_noticed(check, damage, complaint):
    notebook = copy.deepcopy(good())
    damage(notebook)
    complaints = list(check(notebook))
    assert complaints
    assert complaints[0].startswith(complaint)


def test_every_check_is_shown_to_complain():
    assert {check for check, *_ in BROKEN} == set(CHECKS_OF_EXECUTED)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (setting(1, execution_count=1), "x-01: was executed"),
        (setting(1, source="### BEGIN SOLUTION\nraise NotImplementedError"), "x-01: still holds its solution"),
        (setting(1, source="def f(x):\n    return x"), "x-01: is no stub"),
        (lambda nb: nb.cells.pop(), "there is no answer cell"),
    ],
)
def test_a_broken_learners_copy_is_noticed(damage, complaint):
    notebook = good_learners()
    assert list(check_unexecuted(notebook)) == []
    damage(notebook)
    assert list(check_unexecuted(notebook)) == [complaint]


@pytest.mark.parametrize(
    ("markdown", "complaints"),
    [
        ("# A heading\n[x](#a-heading) [y](other.md) [z](other.md#part-two) [w](https://example.org/x)", []),
        ("`[x](gone.md)`", []),
        ("[x](gone.md)", ["gone.md: there is no such file"]),
        ("[x](../outside.md)", ["../outside.md: there is no such file"]),
        ("[x](other.md#part-three)", ["other.md#part-three: there is no such heading"]),
        ("# A heading\n[x](#another)", ["#another: there is no such heading"]),
    ],
)
def test_links_are_followed(tmp_path, markdown, complaints):
    root = tmp_path / "book"
    root.mkdir()
    (tmp_path / "outside.md").touch()
    (root / "other.md").write_text("# Other\n\n## Part two\n")
    assert list(check_links(root / "page.md", markdown, root)) == complaints


def test_the_page_on_exercises_quotes_what_the_checker_says(capsys):
    """The first code block of the page is run; the block below it must be what it prints."""
    text = (ROOT / "book/exercises.md").read_text("utf-8")
    code, quoted = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, flags=re.DOTALL).groups()
    exec(code, {})
    assert capsys.readouterr().out == quoted


def test_nbval_compares_outputs(tmp_path):
    """One right output, one that holds an address, one wrong: under our options the third alone fails."""
    notebook = good()
    cases = [("1 + 1", "2\n"), ("object()", "<object object at 0x7f0000000000>\n"), ("1 + 1", "3\n")]
    notebook.cells = [
        nbformat.v4.new_code_cell(
            f"print({source})",
            id=f"x-{number:02d}",
            execution_count=number,
            outputs=[nbformat.v4.new_output("stream", text=stored)],
        )
        for number, (source, stored) in enumerate(cases, 1)
    ]
    nbformat.write(notebook, tmp_path / "x.ipynb")
    options = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(ROOT / "tests/nbval_sanitize.cfg")]
    command = [sys.executable, "-m", "pytest", "-q", "-rf", *options, str(tmp_path / "x.ipynb")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 2 passed" in run.stdout
    assert re.search(r"^FAILED .*Cell 2", run.stdout, flags=re.MULTILINE), run.stdout
