"""Encodings that act on the token embeddings, once, before the first layer."""

from posenc_ref.embedding.sinusoidal import Sinusoidal, sinusoidal, wavelengths

__all__ = ["Sinusoidal", "sinusoidal", "wavelengths"]
