"""What the chapters call: :func:`verify` beside an equation, :func:`claim` beside a finding, one figure style."""

from posenc_ref.bookkit.records import claim, verify
from posenc_ref.bookkit.style import COLORS, use_style

__all__ = ["COLORS", "claim", "use_style", "verify"]
