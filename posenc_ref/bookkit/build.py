"""Build the book: ``python -m posenc_ref.bookkit.build``. Any warning is an error.

The module is also a Sphinx extension, named in ``_config.yml``: it puts MathJax beside the pages, so that
they need no network, and numbers equations and figures by chapter.
"""

import argparse
import re
import sys
import time
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree
from typing import Any

from posenc_ref.bookkit.browser import build_edition

ROOT = Path(__file__).parents[2]
CLAIM = re.compile(r"(^Claim (?:[A-Z]\d+) .+\n  verdict: .+\n  because: .+\n?)", re.MULTILINE)
"""What :func:`posenc_ref.bookkit.claim` printed."""
METHODS = re.compile(
    r"\b(ALiBi|CoPE|DeBERTa|FIRE|FLOATER|KERPLE|Llama 3|LongRoPE|NoPE|NTK|RoPE|Sandwich|Shaw|T5|Transformer-XL|xPos|"
    r"YaRN)\b"
)
"""Names that lead from the index to the headings with them."""
UNUSED = ignore_patterns(
    "*svg*", "mml-*", "*-full*", "asciimath*", "liteDOM*", "node-main*", "latest*", "[!e][a-z].json", "e[!n].json"
)  # fmt: skip
"""What the pages never load of MathJax: other outputs and inputs, and speech in languages other than English."""


def setup(app: Any) -> dict[str, bool]:
    """Sphinx extension: let the pages load MathJax from the book itself."""
    app.add_config_value("comments_config", {}, "")  # Jupyter Book sets it; we leave out the extension that reads it
    app.connect("config-inited", _use_local_mathjax)
    app.connect("config-inited", _label_sources_as_the_text_does)
    app.connect("build-finished", _copy_mathjax)
    app.connect("env-get-updated", _number_by_chapter, priority=900)  # after Sphinx has numbered
    app.connect("doctree-read", _mark_claims)
    app.connect("doctree-read", _fill_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _use_local_mathjax(app: Any, config: Any) -> None:
    config.mathjax_path = "mathjax/tex-mml-chtml.js"  # below _static


def _label_sources_as_the_text_does(app: Any, config: Any) -> None:
    from pybtex.plugin import register_plugin
    from pybtex.style.formatting.plain import Style
    from pybtex.style.labels.alpha import LabelStyle

    class Labels(LabelStyle):  # type: ignore[misc]
        def format_label(self, entry: Any) -> str:
            names = [" ".join(person.prelast_names + person.last_names) for person in entry.persons["author"]]
            return f"{' and '.join(names) if len(names) < 3 else names[0] + ' et al.'}, {entry.fields['year']}"

    class AuthorYear(Style):  # type: ignore[misc]
        default_label_style = Labels

    register_plugin("pybtex.style.formatting", "author_year", AuthorYear)
    config.bibtex_default_style = "author_year"


def _copy_mathjax(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        copytree(mathjax_source(), Path(app.outdir, "_static/mathjax"), ignore=UNUSED, dirs_exist_ok=True)


def _number_by_chapter(app: Any, env: Any) -> list[str]:
    # Sphinx counts through the book. Equation (8.7) of notebooks/08_rope keeps its number when chapters are added.
    for page, kinds in env.toc_fignumbers.items():
        if chapter := re.match(r"notebooks/0*(\d+)_", page):
            for numbers in kinds.values():
                numbers.update({name: (int(chapter[1]), i) for i, name in enumerate(numbers, 1)})
    return []


def _mark_claims(app: Any, doctree: Any) -> None:
    # Verdicts are sentences: in blocks of their own they may wrap, while tables of numbers scroll. The page of claims
    # refers to them as {ref}`claim-o5`.
    page, domain = app.env.docname, app.env.get_domain("std")
    for block in list(doctree.findall(lambda node: node.tagname == "literal_block")):
        parts = [part for part in CLAIM.split(block.astext()) if part.strip()]
        if "\n  verdict: " not in block.astext():
            continue
        blocks = [_part_of(block, part) for part in parts]
        block.replace_self(blocks)
        for name in (id for part in blocks for id in part["ids"] if page.startswith("notebooks/")):
            domain.anonlabels[name] = page, name
            domain.labels[name] = page, name, name


def _fill_index(app: Any, doctree: Any) -> None:
    # Terms of the glossary where a chapter uses them as such, and names of methods in its headings. Sphinx itself lists
    # the glossary and the package only.
    if not (chapter := re.match(r"notebooks/0*(\d+)_", app.env.docname)):
        return
    found = set()
    for term in doctree.findall(lambda node: node.tagname == "pending_xref" and node["reftype"] == "term"):
        section = term
        while section.tagname != "section":
            section = section.parent
        found.add((term["reftarget"], section))
    for section in doctree.findall(lambda node: node.tagname == "section"):
        found |= {(name, section) for name in METHODS.findall(section[0].astext())}
    entries = app.env.get_domain("index").entries.setdefault(app.env.docname, [])
    for name, section in found:
        place = f"{section[0].astext().replace(';', ',')} (chapter {chapter[1]})"
        entries.append(("single", f"{name}; {place}", section["ids"][0], "", None))


def _part_of(block: Any, text: str) -> Any:
    part = block.copy()
    part.rawsource, part.children = text, []
    part += type(block.children[0])(text)
    if CLAIM.match(text):
        part["classes"].append("claims")
        part["ids"] = [f"claim-{text.split()[1].lower()}"]
    return part


def mathjax_source() -> Path:
    """Folder of MathJax 3's files, which the package sphinx-mathjax-offline carries."""
    try:
        names = files("sphinx-mathjax-offline") or []
    except PackageNotFoundError:
        names = []
    for name in names:
        if name.name == "tex-mml-chtml.js":
            return Path(str(name.locate())).parent
    raise FileNotFoundError("MathJax is missing: pip install sphinx-mathjax-offline")


def build(source: Path, out: Path) -> bool:
    """Build the book whose ``_config.yml`` is in ``source`` into ``out/html``; return whether no warning came."""
    from jupyter_book.sphinx import build_sphinx

    # From scratch: Sphinx does not repeat the warnings of pages that it need not read again.
    rmtree(out / "html", ignore_errors=True)
    status = build_sphinx(
        source,
        out / "html",
        noconfig=True,
        path_config=source / "_config.yml",
        confoverrides={
            "external_toc_path": str(source / "_toc.yml"),
            "latex_individualpages": False,
            "nitpicky": True,  # a reference to nothing is a warning
        },
        warningiserror=True,
        keep_going=True,
        freshenv=True,
        quiet=True,
    )
    return bool(status == 0)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m posenc_ref.bookkit.build", description="Build the book.")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "_build", help="folder whose html/ is replaced (default: _build)"
    )
    parser.add_argument("--source", type=Path, default=ROOT, help="folder with _config.yml (default: the repository)")
    options = parser.parse_args(arguments)
    out, start = options.out.resolve(), time.perf_counter()
    try:
        mathjax_source()
        good = build(options.source.resolve(), out)
        if good:
            build_edition(out / "html")
    except (ImportError, FileNotFoundError, RuntimeError) as error:
        print(f"{error}\nInstall the book's tools: pip install -e '.[book]'", file=sys.stderr)
        return 1
    index = out / "html" / "index.html"
    if not good:
        print("The book has warnings, see above: each is an error.", file=sys.stderr)
        return 1
    print(f"Built in {time.perf_counter() - start:.0f} s. Open {index} in a browser, or serve it:")
    print(f"    {Path(sys.executable).name} -m http.server -d {index.parent}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
