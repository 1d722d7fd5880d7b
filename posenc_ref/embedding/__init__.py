"""Encodings that act on the token embeddings, once, before the first layer.

The learned ones are PyTorch modules in :mod:`posenc_ref.embedding.modules`, which is not imported here.
"""

from posenc_ref.embedding.floater import floater, mlp_field, oscillators, trajectory
from posenc_ref.embedding.learned import learned, padded_rows
from posenc_ref.embedding.multiplicative import MultiplicativeSinusoidal, multiply
from posenc_ref.embedding.sinusoidal import Sinusoidal, frequencies, sinusoidal, wavelengths

__all__ = [
    "MultiplicativeSinusoidal",
    "Sinusoidal",
    "floater",
    "frequencies",
    "learned",
    "mlp_field",
    "multiply",
    "oscillators",
    "padded_rows",
    "sinusoidal",
    "trajectory",
    "wavelengths",
]
