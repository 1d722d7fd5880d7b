"""Encodings that rotate queries and keys, in every layer, and never the values."""

from posenc_ref.rotary.axial import AxialRoPE, MultimodalRoPE
from posenc_ref.rotary.in_place import rotate_
from posenc_ref.rotary.layouts import convert_projection, permutation
from posenc_ref.rotary.rerotate import rerotate
from posenc_ref.rotary.rope import RoPE, cos_sin, inv_freq, rotate
from posenc_ref.rotary.scaled import (
    NTK,
    PI,
    ByParts,
    DynamicNTK,
    Llama3,
    LongRoPE,
    Proportional,
    ScaledRoPE,
    Scaling,
    YaRN,
)
from posenc_ref.rotary.xpos import XPos

__all__ = [
    "NTK",
    "PI",
    "AxialRoPE",
    "ByParts",
    "DynamicNTK",
    "Llama3",
    "LongRoPE",
    "MultimodalRoPE",
    "Proportional",
    "RoPE",
    "ScaledRoPE",
    "Scaling",
    "XPos",
    "YaRN",
    "convert_projection",
    "cos_sin",
    "inv_freq",
    "permutation",
    "rerotate",
    "rotate",
    "rotate_",
]
