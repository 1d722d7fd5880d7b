"""One figure style: readable at phone width, safe for colour-blind readers, the same bytes on each run."""

from typing import Any

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#555555")
"""Okabe and Ito's colours for colour-blind readers; the yellow is darkened, so that it shows on white."""


def use_style() -> None:
    """Set the figure style of the book. Call once, in the first cell of a chapter.

    Figures are PNG on an opaque white ground, so that they read the same in the light and the dark theme, and
    carry no date and no version, so that running a notebook again changes nothing.
    """
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(
        {
            "figure.figsize": (6.0, 3.4),
            "figure.dpi": 110,
            "figure.facecolor": "white",
            "figure.constrained_layout.use": True,
            "axes.prop_cycle": cycler(color=COLORS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "font.size": 11,
            "lines.linewidth": 1.8,
            "legend.frameon": False,
            "image.cmap": "cividis",
            "svg.hashsalt": "posenc",
        }
    )
    shell = _ipython()
    if shell is not None:
        shell.run_line_magic("matplotlib", "inline")
        shell.run_line_magic(
            "config",
            "InlineBackend.print_figure_kwargs = {'bbox_inches': None, 'metadata': {'Software': None}}",
        )


def _ipython() -> Any:
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return None
    return get_ipython()
