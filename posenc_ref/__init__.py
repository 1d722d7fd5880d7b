"""Positional encodings of the Transformer, each written once, for NumPy and PyTorch alike.

The folders are named after the place where position enters attention:

- :mod:`posenc_ref.embedding` acts on the token embeddings,
- :mod:`posenc_ref.rotary` acts on queries and keys,
- :mod:`posenc_ref.bias` acts on the logits, by offset,
- :mod:`posenc_ref.content` acts on the logits, by offset and content, and once on the values.

:func:`posenc_ref.attention.attention` takes any of them; :mod:`posenc_ref.positions` makes the positions and
masks. ``import posenc_ref`` needs NumPy and array-api-compat only.
"""

from posenc_ref.attention import Encoding, Spec, attention
from posenc_ref.registry import create, names

__all__ = ["Encoding", "Spec", "attention", "create", "names"]
