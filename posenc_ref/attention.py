"""Plain attention, written once, with the four places where a positional encoding may act.

1. the token embeddings, before the first layer: :meth:`Encoding.embed`;
2. queries and keys: :meth:`Encoding.rotate`;
3. the logits, by offset alone or by offset and content: :meth:`Encoding.bias`;
4. the weighted sum of values: :meth:`Encoding.values`.

:class:`Encoding` itself leaves all four alone, which makes it NoPE, attention without positions. Every
encoding of the package overrides the one place where it acts.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace

from posenc_ref.checks import Array, check_broadcast, check_floating, check_lengths, dtype_name


@dataclass(frozen=True)
class Spec:
    """What an encoding is, for the registry and the tables of the book."""

    name: str
    acts_on: str
    """``"nothing"``, ``"embedding"``, ``"queries and keys"``, ``"logits"`` or ``"logits and values"``."""
    shift_invariant: bool
    """Do the attention weights stay the same when all positions grow by one constant?"""
    any_length: bool
    """Is it defined at every position (which says nothing about how well a model does there)?"""
    learned: bool
    source: str
    parameters: str = "0"
    """How many, in the arguments of its class; for each layer where it acts inside attention."""
    cacheable: str = "yes"
    """Do cached keys stay right as the text grows? ``"yes"``, or what that needs."""
    cost: str = "nothing"
    """Work beside plain attention, which takes S²·H·d; S tokens, H heads, d channels a head."""


class Encoding:
    """No positional encoding (NoPE): all four places are left as they are. Base class of all others.

    Arrays are ``(batch, heads, seq, head_dim)``, embeddings ``(batch, seq, d_model)``; positions are
    counted in tokens from 0 and have shape ``(seq,)`` or ``(batch, seq)``, then :attr:`position_axes`.
    """

    spec: ClassVar[Spec] = Spec(
        "nope", "nothing", shift_invariant=True, any_length=True, learned=False,
        source="Kazemnejad et al. 2023, arXiv:2305.19466",
    )  # fmt: skip

    @property
    def position_axes(self) -> tuple[int, ...]:
        """What a position has behind the axis of tokens: nothing in a text, ``(2,)`` for row and column."""
        return ()

    def embed(self, x: Array, *, positions: Array) -> Array:
        """Return the embeddings ``(batch, seq, d_model)`` with their positions."""
        return x

    def rotate(self, q: Array, k: Array, *, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        """Return queries and keys with their positions, shapes unchanged."""
        return q, k

    def bias(
        self, q: Array, k: Array, *, q_positions: Array, k_positions: Array, mask: Array | None = None
    ) -> Array | None:
        """Return what is added to the scaled logits, ``(batch | 1, heads, q_len, k_len)``, or None.

        :func:`attention` applies the mask; it is told here for those that count keys (CoPE).
        """
        return None

    def values(self, weights: Array, v: Array, *, q_positions: Array, k_positions: Array) -> Array:
        """Return the output: the attention weights ``(batch, heads, q_len, k_len)`` times the values."""
        return weights @ v

    def logit_scale(self, head_dim: int) -> float:
        """Return the factor of q·k: 1/√head_dim."""
        return 1.0 / math.sqrt(head_dim)


NOPE = Encoding()


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    encoding: Encoding = NOPE,
    q_positions: Array = None,
    k_positions: Array = None,
    mask: Array | None = None,
) -> Array:
    """Scaled dot-product attention, ``softmax(q kᵀ · scale + bias) v``, with any positional encoding.

    Parameters
    ----------
    q : ``(batch, heads, q_len, head_dim)``
    k, v : ``(batch, kv_heads, k_len, head_dim)``; ``heads`` must be a multiple of ``kv_heads``. Key head j
        serves the query heads j·heads/kv_heads and the ones after it (grouped-query attention). All three are
        floating point, of one dtype.
    encoding : where position enters; :data:`NOPE` leaves it out.
    q_positions, k_positions : ``(len,)`` or ``(batch, len)``, tokens from 0. Required unless ``encoding`` is
        NoPE: with a cache, queries do not start at 0, and a guess would be silent.
    mask : boolean, broadcastable to ``(batch, heads, q_len, k_len)``; True keeps. A query whose keys are all
        masked gets zeros. A hidden value still meets its weight 0, and 0·NaN is NaN: fill unused cache slots with
        zeros, not with whatever memory holds.

    Returns
    -------
    ``(batch, heads, q_len, head_dim)``, of the dtype of ``q``: computed in float32 or better, rounded once.

    Raises
    ------
    ValueError : shapes that do not fit, an empty axis, or positions missing.
    TypeError : integers or mixed dtypes in q, k, v; positions in half precision; a mask that is not boolean.

    Source: Vaswani et al. 2017, equation 1, arXiv:1706.03762.

    >>> import numpy as np
    >>> q = np.array([[[[1.0, 0.0]]]])
    >>> k = np.array([[[[0.0, 1.0], [0.0, 5.0]]]])
    >>> attention(q, k, k)                       # both logits are 0: the mean of the values
    array([[[[0., 3.]]]])
    """
    _check_shapes(q, k, v)
    if not isinstance(encoding, Encoding):
        raise TypeError(f"encoding must be an Encoding, got {encoding!r}")
    xp = array_namespace(q, k, v)
    if encoding.spec.name != "nope":
        for name, positions, x in (("q_positions", q_positions, q), ("k_positions", k_positions, k)):
            if positions is None:
                raise ValueError(f"{name} must be given unless the encoding is NoPE, got None")
            check_lengths(name, positions, x.shape[0], x.shape[2], encoding.position_axes)
    dtype = q.dtype
    q, k, v = (xp.astype(x, xp.float64 if dtype == xp.float64 else xp.float32) for x in (q, k, v))
    q, k = encoding.rotate(q, k, q_positions=q_positions, k_positions=k_positions)
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = xp.repeat(k, group, axis=1), xp.repeat(v, group, axis=1)
    logits = (q @ xp.matrix_transpose(k)) * encoding.logit_scale(q.shape[-1])
    bias = encoding.bias(q, k, q_positions=q_positions, k_positions=k_positions, mask=mask)
    if bias is not None:
        logits = logits + xp.astype(bias, logits.dtype)  # parameters may be wider than the inputs
    weights = masked_softmax(logits, mask)
    return xp.astype(encoding.values(weights, v, q_positions=q_positions, k_positions=k_positions), dtype)


def masked_softmax(logits: Array, mask: Array | None = None) -> Array:
    """Softmax over the last axis of ``logits``, over the places where ``mask`` is True; zeros if none is.

    ``exp(x − max) / Σ exp(x − max)`` in float32 or better. Returns that dtype. A NaN or +inf that the mask
    keeps makes its row NaN; one that it hides does nothing.

    >>> import numpy as np
    >>> masked_softmax(np.zeros((2, 2)), np.array([[True, True], [False, False]]))
    array([[0.5, 0.5],
           [0. , 0. ]])
    """
    xp = array_namespace(check_floating("logits", logits))
    if len(logits.shape) == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must have a key on their last axis, got shape {tuple(logits.shape)}")
    logits = xp.astype(logits, xp.float64 if logits.dtype == xp.float64 else xp.float32)
    if mask is not None:
        if (dtype := dtype_name("mask", mask)) != "bool":
            raise TypeError(f"mask must be boolean (True keeps), got {dtype}")
        xp = array_namespace(logits, mask)
        check_broadcast("mask", mask, logits.shape)
        logits = xp.where(mask, logits, -xp.inf)
    top = xp.max(logits, axis=-1, keepdims=True)
    top = xp.where(top == -xp.inf, 0.0, top)  # a row of −inf alone: exp gives zeros, not NaN
    e = xp.exp(logits - top)
    total = xp.sum(e, axis=-1, keepdims=True)
    return e / xp.where(total == 0, 1.0, total)


def _check_shapes(q: Array, k: Array, v: Array) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_floating(name, x)
        if len(x.shape) != 4 or 0 in x.shape:
            raise ValueError(f"{name} must be (batch, heads, seq, head_dim), none 0, got shape {tuple(x.shape)}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must share a dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must share head_dim, got {q.shape[-1]} and {k.shape[-1]}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"k and v must share batch, heads and length, got {tuple(k.shape)} and {tuple(v.shape)}")
    if q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q needs the batch of k and a multiple of its heads, got {tuple(q.shape)} and {tuple(k.shape)}"
        )
