"""Inputs and answers as text that fits a notebook cell."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np

from posenc_ref.grading.exercise import same_answer

FEW = 16
"""Up to so many numbers, an array is shown whole."""


def show_inputs(names: Sequence[str], inputs: Sequence[Any]) -> list[str]:
    """One line, or a few, for each argument.

    >>> print(*show_inputs(("x", "layout"), (np.array([[0.25, 1.0], [-1.5, 0.0]]), "half")), sep="\\n")
        x      = [[0.25, 1],
                  [-1.5, 0]]
        layout = 'half'
    """
    width = max(map(len, names[: len(inputs)]), default=0)
    return [_line(name, width, _text(x)) for name, x in zip(names, inputs, strict=False)]


def show_sides(yours: Any, right: Any) -> list[str]:
    """Lines that put the learner's value and the right one side by side, digits aligned."""
    if isinstance(right, tuple):
        for number, (a, b) in enumerate(zip(yours, right, strict=True), start=1):
            if not same_answer(a, b):
                return [f"    result {number} of {len(right)}:", *show_sides(a, b)]
        return []
    if not isinstance(right, np.ndarray) or right.size > FEW:
        return _one_number(yours, right)
    for precision in (4, 8, 12, 17):
        a, b = _numbers(yours, precision), _numbers(right, precision)
        if a != b:
            break
    width = max(map(len, [*a, *b]), default=0)
    both = (_filled(x.shape, texts, width) for x, texts in ((yours, a), (right, b)))
    return [_line(name, 5, text) for name, text in zip(("yours", "right"), both, strict=True)]


def matrices(yours: Any, right: Any) -> tuple[Any, Any] | None:
    """The first two matrices in a pair of answers of equal shape that differ; None if there is nothing to draw."""
    if isinstance(right, tuple):
        pairs = (matrices(a, b) for a, b in zip(yours, right, strict=True) if not same_answer(a, b))
        return next((pair for pair in pairs if pair), None)
    if (
        not isinstance(right, np.ndarray)
        or right.dtype.kind not in "biuf"
        or right.ndim < 2
        or min(right.shape[-2:]) < 2
    ):
        return None
    rows, columns = right.shape[-2:]
    for a, b in zip(yours.reshape(-1, rows, columns), right.reshape(-1, rows, columns), strict=True):
        if not same_answer(a, b):
            return a.astype(float), b.astype(float)
    return None


def draw_sides(yours: Any, right: Any) -> bytes:
    """A picture, as PNG, of two matrices and their difference. What is not finite stays grey."""
    from matplotlib.figure import Figure

    with np.errstate(invalid="ignore"):
        difference = np.where(yours == right, 0.0, yours - right)
    finite = [x[np.isfinite(x)] for x in (np.concatenate([yours, right]), difference)]
    low, high = (finite[0].min(), finite[0].max()) if finite[0].size else (0.0, 1.0)
    most = np.abs(finite[1]).max(initial=0.0) or 1.0
    figure = Figure(figsize=(7.0, 2.6), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    for panel, title, x, colours, bounds in zip(
        panels, ("yours", "right", "yours − right"), (yours, right, difference), ("viridis", "viridis", "RdBu_r"),
        ((low, high), (low, high), (-most, most)), strict=True,
    ):  # fmt: skip
        panel.set(title=title, facecolor="0.8")
        image = panel.imshow(np.ma.masked_invalid(x), cmap=colours, vmin=bounds[0], vmax=bounds[1], aspect="auto")
        for axis in (panel.xaxis, panel.yaxis):
            axis.get_major_locator().set_params(integer=True)
        figure.colorbar(image, ax=panel)
    png = BytesIO()
    figure.savefig(png, dpi=100)
    return png.getvalue()


def _one_number(yours: Any, right: Any) -> list[str]:
    a, b, at = np.asarray(yours), np.asarray(right), ""
    if b.shape:
        index = tuple(np.argwhere(~np.isclose(a, b, rtol=1e-12, atol=1e-12))[0])
        a, b, at = a[index], b[index], f"    at [{', '.join(map(str, index))}]"
    for precision in (4, 8, 12, 17):
        texts = _numbers(a, precision) + _numbers(b, precision)
        if texts[0] != texts[1]:
            break
    width = max(map(len, texts))
    return [*([at] if at else []), f"    yours = {texts[0]:>{width}}", f"    right = {texts[1]:>{width}}"]


def _numbers(x: Any, precision: int) -> list[str]:
    return [_number(v, precision) for v in np.asarray(x).ravel()]


def _number(v: Any, precision: int) -> str:
    if isinstance(v, int):
        return f"a number of {v.bit_length()} bits"  # too large for NumPy
    if v.dtype.kind == "c":
        return f"{v:.{precision}g}"
    if v.dtype.kind != "f":
        return str(v)
    if v == 0 or 1e-4 <= abs(v) < 1e6:
        return np.format_float_positional(v + 0.0, precision=precision, trim="-")
    return f"{v:.{precision - 1}g}"


def _filled(shape: tuple[int, ...], texts: list[str], width: int) -> str:
    cells = iter(texts)

    def block(depth: int) -> str:
        if depth == len(shape):
            return f"{next(cells):>{width}}"
        gap = ", " if depth == len(shape) - 1 else ",\n" + " " * (depth + 1)
        return "[" + gap.join(block(depth + 1) for _ in range(shape[depth])) + "]"

    return block(0)


def _text(x: Any) -> str:
    if not isinstance(x, np.ndarray):
        return repr(x)
    texts = _numbers(x, 4)
    if x.size <= 64:
        whole = _filled(x.shape, texts, max(map(len, texts), default=0))
        if max(map(len, whole.splitlines()), default=0) <= 90:
            return whole
    return np.array2string(x, precision=4, separator=", ", max_line_width=90, threshold=60, edgeitems=2)


def _line(name: str, width: int, text: str) -> str:
    indent = "\n" + " " * (width + 7)
    return f"    {name:<{width}} = " + text.replace("\n", indent)
