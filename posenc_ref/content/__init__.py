"""Logits by offset *and* content: how far away a key is, weighed by what the query and the key say.

The functions return what is added to the scaled logits, ``(batch, heads, q_len, k_len)``; those that end in
``_by_pair`` are the papers' equations as written, for comparison. The PyTorch modules with learned parameters are in
:mod:`posenc_ref.content.modules`, which is not imported here.
"""

from posenc_ref.content.cope import cope_bias, cope_counts, cope_counts_by_pair
from posenc_ref.content.deberta import (
    deberta_bias,
    deberta_bias_by_pair,
    deberta_bucket,
    deberta_index,
    deberta_scale,
    log_bucket_ends,
)
from posenc_ref.content.lookup import relative_shift
from posenc_ref.content.shaw import (
    shaw_bias,
    shaw_bias_by_pair,
    shaw_bias_skewed,
    shaw_index,
    shaw_values,
    shaw_values_by_pair,
)
from posenc_ref.content.transformer_xl import (
    transformer_xl_bias,
    transformer_xl_bias_by_pair,
    transformer_xl_bias_shifted,
)

__all__ = [
    "cope_bias",
    "cope_counts",
    "cope_counts_by_pair",
    "deberta_bias",
    "deberta_bias_by_pair",
    "deberta_bucket",
    "deberta_index",
    "deberta_scale",
    "log_bucket_ends",
    "relative_shift",
    "shaw_bias",
    "shaw_bias_by_pair",
    "shaw_bias_skewed",
    "shaw_index",
    "shaw_values",
    "shaw_values_by_pair",
    "transformer_xl_bias",
    "transformer_xl_bias_by_pair",
    "transformer_xl_bias_shifted",
]
