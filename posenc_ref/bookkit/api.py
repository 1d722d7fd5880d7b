"""The pages that are made from the package: its API, and the table of all encodings.

As a Sphinx extension, named in ``_config.yml``, it writes the API of the modules that a page names. As a command,
``python -m posenc_ref.bookkit.api``, it refreshes the table in ``book/encodings.md``.
"""

import ast
import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_origin

from posenc_ref import registry

ROOT = Path(__file__).parents[2]
TABLE, TOC = ROOT / "book" / "encodings.md", ROOT / "_toc.yml"
BEGIN, END = "<!-- made by python -m posenc_ref.bookkit.api -->", "<!-- end of what it makes -->"
CHAPTERS = {
    "nope": "01", "learned": "02", "sinusoidal": "03", "floater": "04", "multiplicative": "04",
    "multiplicative_sinusoidal": "04", "shaw": "05", "transformer_xl": "05", "t5": "06", "deberta": "07", "rope": "08",
    "scaled_rope": "09", "alibi": "10", "axial_rope": "15", "multimodal_rope": "15", "xpos": "15", "sandwich": "15",
    "kerple": "15", "fire": "15", "cope": "15",
}  # fmt: skip
"""Number of the chapter that builds an encoding, as in the name of its file."""
TORCH = ["torch"]
"""The API is written without it, whether it is there or not: importing PyTorch takes longer than all else."""


def setup(app: Any) -> dict[str, bool]:
    """Sphinx extension: API pages from docstrings and source."""
    app.connect("config-inited", _configure)
    app.connect("source-read", _write_api)
    app.connect("autodoc-process-docstring", _format_docstring)
    app.connect("autodoc-process-signature", _signature_as_written)
    app.connect("missing-reference", _find_short_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _configure(app: Any, config: Any) -> None:
    config.autodoc_mock_imports = TORCH
    config.autodoc_member_order = "bysource"
    config.autodoc_preserve_defaults = True
    config.html_domain_indices = False  # the index of names is enough
    config.python_maximum_signature_line_length = 88
    config.python_display_short_literal_types = True
    # types of others, whose documentation is not here
    config.nitpick_ignore_regex = [("py:class", r"Any|Callable|Sequence|Tensor|(collections\.abc|numpy|np|torch)\..+")]


def _write_api(app: Any, page: str, source: list[str]) -> None:
    source[0] = re.sub(r"<!-- api: (.+) -->", lambda found: api_of(*found[1].split()), source[0])


def api_of(*modules: str) -> str:
    """Markdown with the public functions of the modules, then their classes."""
    from sphinx.ext.autodoc.mock import _MockObject, mock

    setattr(_MockObject, "__or__", lambda self, other: self)  # noqa: B010  # torch.Tensor | None
    objects: dict[Any, str] = {}  # each once, by its first name
    with mock(TORCH):
        for name in modules:
            for key, value in public(name).items():
                objects.setdefault(value, f"{name}.{key}")
    parts = []
    members = "\n   :members:\n   :special-members: __call__\n   :exclude-members: function"
    for title, directive, options, is_one in (
        ("Functions", "autofunction", "", inspect.isfunction),
        ("Classes", "autoclass", members, inspect.isclass),
    ):
        names = [name for value, name in objects.items() if is_one(value)]
        if names:
            blocks = "\n\n".join(f".. {directive}:: {name}{options}" for name in names)
            parts.append(f"## {title}\n\n```{{eval-rst}}\n{blocks}\n```")
    return "\n\n".join(parts)


def public(module: str) -> dict[str, Any]:
    """What a module offers by name: its ``__all__``, or what it defines, without checks of arguments.

    >>> list(public("posenc_ref.registry"))
    ['names', 'spec', 'create', 'load']
    """
    content = vars(import_module(module))
    defined = [key for key, value in content.items() if getattr(value, "__module__", "") == module]
    names = content.get("__all__", [key for key in defined if not key.startswith(("_", "check_"))])
    return {name: content[name] for name in names}


SECTION = re.compile(r"^(Parameters|Returns|Raises)\n-+\n(.*?)(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"(?:^|(?<=[.;] ))((?:\w+, )*\w+) : ", re.MULTILINE)


def _format_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst("\n".join(lines)).splitlines()


def as_rst(docstring: str) -> str:
    """The docstring with its sections as lists of fields, and its arXiv numbers as links.

    Unlike numpydoc's, a section of ours ends at the first empty line.

    >>> print(as_rst("Raises\\n------\\nKeyError : far. TypeError : no\\n    integer.\\n\\nSource: arXiv:1706.03762."))
    :Raises:
        - **KeyError**: far.
        - **TypeError**: no integer.
    <BLANKLINE>
    Source: `arXiv:1706.03762 <https://arxiv.org/abs/1706.03762>`__.
    """

    def field(section: re.Match[str]) -> str:
        text = re.sub(r"\n +", " ", section[2])
        items = ENTRY.sub(r"\n    - **\1**: ", text) if section[1] != "Returns" else "\n    " + " ".join(text.split())
        return f":{section[1]}:" + re.sub(r" *\n+", "\n", items)

    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"`\g<0> <https://arxiv.org/abs/\1>`__", SECTION.sub(field, docstring))


def _signature_as_written(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    # At run time Array is Any, and the reader would learn nothing.
    function = obj.__init__ if inspect.isclass(obj) else obj
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        # made by dataclass or NamedTuple, whose fields are never of any type at all
        return signature and signature.replace("~typing.Any", "Array").replace("~typing.", ""), returns
    if not isinstance(tree, ast.FunctionDef) or signature is None:
        return signature, returns
    arguments = tree.args
    every = [*arguments.posonlyargs, *arguments.args]
    if every and every[0].arg in ("self", "cls"):
        arguments.args.remove(every[0])
    choices = {
        key: ast.parse(repr(value).removeprefix("typing."), mode="eval").body
        for key, value in inspect.unwrap(function).__globals__.items()
        if get_origin(value) is Literal
    }

    class Spell(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return choices.get(node.id, node)

    Spell().visit(tree)
    returned = None if tree.returns is None or inspect.isclass(obj) else ast.unparse(tree.returns).strip("'")
    return f"({ast.unparse(arguments)})", returned


def _find_short_name(app: Any, env: Any, node: Any, text: Any) -> Any:
    # Short names, as in the source: look for them in all modules.
    if node.get("refdomain") != "py":
        return None
    node["refspecific"] = True
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", node["reftarget"], node, text)


def encodings_table(toc: str) -> str:
    """Markdown table of all encodings; those whose chapter is in ``toc``, the text of ``_toc.yml``, lead to it."""
    yes = {True: "yes", False: "no"}
    titles = ("encoding", "chapter", "acts on", "shift-invariant", "any length", "parameters", "cacheable", "cost")
    rows = [titles, ("---",) * 8]
    for name in registry.names():
        one = registry.spec(name)
        chapter = re.search(rf"notebooks/({CHAPTERS.get(name)})_\w+", toc)
        rows.append((
            f"{{py:class}}`{name} <{registry.load(name).__name__}>`",
            f"[{int(chapter[1])}](../{chapter[0]}.ipynb)" if chapter else "",
            one.acts_on, yes[one.shift_invariant], yes[one.any_length], one.parameters, one.cacheable, one.cost,
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def encodings_page(page: str, toc: str) -> str:
    """The page with its table as the registry has it now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{encodings_table(toc)}\n\n{END}{after}"


if __name__ == "__main__":
    TABLE.write_text(encodings_page(TABLE.read_text("utf-8"), TOC.read_text("utf-8")), "utf-8")
