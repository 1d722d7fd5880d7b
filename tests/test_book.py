"""The built pages as files: complete, linked, described, and free of anything that a reader's network would fetch.

Each check is a function from a page to its complaints; at the end of this file each is fed a broken page.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from urllib.parse import unquote, urldefrag

import pytest
from bs4 import BeautifulSoup
from built_book import ROOT, built_book, toc_pages

from posenc_ref import registry
from posenc_ref.bookkit import api, build

PAGES = toc_pages()
SIZE_LIMIT = 30_000_000  # bytes: of the site with MathJax, of the browser edition


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    return built_book(tmp_path_factory)


def soup(html):
    return BeautifulSoup(html, "html.parser")


# checks: page -> complaints


def check_rendered(page):
    """No markup is left over: no dollar, no role, no directive, no mark of a failed reference."""
    if page.select(".problematic, .system-message, .error"):
        yield "a mark of an error: " + page.select(".problematic, .system-message, .error")[0].get_text()[:60]
    body = soup(str(page.select_one("article") or ""))
    if found := next((p.get_text() for p in body.select("p") if re.search(r"^: ", p.get_text(), re.MULTILINE)), None):
        yield f"a definition that is none: {found[:60]}"
    for leaf in body.select("pre, code, script, style, .math, details > pre"):
        leaf.decompose()
    text = body.get_text()
    if found := re.search(r".{0,30}\$.{0,30}", text):
        yield f"a raw dollar: {found.group()}"
    if found := re.search(r"\{[a-z-]+\}`|`[^`\n]+`|^:::|^```", text, flags=re.MULTILINE):
        yield f"raw markup: {found.group()}"


def check_described(page):
    """A title, one main heading, a language, landmarks, and a text for each picture."""
    if not (page.title and page.title.get_text(strip=True)):
        yield "no title"
    if (headings := len(page.select("article h1"))) != 1:
        yield f"{headings} main headings"
    if page.html is None or not page.html.get("lang"):
        yield "no language"
    yield from (f"no landmark {mark}" for mark in ("main", "nav", "header") if not page.select(mark))
    for picture in page.select("img"):
        if not picture.get("alt", "").strip():
            yield f"picture without a text: {picture.get('src')}"
    for picture in page.select("svg[role=img]"):
        if not (picture.get("aria-label") or picture.find("title")):
            yield "drawing without a title"
    labels = {label.get("for") for label in page.select("label")}
    for field in page.select("input:not([type=hidden]), select, textarea"):
        if not (field.get("aria-label") or field.get("title") or field.get("id") in labels):
            yield f"field without a label: {field.get('name')}"


def check_local(page):
    """Nothing that the browser loads by itself lies elsewhere. Links that a reader follows may."""
    outside = re.compile(r"^(?:https?:)?//")
    for element in page.select("[src], link[href], form[action], object[data]"):
        address = element.get("src") or element.get("href") or element.get("action") or element.get("data") or ""
        if outside.match(address):
            yield f"loads {address}"
    for script in page.select("script:not([src])"):
        if found := re.search(r"https?://[^\s\"']+", script.get_text()):
            yield f"a script names {found.group()}"


def check_links(page, path, files):
    """Links inside the book lead to a file, and to an element of it. ``files`` maps paths to ids of elements."""
    for link in page.select("a[href]"):
        address, fragment = urldefrag(link["href"])
        address = address.partition("?")[0]
        if re.match(r"[a-z]+:", address) or (not address and not fragment):
            continue
        target = (path.parent / unquote(address)).resolve() if address else path
        if target.is_dir():
            target = target / "index.html"
        if target not in files:
            yield f"{link['href']}: there is no such file"
        elif fragment and target.suffix == ".html" and unquote(fragment) not in files[target]:
            yield f"{link['href']}: there is no such element"


# the checks, on the book


@pytest.fixture(scope="module")
def pages(book):
    """Every HTML file with its soup, but for the browser edition, which is JupyterLab."""
    own = (path for path in sorted(book.html.rglob("*.html")) if not of_edition(book, path))
    return {path: soup(path.read_text("utf-8")) for path in own}


def of_edition(book, path):
    return path.is_relative_to(book.html / "browser")


@pytest.fixture(scope="module")
def files(book, pages):
    every = {path: set() for path in book.html.rglob("*") if path.is_file()}
    return every | {path: {e["id"] for e in page.select("[id]")} for path, page in pages.items()}


def test_the_build_has_no_warning(book):
    assert not book.log, book.log


def test_the_build_takes_less_than_a_minute(book):
    assert book.seconds < 60


def test_the_site_is_small(book, record_property):
    files = {path for path in book.html.rglob("*") if path.is_file()}
    of_it = {path for path in files if of_edition(book, path)}
    for name, part in (("site", files - of_it), ("edition", of_it)):
        size = sum(path.stat().st_size for path in part)
        record_property(f"{name}_bytes", size)
        print(f"the {name} has {size / 1e6:.1f} MB")
        assert size < SIZE_LIMIT


def test_the_pages_are_those_of_the_table_of_contents(book, pages):
    built = {str(path.relative_to(book.html).with_suffix("")) for path in pages}
    assert {name for name in built if not name.startswith("_")} == {*PAGES, "index", "genindex", "search"}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("check", [check_rendered, check_described, check_local], ids=lambda check: check.__name__)
def test_page(book, pages, name, check):
    assert list(check(pages[book.html / f"{name}.html"])) == []


def test_links(book, pages, files):
    broken = {str(path): list(check_links(page, path, files)) for path, page in pages.items()}
    assert {path: found for path, found in broken.items() if found} == {}


@pytest.mark.parametrize("name", ["index", "search", "genindex"])
def test_other_pages_are_local(book, pages, name):
    assert list(check_local(pages[book.html / f"{name}.html"])) == []


def test_styles_are_local(book):
    for path in book.html.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text("utf-8")), path


@pytest.mark.parametrize(("before", "name", "after"), list(zip([None, *PAGES], PAGES[:-1], PAGES[1:], strict=False)))
def test_pages_lead_on_and_back(book, pages, before, name, after):
    """Each but the index, the last one, which Sphinx makes in another way."""
    path = book.html / f"{name}.html"
    for kind, neighbour in (("left-prev", before), ("right-next", after)):
        link = pages[path].select_one(f"a.{kind}")
        assert bool(link) == bool(neighbour)
        assert not link or (path.parent / link["href"]).resolve() == book.html / f"{neighbour}.html"


@pytest.mark.parametrize("name", [page for page in PAGES if page.startswith(("notebooks/", "exercises/"))])
def test_chapters_can_be_downloaded(book, pages, name):
    path = book.html / f"{name}.html"
    notebooks = [(path.parent / a["href"]).resolve() for a in pages[path].select("a[href$='.ipynb']")]
    assert any(file.is_file() and file.stem == path.stem for file in notebooks)


def test_the_front_page_leads_to_the_start(book, pages):
    refresh = pages[book.html / "index.html"].select_one("meta[http-equiv]")
    assert refresh["content"].endswith(f"url={PAGES[0]}.html")


@pytest.mark.parametrize("name", [page for page in PAGES if page.startswith("notebooks/")])
def test_equations_are_numbered_by_chapter(book, pages, name):
    numbers = [e.get_text(strip=True).strip("#") for e in pages[book.html / f"{name}.html"].select(".eqno")]
    chapter = int(name.removeprefix("notebooks/").partition("_")[0])
    assert numbers
    assert numbers == [f"({chapter}.{i})" for i in range(1, len(numbers) + 1)]


@pytest.mark.parametrize("name", [page for page in PAGES if page.startswith("notebooks/")])
def test_verdicts_stand_in_blocks_of_their_own(book, pages, name):
    blocks = [b.get_text() for b in pages[book.html / f"{name}.html"].select(".cell_output pre")]
    verdicts = [b for b in blocks if "\n  verdict: " in b]
    assert verdicts or "  verdict: " not in (ROOT / f"{name}.ipynb").read_text("utf-8")
    assert all(re.fullmatch(r"Claim .+\n  verdict: .+\n  because: .+\n", b) for b in verdicts)


def test_every_claim_and_every_equation_leads_to_its_cell(book, pages):
    """One link for each verdict and each equation of the chapters; test_links follows them."""
    for name, target in (("claims", "claim-"), ("equations", "equation-")):
        links = [a["href"] for a in pages[book.html / f"book/{name}.html"].select(".ledger a[href*='notebooks/']")]
        chapters = [page for page in PAGES if page.startswith("notebooks/")]
        ids = [
            f"../{chapter}.html#{e['id']}"
            for chapter in chapters
            for e in pages[book.html / f"{chapter}.html"].select(f"[id^={target}]")
        ]
        assert ids
        assert sorted(links) == sorted(ids)


# the reference package


@pytest.mark.parametrize(
    ("page", "name", "signature"),
    [
        (
            "rotary",
            "posenc_ref.rotary.rotate",
            "(x: Array, cos: Array, sin: Array, *, layout: 'interleaved' | 'half',)",
        ),
        ("rotary", "posenc_ref.rotary.RoPE", "(head_dim: int, layout: 'interleaved' | 'half', base: float = 10000.0, "),
        ("bias", "posenc_ref.bias.modules.KerpleBias", "(num_heads: int, *, variant: 'log' | 'power')"),
        ("rotary", "posenc_ref.rotary.ScaledRoPE.at", "(length: int) → ScaledRoPE"),
        ("registry", "posenc_ref.registry.create", "(name: str, **arguments: Any) → Encoding"),
    ],
)
def test_signatures_have_the_types_of_the_source(pages, book, page, name, signature):
    (line,) = [e for e in pages[book.html / f"book/api/{page}.html"].select("dt.sig") if e.get("id") == name]
    text = re.sub(r"\s+", " ", line.get_text())
    assert signature.replace(" ", "") in text.replace(" ", "")


def test_every_encoding_has_a_place_in_the_api(pages, book):
    ids = {e["id"] for path, page in pages.items() if path.parent.name == "api" for e in page.select("dt.sig[id]")}
    classes = {id_.rpartition(".")[2] for id_ in ids}
    assert {registry.load(name).__name__ for name in registry.names()} <= classes


def test_sections_sources_and_examples_of_a_docstring_are_set(pages, book):
    page = pages[book.html / "book/api/attention.html"]
    body = page.find(id="posenc_ref.attention.attention").find_next_sibling("dd")
    fields = [e.get_text() for e in body.select("dl.field-list > dt")]
    assert fields == ["Parameters:", "Returns:", "Raises:"]
    assert [e.get_text() for e in body.select("dd:first-of-type > ul > li strong")][:3] == ["q", "k, v", "encoding"]
    assert body.select_one("a[href='https://arxiv.org/abs/1706.03762']")
    assert ">>> attention(q, k, k)" in body.select_one(".highlight pre").get_text()


def test_the_api_is_written_without_pytorch(tmp_path):
    """In a process that has no torch, the Markdown of each page is the same, with the learned modules."""
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch here')")
    rooms = ("embedding.modules", "bias.modules", "content.modules", "fast")
    code = f"from posenc_ref.bookkit.api import api_of; print(api_of(*{[f'posenc_ref.{room}' for room in rooms]}))"
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | paths)
    assert run.returncode == 0, run.stderr
    assert ".. autofunction:: posenc_ref.fast.sdpa" in run.stdout
    for name in ("embedding.modules.Floater", "bias.modules.T5Bias", "content.modules.CoPE"):
        assert f".. autoclass:: posenc_ref.{name}\n" in run.stdout


def test_the_table_of_encodings_is_that_of_the_registry():
    page, toc = api.TABLE.read_text("utf-8"), api.TOC.read_text("utf-8")
    assert page == api.encodings_page(page, toc), "refresh it: python -m posenc_ref.bookkit.api"


def test_the_table_of_encodings_has_its_rows_and_links(pages, book):
    rows = [
        [cell.get_text() for cell in row.select("td")]
        for row in pages[book.html / "book/encodings.html"].select("tbody tr")
    ]
    assert [row[0] for row in rows] == list(registry.names())
    by_name = {name: rest for name, *rest in rows}
    assert by_name["rope"] == ["8", "queries and keys", "yes", "yes", "0", "yes", "S·H·d"]
    assert by_name["learned"][1:4] == ["embedding", "no", "no"]
    links = pages[book.html / "book/encodings.html"].select("tbody td:first-child a")
    assert len(links) == len(rows)


def test_a_chapter_appears_in_the_table_when_the_book_has_it():
    assert "notebooks/" not in api.encodings_table("")
    assert "| [10](../notebooks/10_alibi.ipynb) | logits |" in api.encodings_table("- file: notebooks/10_alibi\n")


# the build, when something is wrong


def test_a_warning_fails_the_build(tmp_path, capfd):
    (tmp_path / "book/_static").mkdir(parents=True)
    shutil.copy(ROOT / "_config.yml", tmp_path)
    shutil.copy(ROOT / "book/_static/favicon.svg", tmp_path / "book/_static")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/start\n")
    (tmp_path / "book/references.bib").touch()
    page = tmp_path / "book/start.md"
    page.write_text("# Start\n\nA {term}`word` that no glossary has.\n")
    arguments = ["--source", str(tmp_path), "--out", str(tmp_path / "out")]
    assert build.main(arguments) == 1
    assert build.main(arguments) == 1, "the second time, Sphinx has the page in its cache"
    assert "term not in glossary: 'word'" in capfd.readouterr().err
    page.write_text("# Start\n")
    assert build.main(arguments) == 0
    assert "out/html/index.html" in capfd.readouterr().out


def test_missing_mathjax_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "files", lambda name: None)
    assert build.main(["--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("MathJax is missing: pip install sphinx-mathjax-offline\n")
    assert not (tmp_path / "out").exists()


# the checks, on pages that are broken on purpose

GOOD = """<html lang="en"><head><title>T</title><link href="a.css"/></head><body><header></header><nav></nav><main>
<article><h1 id="h">H</h1>
<p>one <code>$ make</code> <span class="math">\\(x\\)</span></p><img src="a.png" alt="A line"/>
<a href="#h">up</a><a href="https://example.org/">out</a></article></main><script>let x = 1</script></body></html>"""


@pytest.mark.parametrize("check", [check_rendered, check_described, check_local], ids=lambda check: check.__name__)
def test_a_good_page_passes(check):
    assert list(check(soup(GOOD))) == []


@pytest.mark.parametrize(
    ("check", "old", "new", "complaint"),
    [
        (check_rendered, "one", "costs $x$", "a raw dollar: "),
        (check_rendered, "one", "{term}`x`", "raw markup: {term}`"),
        (check_rendered, "one", "a term\n: and what it is", "a definition that is none: "),
        (check_rendered, "one", "<summary>the `mask`</summary>", "raw markup: `mask`"),
        (check_rendered, "<p>", '<p class="problematic">', "a mark of an error"),
        (check_described, "<title>T</title>", "<title></title>", "no title"),
        (check_described, "<h1", "<h1>G</h1><h1", "2 main headings"),
        (check_described, ' lang="en"', "", "no language"),
        (check_described, "<nav></nav>", "", "no landmark nav"),
        (check_described, ' alt="A line"', "", "picture without a text: a.png"),
        (check_described, "one", '<svg role="img"></svg>', "drawing without a title"),
        (check_described, "one", '<input name="q"/>', "field without a label: q"),
        (check_local, "a.css", "https://cdn.example.org/a.css", "loads https://cdn.example.org/a.css"),
        (check_local, "a.png", "//cdn.example.org/a.png", "loads //cdn.example.org/a.png"),
        (check_local, "<script>", '<script src="http://x.org/y.js"></script><script>', "loads http://x.org/y.js"),
        (check_local, "let x = 1", 'const URL = "https://x.org/y.js"', "a script names https://x.org/y.js"),
    ],
)
def test_a_broken_page_is_noticed(check, old, new, complaint):
    assert old in GOOD
    complaints = list(check(soup(GOOD.replace(old, new, 1))))
    assert complaints
    assert complaints[0].startswith(complaint)


@pytest.mark.parametrize(
    ("href", "complaints"),
    [
        ("b.html#there", []),
        ("b.html#gone", ["b.html#gone: there is no such element"]),
        ("c.html", ["c.html: there is no such file"]),
    ],
)
def test_links_between_pages_are_followed(tmp_path, href, complaints):
    a, b = tmp_path / "a.html", tmp_path / "b.html"
    assert list(check_links(soup(f'<a href="{href}">x</a>'), a, {a: set(), b: {"there"}})) == complaints


def test_the_table_of_contents_is_read_in_order(tmp_path):
    toc = tmp_path / "_toc.yml"
    toc.write_text("root: a\nparts:\n- chapters:\n  - {file: b, sections: [{file: c}]}\n- chapters: [{file: d}]\n")
    assert toc_pages(toc) == ["a", "b", "c", "d"]


def test_the_index_leads_into_the_chapters(book):
    page = BeautifulSoup((book.html / "genindex.html").read_text("utf-8"), "html.parser")
    links = {a.get_text(): a["href"] for a in page.select(".genindextable a")}
    kerple = "KERPLE: which functions of distance are allowed? (chapter 15)"
    assert links[kerple] == "notebooks/15_beyond.html#kerple-which-functions-of-distance-are-allowed"
    assert len([text for text in links if re.search(r"\(chapter \d+\)$", text)]) > 60
    for link in set(links.values()):
        name, _, anchor = link.partition("#")
        assert f'id="{anchor}"' in (book.html / name).read_text("utf-8"), link


def test_the_browser_edition_holds_the_package_and_the_notebook(book):
    edition = book.html / "browser"
    (wheel,) = edition.glob("pypi/*.whl")
    assert wheel.name in (edition / "pypi" / "all.json").read_text("utf-8")
    with zipfile.ZipFile(wheel) as file:
        assert {"posenc_ref/configs/report.py", "posenc_ref/py.typed"} <= set(file.namelist())
    assert {p.name for p in (edition / "files").iterdir()} == {"config.json", "configuration.ipynb"}
