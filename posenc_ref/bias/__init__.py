"""Biases on the logits by offset: how far away a key is, whatever it says.

All functions take ``(q_positions, k_positions)`` and return ``(batch | 1, heads, q_len, k_len)``. The learned ones
are PyTorch modules in :mod:`posenc_ref.bias.modules`, which is not imported here.
"""

from posenc_ref.bias.alibi import ALiBi, alibi_bias, alibi_row_bias, slopes
from posenc_ref.bias.fire import fire_bias
from posenc_ref.bias.kerple import kerple_bias
from posenc_ref.bias.offsets import bias_vector, offsets
from posenc_ref.bias.sandwich import Sandwich, sandwich_bias
from posenc_ref.bias.t5 import bucket_starts, t5_bias, t5_bucket

__all__ = [
    "ALiBi",
    "Sandwich",
    "alibi_bias",
    "alibi_row_bias",
    "bias_vector",
    "bucket_starts",
    "fire_bias",
    "kerple_bias",
    "offsets",
    "sandwich_bias",
    "slopes",
    "t5_bias",
    "t5_bucket",
]
