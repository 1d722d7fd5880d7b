"""Transformer-XL's relative logits (Dai et al. 2019, section 3.3 and appendix B, arXiv:1901.02860).

With the distance i − j = query − key, the content q_i and k_j, learned u, v and W_r for each head, and the fixed
sinusoid R::

    A_ij = q_i·k_j + q_i·W_r R_{i−j} + u·k_j + v·W_r R_{i−j}        (terms a, b, c, d)

Attention computes the first term itself; here are the other three. A memory of earlier segments needs nothing more:
its keys are in the cache, and the positions of the queries begin behind it.
"""

import math

from array_api_compat import array_namespace, device

from posenc_ref.bias.offsets import offsets
from posenc_ref.checks import Array, check_flag, check_size
from posenc_ref.content.lookup import check_both, check_pair, check_shape, relative_shift
from posenc_ref.embedding import sinusoidal


def transformer_xl_bias(
    q: Array, k: Array, q_positions: Array, k_positions: Array, *, u: Array, v: Array, w_r: Array, base: float = 10000.0
) -> Array:
    """Terms b, c and d: ((q_i + v)·W_r R_{i−j} + u·k_j) / √head_dim.

    Parameters
    ----------
    q, k : ``(batch, heads, len, head_dim)``.
    q_positions, k_positions : ``(len,)`` or ``(batch, len)``, tokens; any, in any order.
    u, v : ``(heads, head_dim)``: ``r_w_bias`` and ``r_r_bias`` of the authors' code.
    w_r : ``(heads, head_dim, d_model)``, d_model even: the rows of ``r_net.weight``. R has all sines first, then all
        cosines, as in that code; its width is d_model.
    base : of R; see :func:`posenc_ref.embedding.sinusoidal`.

    Returns
    -------
    ``(batch, heads, q_len, k_len)`` of the dtype of q, at least float32, to be added to the scaled logits.

    R is a sinusoid, so that R_{i−j} follows from R_i and R_j by sin(a − b) and cos(a − b): one matrix product, no
    vector for each pair. It costs d_model multiplications a pair where :func:`transformer_xl_bias_shifted`, for
    neighbouring positions, costs head_dim.

    Source: Dai et al. 2019, section 3.3 (the four terms of A^rel).

    >>> import numpy as np
    >>> one = np.ones((1, 1, 2, 1))
    >>> p, zero = dict(q_positions=np.array([1, 2]), k_positions=np.arange(2)), np.zeros((1, 1))
    >>> transformer_xl_bias(one, one, **p, u=zero, v=zero, w_r=np.array([[[0.0, 1.0]]]))[0, 0].round(3)  # cos(i − j)
    array([[ 0.54 ,  1.   ],
           [-0.416,  0.54 ]])
    """
    xp, q, k = check_pair(q, k, q_positions, k_positions)
    u, v, w_r = _check_parameters(q, u, v, w_r)
    sin_cos_q, sin_cos_k = (_waves(p, w_r.shape[2], base, q) for p in (q_positions, k_positions))
    half = w_r.shape[2] // 2
    sin, cos = sin_cos_q[..., :half], sin_cos_q[..., half:]
    waves = (q + v[:, None, :]) @ w_r  # (batch, heads, q_len, d_model): how much of each wave the query wants
    s, c = waves[..., :half], waves[..., half:]
    # s·sin(a − b) + c·cos(a − b), sorted by sin b and cos b
    turned = xp.concat([c * sin - s * cos, s * sin + c * cos], axis=-1)
    return (turned @ xp.matrix_transpose(sin_cos_k) + _by_key(u, k)) / math.sqrt(q.shape[-1])


def transformer_xl_bias_by_pair(
    q: Array, k: Array, q_positions: Array, k_positions: Array, *, u: Array, v: Array, w_r: Array, base: float = 10000.0
) -> Array:
    """:func:`transformer_xl_bias` as the paper writes it, with R_{i−j} for every pair: the specification."""
    xp, q, k = check_pair(q, k, q_positions, k_positions)
    u, v, w_r = _check_parameters(q, u, v, w_r)
    r = _waves(-offsets(q_positions, k_positions), w_r.shape[2], base, q)  # (batch | 1, 1, q_len, k_len, d_model)
    relative = r @ xp.matrix_transpose(w_r)[:, None]  # W_r R, (batch | 1, heads, q_len, k_len, head_dim)
    positional = xp.sum((q + v[:, None, :])[..., None, :] * relative, axis=-1)
    return (positional + _by_key(u, k)) / math.sqrt(q.shape[-1])


def transformer_xl_bias_shifted(
    q: Array, k: Array, *, u: Array, v: Array, w_r: Array, causal: bool, base: float = 10000.0
) -> Array:
    """:func:`transformer_xl_bias` for queries that are the last q_len of k_len neighbouring tokens, by the shift.

    The scores of one row of R for each distance are moved into place by :func:`relative_shift`. ``causal=True``
    takes the k_len distances of the past; the shift leaves garbage above the diagonal, which is set to −inf here,
    so that nobody uses it. ``causal=False`` takes all q_len + k_len − 1 distances and has no garbage.

    Source: Dai et al. 2019, appendix B.
    """
    q, k = check_both(q, k)
    q_len, k_len = q.shape[2], k.shape[2]
    if k_len < q_len:
        raise ValueError(f"k_len must be at least q_len = {q_len}, got {k_len}")
    xp, where = array_namespace(q, k), device(q)
    u, v, w_r = _check_parameters(q, u, v, w_r)
    last = 0 if check_flag("causal", causal) else 1 - q_len
    distance = xp.arange(k_len - 1, last - 1, -1, dtype=xp.int64, device=where)
    r = w_r @ xp.matrix_transpose(_waves(distance, w_r.shape[2], base, q)[0, 0])  # (heads, head_dim, distances)
    positional = relative_shift((q + v[:, None, :]) @ r)[..., :k_len]
    if causal:
        row = xp.arange(k_len - q_len, k_len, dtype=xp.int64, device=where)
        future = xp.arange(k_len, dtype=xp.int64, device=where) > row[:, None]
        positional = xp.where(future, -xp.inf, positional)
    return (positional + _by_key(u, k)) / math.sqrt(q.shape[-1])


def _waves(positions: Array, d_model: int, base: float, like: Array) -> Array:
    """R of the positions in the dtype of ``like``, its batch and its heads' axis of 1 in front."""
    r = sinusoidal(positions, d_model, layout="concatenated", base=base)
    r = array_namespace(r).astype(r, like.dtype)
    return r if len(r.shape) == 5 else r[:, None] if len(r.shape) == 3 else r[None, None]


def _by_key(u: Array, k: Array) -> Array:
    """Term c, u·k_j, the same for all queries: ``(batch, heads, 1, k_len)``."""
    return u[:, None, :] @ array_namespace(k).matrix_transpose(k)


def _check_parameters(q: Array, u: Array, v: Array, w_r: Array) -> tuple[Array, Array, Array]:
    heads, head_dim = q.shape[1], q.shape[3]
    check_shape("u", u, (heads, head_dim), "heads, head_dim")
    check_shape("v", v, (heads, head_dim), "heads, head_dim")
    d_model = check_size("d_model of w_r", w_r.shape[-1], even=True) if getattr(w_r, "shape", ()) else 0
    check_shape("w_r", w_r, (heads, head_dim, d_model), "heads, head_dim, d_model")
    xp = array_namespace(q, u, v, w_r)
    return xp.astype(u, q.dtype), xp.astype(v, q.dtype), xp.astype(w_r, q.dtype)
