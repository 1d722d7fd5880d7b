"""Encodings that rotate queries and keys, in every layer, and never the values."""

from posenc_ref.rotary.layouts import convert_projection, permutation
from posenc_ref.rotary.rope import RoPE, cos_sin, inv_freq, rotate

__all__ = ["RoPE", "convert_projection", "cos_sin", "inv_freq", "permutation", "rotate"]
