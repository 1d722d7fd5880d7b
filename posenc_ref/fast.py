"""Attention by PyTorch's fused kernel, without an array of shape (q_len, k_len). Importing this needs torch.

:func:`posenc_ref.attention.attention` stays the specification; this is the same, faster.
"""

from functools import partial

import torch
import torch.nn.functional as F

from posenc_ref.attention import NOPE, Encoding, attention
from posenc_ref.bias.alibi import ALiBi, alibi_row_bias
from posenc_ref.bias.offsets import ToeplitzBias
from posenc_ref.checks import check_flag
from posenc_ref.positions import causal as causal_mask


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, encoding: Encoding = NOPE, causal: bool) -> torch.Tensor:
    """:func:`attention` for one unbroken run of tokens, the queries being its last, by a fused kernel.

    A bias that depends on the offset alone is kept as its q_len + k_len − 1 values. With the queries in reversed
    order, row i of the full bias begins at value i, so that ``vector.unfold(1, k_len, 1)`` *is* the bias, as a view:
    exact, and gradients reach the values. Causal ALiBi over as many queries as keys needs only one row: the rest is
    constant in each row, and softmax cancels it; at a logit of −s·k_len in float32 that costs up to s·k_len·2⁻²⁴.

    Parameters
    ----------
    q, k, v : as there; positions are 0 … k_len − 1 for keys and the last q_len of them for queries.
    encoding : any; those whose bias depends on content are computed the plain way.
    causal : does each query see only keys up to its own position?

    >>> from posenc_ref.bias import ALiBi
    >>> k = torch.randn(1, 2, 5, 4); q, p = k[:, :, 3:], torch.arange(5)
    >>> alibi = ALiBi(2, causal=True)
    >>> plain = attention(q, k, k, encoding=alibi, q_positions=p[3:], k_positions=p, mask=causal_mask(p[3:], p))
    >>> bool((sdpa(q, k, k, encoding=alibi, causal=True) - plain).abs().max() < 1e-6)
    True
    """
    check_flag("causal", causal)
    q_len, k_len = q.shape[2], k.shape[2]
    if q_len > k_len:
        raise ValueError(f"the queries must be the last of the k_len = {k_len} tokens, got q_len = {q_len}")
    if encoding.position_axes:
        raise ValueError(f"{encoding.spec.name} has positions with axes, got tokens in one run: use attention")
    positions = torch.arange(k_len, device=q.device)
    at = {"q_positions": positions[k_len - q_len :], "k_positions": positions}
    if type(encoding).bias is not Encoding.bias and not isinstance(encoding, ToeplitzBias):
        mask = causal_mask(at["q_positions"], positions) if causal else None
        plain: torch.Tensor = attention(q, k, v, encoding=encoding, mask=mask, **at)
        return plain
    q, k = encoding.rotate(q, k, **at)
    fused = partial(
        F.scaled_dot_product_attention,
        scale=encoding.logit_scale(q.shape[-1]),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32  # half precision merges far biases
    if isinstance(encoding, ALiBi) and encoding.causal and causal and q_len == k_len and q.device.type == "cpu":
        # only the kernel for the CPU takes a bias together with is_causal
        return fused(q, k, v, attn_mask=alibi_row_bias(positions, num_heads=q.shape[1], dtype=wide), is_causal=True)
    if isinstance(encoding, ToeplitzBias):
        vector = encoding.bias_vector(q_len, k_len, like=q, dtype=wide)
    elif q_len in (1, k_len) or not causal:
        return fused(q, k, v, is_causal=causal and q_len > 1)
    else:
        # is_causal would let the first query see the first key only, and not all keys up to its own position
        vector = torch.zeros(1, q_len + k_len - 1, dtype=wide, device=q.device)
    if causal:
        vector = vector.masked_fill(torch.arange(1 - k_len, q_len, device=q.device) > 0, -torch.inf)
    return fused(q.flip(2), k, v, attn_mask=vector.unfold(1, k_len, 1)[None]).flip(2)
