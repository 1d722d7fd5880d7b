"""Encodings that act on the token embeddings, once, before the first layer."""

from posenc_ref.embedding.sinusoidal import Sinusoidal, frequencies, sinusoidal, wavelengths

__all__ = ["Sinusoidal", "frequencies", "sinusoidal", "wavelengths"]
