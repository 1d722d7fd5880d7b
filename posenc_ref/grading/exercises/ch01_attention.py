"""Exercises of chapter 01: attention without order."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.attention import Encoding, attention
from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters, sizes
from posenc_ref.positions import causal

TITLE = "attention without order"

# --- 1.1 attention with a mask


def _attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return attention(q[None, None], k[None, None], v[None, None], mask=mask)[0, 0]


def _weights(logits: Any, axis: int = -1) -> Any:
    top = np.max(logits, axis=axis, keepdims=True)
    e = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(axis=axis, keepdims=True)
    return e / np.where(total == 0, 1.0, total)


def _logits(q: Any, k: Any) -> Any:
    return q @ k.T / np.sqrt(q.shape[-1])


def _hidden(logits: Any, mask: Any) -> Any:
    return np.where(mask, logits, -np.inf)


def _over_queries(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _weights(_hidden(_logits(q, k), mask), axis=0) @ v


def _not_scaled(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _weights(_hidden(q @ k.T, mask)) @ v


def _scaled_by_d(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _weights(_hidden(q @ k.T / q.shape[-1], mask)) @ v


def _scaled_by_width_of_values(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _weights(_hidden(q @ k.T / np.sqrt(v.shape[-1]), mask)) @ v


def _masked_afterwards(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return np.where(mask, _weights(_logits(q, k)), 0.0) @ v


def _zero_logits(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _weights(np.where(mask, _logits(q, k), 0.0)) @ v


def _nan_for_nothing(q: Any, k: Any, v: Any, mask: Any) -> Any:
    logits = _hidden(_logits(q, k), mask)
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def _zero_by_zero(q: Any, k: Any, v: Any, mask: Any) -> Any:
    e = np.where(mask, np.exp(_logits(q, k)), 0.0)
    return e / e.sum(axis=-1, keepdims=True) @ v


def _not_scaled_nan_for_nothing(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _nan_for_nothing(q * np.sqrt(q.shape[-1]), k, v, mask)


def _not_scaled_zero_by_zero(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _zero_by_zero(q * np.sqrt(q.shape[-1]), k, v, mask)


def _mean_for_nothing(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _weights(np.where(mask, _logits(q, k), -1e9)) @ v


def _maximum_over_hidden(q: Any, k: Any, v: Any, mask: Any) -> Any:
    logits = _logits(q, k)
    e = np.where(mask, np.exp(logits - logits.max(axis=-1, keepdims=True)), 0.0)
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1.0, total) @ v


def _hidden_at_minus_100(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _weights(np.where(mask, _logits(q, k), -100.0)) * mask.any(axis=-1, keepdims=True) @ v


def _overflow(q: Any, k: Any, v: Any, mask: Any) -> Any:
    e = np.where(mask, np.exp(_logits(q, k)), 0.0)
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1.0, total) @ v


def _true_hides(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _weights(_hidden(_logits(q, k), ~mask)) @ v


def _loops(q: Any, k: Any, v: Any, mask: Any) -> Any:
    out = np.zeros((len(q), v.shape[-1]))
    for m in range(len(q)):
        seen = [n for n in range(len(k)) if mask[m, n]]
        logits = [sum(q[m] * k[n]) / len(q[m]) ** 0.5 for n in seen]
        e = [np.exp(x - max(logits)) for x in logits]
        for weight, n in zip(e, seen, strict=True):
            out[m] += weight / sum(e) * v[n]
    return out


def _one_over_a_sum(q: Any, k: Any, v: Any, mask: Any) -> Any:
    logits = _logits(q, k)
    with np.errstate(over="ignore"):  # a = 1 / Σ_j exp(ℓ_j − ℓ_n), and 1/∞ is 0
        ratios = np.where(mask[:, None, :], np.exp(logits[:, None, :] - logits[:, :, None]), 0.0)
    a = np.where(mask, 1.0 / np.maximum(ratios.sum(axis=-1), 1e-300), 0.0)
    return np.einsum("mn,nd->md", a, v)


@st.composite
def _q_k_v_mask(draw: Any) -> Any:
    q_len, k_len, d, d_v = draw(sizes(1, 2)), draw(sizes(3, 2, 4)), draw(sizes(2, 3)), draw(sizes(1, 3))
    bits = draw(st.integers(0, 2 ** (q_len * k_len) - 1))  # one draw, so that the search for a small input is quick
    mask = (bits >> np.arange(q_len * k_len) & 1).astype(bool).reshape(q_len, k_len)
    return draw(quarters(q_len, d)), draw(quarters(k_len, d)), draw(quarters(k_len, d_v)), mask


_ATTEND = Exercise(
    id="attention.softmax_attention",
    number="1.1",
    chapter="01_attention_without_order",
    title="Attention that survives an empty row",
    minutes=12,
    difficulty=2,
    function="attend",
    reference=_attend,
    inputs=_q_k_v_mask(),
    edges={
        "a query that may see nothing": (
            np.array([[1.0, 0.0, 2.0], [2.0, 1.0, 0.0]]),
            np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [2.0, 0.0, 1.0]]),
            np.array([[1.0, 4.0], [2.0, 0.0], [6.0, 2.0]]),
            np.array([[False, False, False], [True, True, False]]),
        ),
        "logits near 1000 and −1000": (
            np.array([[50.0, 0.0], [-50.0, 0.0]]),
            np.array([[28.0, 1.0], [28.0, 2.0], [29.0, 0.0]]),
            np.array([[1.0], [2.0], [4.0]]),
            np.ones((2, 3), dtype=bool),
        ),
        "a hidden logit near 1000, visible ones near −1000": (
            np.array([[50.0, 0.0]]),
            np.array([[28.0, 1.0], [-28.0, 2.0], [-28.0, 0.0]]),
            np.array([[5.0], [7.0], [4.0]]),
            np.array([[False, True, True]]),
        ),
        "values with many digits": (
            np.cos(np.arange(6.0)).reshape(2, 3),
            np.cos(np.arange(6.0, 18.0)).reshape(4, 3),
            np.cos(np.arange(18.0, 26.0)).reshape(4, 2),
            np.array([[True, True, False, True], [False, True, True, True]]),
        ),
    },
    properties=(
        Property(
            "values of 1 give 1, or 0 where nothing is seen",
            lambda attend, q, k, v, mask: (
                attend(q, k, np.ones_like(v), mask),
                np.repeat(mask.any(axis=1)[:, None], v.shape[-1], axis=1).astype(float),
            ),
        ),
        Property(
            "keys that no query sees do not matter",
            lambda attend, q, k, v, mask: (
                attend(q, np.where(mask.any(axis=0)[:, None], k, k + 1.0), v, mask),
                attend(q, k, v, mask),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _over_queries,
            "Softmax runs over the queries. Each query's weights over the keys must add up to 1.",
            "along which axis of a (q_len, k_len) array do the keys lie?",
        ),
        Mistake(
            _not_scaled,
            "The logits are q·k, not divided by √d.",
            "which number of the formula is missing between the dot product and the softmax?",
        ),
        Mistake(
            _scaled_by_d,
            "The logits are divided by d; the formula divides by √d.",
            "for d = 4 the divisor is 2.",
        ),
        Mistake(
            _scaled_by_width_of_values,
            "The logits are divided by the root of the values' width. The d of the formula is the width of q and k.",
            "queries and keys share a width; values may have another. Which of the two does the dot product run over?",
        ),
        Mistake(
            _masked_afterwards,
            "The mask acts after softmax: hidden keys still count in the denominator, so rows add up to less than 1.",
            "hide the logits first, then let softmax share out the whole 1 among what is left.",
        ),
        Mistake(
            _zero_logits,
            "Hidden logits are set to 0, and e⁰ = 1 is a weight like any other. A hidden key must get weight 0.",
            "which logit x has e^x = 0?",
        ),
        Mistake(
            _nan_for_nothing,
            "A query that may see nothing gives NaN (0/0, or −∞ minus −∞). This exercise asks for zeros there.",
            "what is the largest logit of a row in which all are −∞, and what happens when you subtract it?",
        ),
        Mistake(
            _zero_by_zero,
            "An empty row: its sum is 0, and 0/0 is NaN. This exercise asks for zeros there. Besides, the exponential "
            "overflows for large logits.",
            "what could you divide by where the sum is 0?",
        ),
        Mistake(
            _not_scaled_nan_for_nothing,
            "Two things. An empty row gives NaN (0/0, or −∞ minus −∞), where this exercise asks for zeros. And the "
            "logits are q·k, not divided by √d.",
            "first the empty row: what is its largest logit, and what happens when you subtract it?",
        ),
        Mistake(
            _not_scaled_zero_by_zero,
            "Three things. An empty row gives 0/0, which is NaN, where this exercise asks for zeros. The logits are "
            "not divided by √d. And the exponential overflows for large ones.",
            "first the empty row: what could you divide by where the sum is 0?",
        ),
        Mistake(
            _mean_for_nothing,
            "A query that may see nothing gets the mean of all hidden values, since equally low logits share the "
            "weight. This exercise asks for zeros there.",
            "with −∞ instead of a large negative number, which step needs care?",
        ),
        Mistake(
            _maximum_over_hidden,
            "The largest logit is taken over hidden keys as well. If a hidden one is far above the visible ones, their "
            "exponentials all become 0, and the row counts as empty.",
            "which comes first, hiding the logits or looking for the largest?",
        ),
        Mistake(
            _hidden_at_minus_100,
            "Hidden logits are set to −100. Visible ones may be lower still, and then a hidden key gets the weight.",
            "logits go down to −1000 here. Which number is below all of them?",
        ),
        Mistake(
            _overflow,
            "The exponential overflows for large logits, and for very negative ones a whole row vanishes.",
            "softmax does not change if you subtract a number from a whole row. Which one makes every exp at most 1?",
        ),
        Mistake(
            _true_hides,
            "The mask is read the other way round: True keeps a key, False hides it.",
            "which of the two has to become −∞?",
        ),
    ),
    alternatives=(_loops, _one_over_a_sum),
)


# --- 1.2 a causal mask for a cache


def _causal_mask(q_len: int, k_len: int) -> Any:
    return causal(np.arange(k_len - q_len, k_len), np.arange(k_len))[0]


def _triangle(q_len: int, k_len: int, shift: int) -> Any:
    return np.tril(np.ones((q_len, k_len), dtype=bool), shift)


def _top_left(q_len: int, k_len: int) -> Any:
    return _triangle(q_len, k_len, 0)


def _offset_negated(q_len: int, k_len: int) -> Any:
    return _triangle(q_len, k_len, q_len - k_len)


def _not_itself(q_len: int, k_len: int) -> Any:
    return _triangle(q_len, k_len, k_len - q_len - 1)


def _one_ahead(q_len: int, k_len: int) -> Any:
    return _triangle(q_len, k_len, k_len - q_len + 1)


def _future_only(q_len: int, k_len: int) -> Any:
    return np.triu(np.ones((q_len, k_len), dtype=bool), k_len - q_len)


def _inverted(q_len: int, k_len: int) -> Any:
    return ~_causal_mask(q_len, k_len)


def _transposed(q_len: int, k_len: int) -> Any:
    return _causal_mask(q_len, k_len).T


def _additive(q_len: int, k_len: int) -> Any:
    return np.where(_causal_mask(q_len, k_len), 0.0, -np.inf)


def _all_seen(q_len: int, k_len: int) -> Any:
    return np.ones((q_len, k_len), dtype=bool)


def _last_rows_of_the_square(q_len: int, k_len: int) -> Any:
    return np.tril(np.ones((k_len, k_len), dtype=bool))[k_len - q_len :]


def _counted(q_len: int, k_len: int) -> Any:
    mask = np.zeros((q_len, k_len), dtype=bool)
    for row in range(q_len):
        mask[row, : k_len - q_len + row + 1] = True
    return mask


@st.composite
def _lengths(draw: Any) -> Any:
    q_len = draw(st.integers(1, 40))
    return q_len, q_len + draw(st.integers(0, 40))


_CAUSAL = Exercise(
    id="attention.causal_mask_offset",
    number="1.2",
    chapter="01_attention_without_order",
    title="A causal mask for a cache",
    minutes=8,
    difficulty=2,
    function="causal_mask",
    kinds=("cache",),
    draw=True,
    reference=_causal_mask,
    inputs=_lengths(),
    edges={
        "two new tokens behind a cache of 3": (2, 5),
        "one new token behind a cache of 3": (1, 4),
        "no cache": (3, 3),
        "three new tokens behind a cache of 300": (3, 303),
    },
    properties=(
        Property(
            "with a cache, the rows are the last rows of the mask without one",
            lambda causal_mask, q_len, k_len: (causal_mask(q_len, k_len), causal_mask(k_len, k_len)[-q_len:]),
        ),
        Property(
            "the newest query sees every key",
            lambda causal_mask, q_len, k_len: (causal_mask(q_len, k_len)[-1], np.ones(k_len, dtype=bool)),
        ),
    ),
    mistakes=(
        Mistake(
            _top_left,
            "The triangle starts at the top left, as if the queries were the first tokens. They are the last ones.",
            "2 queries, 5 keys: at which positions do the queries stand? How many keys may each of them see?",
        ),
        Mistake(
            _offset_negated,
            "The triangle is shifted the wrong way: with a cache each query must see more keys, not fewer.",
            "print np.tril(np.ones((2, 5)), 3) and with −3.",
        ),
        Mistake(
            _not_itself,
            "Each query sees the keys before it, but not its own. A token may attend to itself.",
            "is it n < m or n ≤ m?",
        ),
        Mistake(
            _one_ahead,
            "Each query sees one token of the future.",
            "the first of 3 queries without a cache may see one key. How many does yours see?",
        ),
        Mistake(
            _inverted,
            "True and False are exchanged: True keeps a key, False hides it.",
            "the newest query may see everything. What does your last row say?",
        ),
        Mistake(
            _future_only,
            "Each query sees itself and what comes after it; a causal mask is the other triangle.",
            "np.tril or np.triu?",
        ),
        Mistake(
            _transposed,
            "Rows and columns are exchanged: the shape is (q_len, k_len), queries down, keys across.",
            "which of the two index arrays gets the new axis at its end?",
        ),
        Mistake(
            _additive,
            "This is the additive form of the mask, 0 and −∞, to be added to the logits. Asked for is the boolean one.",
            "compare two integer arrays; the result of <= is boolean.",
        ),
        Mistake(
            _all_seen,
            "Every query sees every key. That is right for one new token, and for no more than one.",
            "two new tokens are processed together. May the first see the second?",
        ),
    ),
    alternatives=(_last_rows_of_the_square, _counted),
)


# --- 1.3 the weights of a layer that counts

_THREE = tuple[Any, Any, Any]


def _layer(d: int, query: Any = (0, 1, 1.0), key: Any = (0, 0, 1.0), value: Any = (0, 0, 1.0)) -> _THREE:
    matrices = []
    for row, column, entry in (query, key, value):
        matrix = np.zeros((d, d))
        matrix[row, column] = entry
        matrices.append(matrix)
    return matrices[0], matrices[1], matrices[2]


def _counting_weights(d: int, bonus: float) -> _THREE:
    return _layer(d, key=(0, 0, bonus * d**0.5))


def _scale_forgotten(d: int, bonus: float) -> _THREE:
    return _layer(d, key=(0, 0, bonus))


def _scale_twice(d: int, bonus: float) -> _THREE:
    return _layer(d, key=(0, 0, bonus / d**0.5))


def _root_of_four(d: int, bonus: float) -> _THREE:
    return _layer(d, key=(0, 0, bonus * 2.0))


def _bonus_in_the_query(d: int, bonus: float) -> _THREE:
    return _layer(d, query=(0, 1, bonus * d**0.5))


def _query_in_all_channels(d: int, bonus: float) -> _THREE:
    w_q, w_k, w_v = _counting_weights(d, bonus)
    w_q[:, 1] = 1.0
    return w_q, w_k, w_v


def _weight_for_logit(d: int, bonus: float) -> _THREE:
    return _layer(d, key=(0, 0, np.exp(bonus) * d**0.5))


def _row_convention(d: int, bonus: float) -> _THREE:
    return _layer(d, query=(1, 0, 1.0), key=(0, 0, bonus * d**0.5))


def _only_the_marker_asks(d: int, bonus: float) -> _THREE:
    return _layer(d, query=(0, 0, 1.0), key=(0, 0, bonus * d**0.5))


def _every_key_found(d: int, bonus: float) -> _THREE:
    return _layer(d, key=(0, 1, bonus * d**0.5))


def _value_of_all(d: int, bonus: float) -> _THREE:
    return _layer(d, key=(0, 0, bonus * d**0.5), value=(0, 1, 1.0))


def _all_values(d: int, bonus: float) -> _THREE:
    return (*_counting_weights(d, bonus)[:2], np.eye(d))


def _nobody_asks(d: int, bonus: float) -> _THREE:
    return _layer(d, query=(0, 0, 0.0), key=(0, 0, 0.0))


def _key_in_all_channels(d: int, bonus: float) -> _THREE:
    query, key, value = _counting_weights(d, bonus)
    key[:, 0] = key[0, 0]
    return query, key, value


def _outer_products(d: int, bonus: float) -> _THREE:
    marker, constant = np.eye(d)[0], np.eye(d)[1]
    return np.outer(marker, constant), np.sqrt(d) * bonus * np.outer(marker, marker), np.outer(marker, marker)


def _by_index(d: int, bonus: float) -> _THREE:
    row, column = np.indices((d, d))
    value = ((row == 0) & (column == 0)).astype(float)
    return ((row == 0) & (column == 1)).astype(float), value * bonus * d / d**0.5, value


def _read(counting_weights: Any, d: int, bonus: float) -> tuple[Any, Any]:
    position = np.arange(7)
    x = np.sin(1.0 + np.arange(7.0 * d)).reshape(7, d)  # any tokens
    x[:, 0], x[:, 1] = position == 0, 1.0
    q, k, v = ((x @ w.T)[None, None] for w in counting_weights(d, bonus))
    out = attention(q, k, v, mask=causal(position, position))[0, 0]
    return out, np.outer(1.0 / (1.0 + position * np.exp(-bonus)), np.eye(d)[0])


_COUNT = Exercise(
    id="attention.counting_weights",
    number="1.3",
    chapter="01_attention_without_order",
    title="A layer that counts, with a bonus for the marker",
    minutes=15,
    difficulty=3,
    function="counting_weights",
    reference=_counting_weights,
    inputs=st.tuples(st.integers(2, 24), st.integers(-16, 24).map(lambda n: n / 4)),
    properties=(Property("run through attention, the layer gives 1 / (1 + m·e^(−bonus)) in channel 0", _read),),
    mistakes=(
        Mistake(
            _scale_forgotten,
            "The marker's logit is bonus/√d, because attention divides q·k by √d. It must be the bonus itself.",
            "multiply query and key of your layer by hand for d = 4, and divide by 2.",
        ),
        Mistake(
            _scale_twice,
            "The key is divided by √d, and attention divides once more: the marker's logit becomes bonus/d.",
            "attention divides by √d. By what do you multiply to undo it?",
        ),
        Mistake(
            _root_of_four,
            "The bonus is multiplied by 2, and that is √d for d = 4 only.",
            "which argument of the function is unused?",
        ),
        Mistake(
            _bonus_in_the_query,
            "The output is right, but the task fixes the query at (1, 0, …, 0): move the bonus to W_K.",
            "which number belongs in W_Q then?",
        ),
        Mistake(
            _query_in_all_channels,
            "The output is right, but the task fixes the query at (1, 0, …, 0), and here it is (1, 1, …, 1).",
            "which channels of the query does W_Q[:, 1] write to?",
        ),
        Mistake(
            _weight_for_logit,
            "The logit is e^bonus. Softmax takes the exponential itself: the logit is the bonus.",
            "which of the two, logit or weight, is proportional to e^bonus?",
        ),
        Mistake(
            _row_convention,
            "W_Q is transposed: it writes channel 0 into channel 1. Here q = W_Q x, so rows are outputs.",
            "in W[i, j], which index is the channel that is read?",
        ),
        Mistake(
            _only_the_marker_asks,
            "W_Q reads channel 0, which only the marker has: all other queries are zero and give no bonus.",
            "which channel has every token in common?",
        ),
        Mistake(
            _every_key_found,
            "W_K reads channel 1, which every token has: all logits grow by the bonus, and softmax does not notice.",
            "which channel tells the marker from the rest?",
        ),
        Mistake(
            _value_of_all,
            "W_V reads channel 1, which is 1 for every token: the mean of ones is 1 at each position.",
            "the output must be the marker's weight alone. Which tokens must have the value 0?",
        ),
        Mistake(
            _all_values,
            "W_V copies all channels, so that the tokens' own come out as well. Only the marker's is asked for.",
            "how many entries of W_V need to differ from 0?",
        ),
        Mistake(
            _nobody_asks,
            "All logits are equal, as in the chapter's first layer. Here the marker's is larger by the bonus.",
            "q·k must be different from 0 for the marker's key. What can every query have in common?",
        ),
        Mistake(
            _key_in_all_channels,
            "The marker's key has the same number in all channels. The logits come out right, as queries look at "
            "channel 0 only; but asked for is a multiple of (1, 0, …, 0).",
            "which entries of W_K could be 0 without a change in any logit?",
        ),
    ),
    alternatives=(_outer_products, _by_index),
)


# --- 1.4 what a bias cannot see

_TOKENS = np.random.default_rng(1).normal(size=(3, 6, 4))  # queries, keys and values of up to 6 tokens


class _Biased(Encoding):
    def __init__(self, bias: Any) -> None:
        self.matrix = bias

    def bias(self, q: Any, k: Any, *, q_positions: Any, k_positions: Any, mask: Any = None) -> Any:
        return self.matrix[None, None]


def _run(bias: Any, order: Any) -> Any:
    q, k, v = (x[None, None, order] for x in _TOKENS)
    return attention(q, k, v, encoding=_Biased(bias))[0, 0]


def _tried_on_tokens(bias: Any, orders: Any) -> Any:
    """Does attention commute with the order? A multiple of the bias has the same orders; a gentle one hides nothing."""
    gentle = bias / max(1.0, np.ptp(bias, axis=1).max())
    plain = _run(gentle, np.arange(len(bias)))
    return np.array([bool(np.abs(_run(gentle, p) - plain[p]).max() < 1e-9) for p in orders])


def _unseen(bias: Any, orders: Any) -> Any:
    steps = np.diff(bias, axis=1)  # what is left of a row up to a constant; softmaxes would lose a steep bias
    return _each(orders, lambda p: np.abs(np.diff(bias[np.ix_(p, p)], axis=1) - steps).max() < 1e-9)


def _each(orders: Any, test: Any) -> Any:
    return np.array([bool(test(p)) for p in orders])


def _moved(bias: Any, p: Any) -> Any:
    return bias[np.ix_(p, p)] - bias


def _constant(x: Any, axis: int) -> bool:
    return bool(np.all(np.abs(np.ptp(x, axis=axis)) < 1e-9))


def _equal_only(bias: Any, orders: Any) -> Any:
    return _each(orders, lambda p: np.allclose(_moved(bias, p), 0.0))


def _constant_columns(bias: Any, orders: Any) -> Any:
    return _each(orders, lambda p: _constant(_moved(bias, p), 0))


def _rows_only(bias: Any, orders: Any) -> Any:
    return _each(orders, lambda p: _constant(bias[p] - bias, 1))


def _columns_only(bias: Any, orders: Any) -> Any:
    return _each(orders, lambda p: _constant(bias[:, p] - bias, 1))


def _diagonal(bias: Any, orders: Any) -> Any:
    return _each(orders, lambda p: _constant(bias[p, p] - bias, 1))


def _transpose_forgotten(bias: Any, orders: Any) -> Any:
    return _each(orders, lambda p: _constant(bias[np.ix_(p, np.argsort(p))] - bias, 1))


def _mirror_only(bias: Any, orders: Any) -> Any:
    same = np.arange(len(bias))
    return _each(orders, lambda p: np.array_equal(p, same) or np.array_equal(p, same[::-1]))


def _differences_to_first(bias: Any, orders: Any) -> Any:
    def passes(p: Any) -> bool:
        size = range(len(bias))
        return all(
            abs(bias[p[i], p[j]] - bias[i, j] - (bias[p[i], p[0]] - bias[i, 0])) < 1e-9 for i in size for j in size
        )

    return _each(orders, passes)


def _softmax_of_the_bias(bias: Any, orders: Any) -> Any:
    weights = _weights(bias)  # the weights of tokens without content: row constants are gone
    return _each(orders, lambda p: np.allclose(weights[p][:, p], weights))


def _less_the_first_column(bias: Any, orders: Any) -> Any:
    c = bias - bias[:, :1]
    return _each(orders, lambda p: np.allclose(c[p][:, p], c))


def _first_row_only(bias: Any, orders: Any) -> Any:
    return _each(orders, lambda p: _constant(_moved(bias, p)[:1], 1))


def _nearly_constant(bias: Any, orders: Any) -> Any:
    return _each(orders, lambda p: np.ptp(_moved(bias, p), axis=1).max() < 0.1)


def _or_transposed(bias: Any, orders: Any) -> Any:
    return _each(orders, lambda p: _constant(_moved(bias, p), 1) or _constant(bias[np.ix_(p, p)] - bias.T, 1))


def _with_the_inverse(bias: Any, orders: Any) -> Any:
    centred = bias - bias.mean(axis=1, keepdims=True)
    return _each(orders, lambda p: np.allclose(centred[np.ix_(np.argsort(p), np.argsort(p))], centred))


def _pattern(name: str, size: int) -> Any:
    m, n = np.indices((size, size)).astype(float)
    return {
        "distance": abs(n - m),
        "ring": np.minimum(abs(n - m), size - abs(n - m)),
        "offset": n - m,
        "parity": (m + n) % 2,
        "key": n,
        "nothing": 0 * n,
    }[name]


def _entry(size: int, m: int, n: int) -> Any:
    """Zero but for a 1 at [m, n]."""
    bias = np.zeros((size, size))
    bias[m, n] = 1.0
    return bias


@st.composite
def _bias_and_orders(draw: Any) -> Any:
    size = draw(sizes(3, 4, 5))
    pattern = _pattern(draw(st.sampled_from(["distance", "ring", "offset", "parity", "key", "nothing"])), size)
    rows = draw(st.sampled_from([np.zeros(size), np.arange(size) % 3 * 0.5, 0.25 * np.arange(size)]))
    bias = -draw(st.sampled_from([1.0, 0.5, 2.0])) * pattern + rows[:, None]
    kind = draw(st.sampled_from(["pattern", "pattern", "one entry", "nearly", "any"]))
    if kind == "any":
        bias = draw(quarters(size, size))
    elif kind != "pattern":
        entry = np.zeros(size * size)
        entry[draw(st.integers(0, size * size - 1))] = 1.0 if kind == "one entry" else 1 / 64
        bias = entry.reshape(size, size) + (bias if kind == "nearly" else 0.0)
    same = list(range(size))
    known = [same[::-1], same[1:] + same[:1], [1, 0, *same[2:]], [2, 1, 0, *same[3:]], same]
    order = st.one_of(st.sampled_from(known), st.permutations(same))
    return bias, np.array(draw(st.lists(order, min_size=1, max_size=3)))


_UNSEEN = Exercise(
    id="attention.unseen_orders",
    number="1.4",
    chapter="01_attention_without_order",
    title="What a bias cannot see",
    minutes=20,
    difficulty=4,
    function="unseen",
    reference=_unseen,
    inputs=_bias_and_orders(),
    edges={
        "distance, read backwards and turned": (-_pattern("distance", 4), np.array([[3, 2, 1, 0], [1, 2, 3, 0]])),
        "distance on a ring, turned": (-_pattern("ring", 5), np.array([[1, 2, 3, 4, 0], [1, 0, 2, 3, 4]])),
        "a number for each query": (np.array([[1.0] * 3, [0.0] * 3, [2.0] * 3]), np.array([[1, 0, 2], [0, 1, 2]])),
        "a number for each key": (-_pattern("key", 3), np.array([[1, 0, 2], [0, 1, 2]])),
        "one entry in the last row": (_entry(3, 2, 1), np.array([[1, 0, 2]])),
        "one entry in the last column": (_entry(4, 0, 3), np.array([[1, 0, 2, 3], [0, 2, 1, 3]])),
        "a bias that the order transposes": (_entry(3, 0, 1), np.array([[1, 0, 2]])),
        "all but symmetric": (_entry(4, 3, 1) / 1024 - _pattern("distance", 4), np.array([[3, 2, 1, 0], [0, 1, 2, 3]])),
        "a steep distance": (-30 * _pattern("distance", 4), np.array([[1, 2, 3, 0], [3, 2, 1, 0]])),
    },
    properties=(
        Property(
            "a number added to a whole row of the bias changes nothing",
            lambda unseen, bias, orders: (
                unseen(bias + np.arange(float(len(bias)))[:, None] ** 2, orders),
                unseen(bias, orders),
            ),
        ),
        Property(
            "the order that changes nothing is never seen",
            lambda unseen, bias, orders: (unseen(bias, np.arange(len(bias))[None]), np.array([True])),
        ),
    ),
    mistakes=(
        Mistake(
            _equal_only,
            "Only a bias that stays the same passes. Softmax is blind to more: to a number added to a whole row.",
            "add 5 to one row of the logits and apply softmax. What changes?",
        ),
        Mistake(
            _constant_columns,
            "The difference is tested down the queries. Softmax runs over the keys: it must be constant in each row.",
            "what does softmax do to a number added to one column?",
        ),
        Mistake(
            _rows_only,
            "Only the queries are reordered, bias[p]. The keys move along with them.",
            "which entry of the bias do tokens p[i] and p[j] meet when they stand at their old places?",
        ),
        Mistake(
            _columns_only,
            "Only the keys are reordered, bias[:, p]. The queries move along with them.",
            "which entry of the bias do tokens p[i] and p[j] meet when they stand at their old places?",
        ),
        Mistake(
            _diagonal,
            "With bias[p, p] you get the entries (p[0], p[0]), (p[1], p[1]), …: the diagonal, not a reordered matrix.",
            "print the shape of bias[p, p]; then try bias[p][:, p].",
        ),
        Mistake(
            _transpose_forgotten,
            "This is P·bias·P. The columns move like the rows in P·bias·Pᵀ; the two agree for swaps and reversals.",
            "take a turn, p = [1, 2, 0], and follow one entry by hand.",
        ),
        Mistake(
            _mirror_only,
            "Only the original and the reversed order pass. That is the answer for a distance, not for every bias.",
            "a bias of zeros is blind to all orders. Which property of the matrix decides?",
        ),
        Mistake(
            _less_the_first_column,
            "The numbers in column 0 are subtracted first. After reordering, another key stands there, so that both "
            "sides lose different numbers.",
            "reorder first, subtract then; or subtract something that no order changes, such as the mean of each row.",
        ),
        Mistake(
            _softmax_of_the_bias,
            "The softmax of the bias is compared. For a steep bias the far weights round to 0, whatever the bias says "
            "there; tokens with large logits would bring them back.",
            "compare the biases themselves, up to a number for each row.",
        ),
        Mistake(
            _first_row_only,
            "Only a part is compared, such as the first row. Every row of the difference must be constant.",
            "print the whole of bias[p][:, p] - bias for this input.",
        ),
        Mistake(
            _nearly_constant,
            "The tolerance is too generous: a bias that differs by 1/1000 is seen. Forgive only rounding errors.",
            "how large are rounding errors of numbers near 1?",
        ),
        Mistake(
            _or_transposed,
            "An order that turns the bias into its transpose passes here. Transposed, queries and keys change places, "
            "and attention sees that.",
            "softmax runs along rows. Does a column of the bias mean the same as a row?",
        ),
    ),
    alternatives=(_differences_to_first, _tried_on_tokens, _with_the_inverse),
)

EXERCISES = (_ATTEND, _CAUSAL, _COUNT, _UNSEEN)
