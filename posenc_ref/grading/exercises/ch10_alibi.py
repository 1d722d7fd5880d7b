"""Exercises of chapter 10: ALiBi."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.attention import Encoding, attention
from posenc_ref.bias.alibi import slopes
from posenc_ref.bias.offsets import offsets
from posenc_ref.grading.exercise import Exercise, Mistake, Property, integers, quarters, sizes
from posenc_ref.positions import causal

TITLE = "ALiBi"


def _softmax(x: Any, axis: int = -1) -> Any:
    w = np.exp(x - x.max(axis=axis, keepdims=True))
    return w / w.sum(axis=axis, keepdims=True)


def _slope(draw: Any) -> float:
    return float(draw(st.sampled_from([0.5, 0.25, 1.0, 0.7])))


# --- 10.1 slopes


def _power(num_heads: int) -> int:
    """The largest power of two that is not above ``num_heads``."""
    return int(2 ** (num_heads.bit_length() - 1))


def _series(count: int) -> Any:
    return 2.0 ** (-8 * np.arange(1, count + 1) / count)


def _with_extra(num_heads: int, extra: Any) -> Any:
    return np.concatenate([_series(_power(num_heads)), extra])[:num_heads]


def _slopes(num_heads: int) -> Any:
    return slopes(num_heads)


def _plain_formula(num_heads: int) -> Any:
    return _series(num_heads)


def _sorted_slopes(num_heads: int) -> Any:
    return -np.sort(-slopes(num_heads))


def _from_one(num_heads: int) -> Any:
    return slopes(num_heads) * 2.0 ** (8 / _power(num_heads))


def _first_of_the_double(num_heads: int) -> Any:
    p = _power(num_heads)
    return _series(p if p == num_heads else 2 * p)[:num_heads]


def _even_places(num_heads: int) -> Any:
    return _with_extra(num_heads, _series(2 * _power(num_heads))[1::2])


def _side_by_side(num_heads: int) -> Any:
    return _with_extra(num_heads, _series(2 * _power(num_heads)))


def _continued(num_heads: int) -> Any:
    return 2.0 ** (-8 * np.arange(1, num_heads + 1) / _power(num_heads))


def _new_ones_first(num_heads: int) -> Any:
    s = slopes(num_heads)
    return np.roll(s, num_heads - _power(num_heads))


def _halves(num_heads: int) -> Any:
    return 0.5 ** np.arange(1, num_heads + 1)


def _negative_slopes(num_heads: int) -> Any:
    return -slopes(num_heads)


def _slopes_recursive(num_heads: int) -> Any:
    p = _power(num_heads)
    if p == num_heads:
        return np.cumprod(np.full(p, 256.0 ** (-1 / p)))
    return np.concatenate([_slopes_recursive(p), _slopes_recursive(2 * p)[::2][: num_heads - p]])


def _slopes_dealt(num_heads: int) -> Any:
    p = _power(num_heads)
    places = [*range(2, 2 * p + 1, 2), *range(1, 2 * p, 2)]  # even places of the double, then odd ones
    return np.array([math.exp(-place * math.log(256) / (2 * p)) for place in places[:num_heads]])


_SLOPES = Exercise(
    id="alibi.slopes",
    number="10.1",
    chapter="10_alibi",
    title="Slopes for any number of heads",
    minutes=8,
    difficulty=2,
    function="slopes",
    reference=_slopes,
    inputs=st.tuples(st.integers(1, 160)),
    edges={"three heads": (3,), "eight heads": (8,), "twelve heads": (12,), "BLOOM's 112 heads": (112,)},
    properties=(
        Property(
            "a power of two keeps its slopes when heads are added", lambda f, n: (f(n)[: _power(n)], f(_power(n)))
        ),
        Property("no two heads share a slope", lambda f, n: (len(np.unique(f(n).round(12))), n)),
    ),
    mistakes=(
        Mistake(
            _plain_formula,
            "This is 2^(−8h/n) for every n. It is right for powers of two; other counts take the slopes of the power "
            "below, then new ones of its double.",
            "which four slopes come first when there are 6 heads?",
        ),
        Mistake(
            _sorted_slopes,
            "These are the right slopes in falling order. The order belongs to trained models: after those of the "
            "power of two the list begins again.",
            "leave out the sorting. Is the fifth of 6 slopes larger than the fourth?",
        ),
        Mistake(
            _from_one,
            "The sequence starts at 1, as if heads were counted from 0. It starts at its own ratio.",
            "with 8 heads the first slope is 1/2.",
        ),
        Mistake(
            _first_of_the_double,
            "These are the first slopes of the power of two above. The flattest heads, down to 1/256, are missing.",
            "which slopes of 8 heads does a model with 4 heads have?",
        ),
        Mistake(
            _even_places,
            "The extra heads repeat slopes that are there already: these are the even places of the double.",
            "which places of the double are new: 1, 3, 5 or 2, 4, 6?",
        ),
        Mistake(
            _side_by_side,
            "The extra slopes are neighbours in the double, so that every second one is there already.",
            "take every other one, from the first.",
        ),
        Mistake(
            _continued,
            "The sequence of the power of two goes on below 1/256. The extra heads go between the others, not beyond.",
            "no slope is below 1/256.",
        ),
        Mistake(
            _new_ones_first,
            "The new slopes stand in front. They come after those of the power of two.",
            "for 6 heads the list begins with 1/4.",
        ),
        Mistake(
            _halves,
            "Each slope is half of the one before. That is right for 8 heads only.",
            "with 16 heads the ratio is 2^(−8/16).",
        ),
        Mistake(
            _negative_slopes,
            "The slopes are negative. Here they are positive numbers, and the minus sign belongs to the bias.",
        ),
    ),
    alternatives=(_slopes_recursive, _slopes_dealt),
)

# --- 10.2 both directions


def _symmetric(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return -slopes[:, None, None] * np.abs(offsets(q_positions, k_positions)[0, 0])


def _by_offset(slopes: Any, offset: Any) -> Any:
    return slopes[:, None, None] * offset


def _one_sided(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return _by_offset(slopes, k_positions[None, :] - q_positions[:, None])


def _one_sided_flipped(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return _by_offset(slopes, q_positions[:, None] - k_positions[None, :])


def _rewarded(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return -_symmetric(slopes, q_positions, k_positions)


def _by_index(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return _symmetric(slopes, np.arange(len(q_positions)), np.arange(len(k_positions)))


def _both_from_zero(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return _symmetric(slopes, q_positions - q_positions[0], k_positions - k_positions[0])


def _future_free(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return np.minimum(_one_sided(slopes, q_positions, k_positions), 0.0)


def _one_slope(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return _symmetric(np.full(len(slopes), slopes[0]), q_positions, k_positions)


def _own_slopes(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return _symmetric(_slopes(len(slopes)), q_positions, k_positions)


def _row_for_all(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    return _by_offset(slopes, np.broadcast_to(k_positions, (len(q_positions), len(k_positions))))


def _symmetric_loops(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    bias = np.zeros((len(slopes), len(q_positions), len(k_positions)))
    for h, s in enumerate(slopes):
        for i, m in enumerate(q_positions):
            for j, n in enumerate(k_positions):
                bias[h, i, j] = -s * (max(m, n) - min(m, n))
    return bias


def _symmetric_minimum(slopes: Any, q_positions: Any, k_positions: Any) -> Any:
    forward = np.einsum("h,qk->hqk", slopes, np.subtract.outer(-q_positions, -k_positions).astype(float))
    return np.minimum(forward, -forward)


@st.composite
def _positions(draw: Any) -> Any:
    heads, q_len, k_len = draw(sizes(1, 2, 3)), draw(sizes(1, 2, 3)), draw(sizes(1, 2, 4))
    chosen = draw(st.permutations([0.25, 0.75, 2.0]))[:heads]
    return np.array(chosen), draw(integers(q_len)), draw(integers(k_len))


_SYMMETRIC = Exercise(
    id="alibi.symmetric",
    number="10.2",
    chapter="10_alibi",
    title="Looking both ways",
    minutes=8,
    difficulty=1,
    function="symmetric_bias",
    draw=True,
    reference=_symmetric,
    inputs=_positions(),
    edges={
        "keys on both sides": (np.array([0.5, 0.1]), np.array([7, 3]), np.array([2, 9, 3, 12, 0])),
        "far positions": (np.array([0.5]), np.array([100_000]), np.array([99_998, 100_001])),
    },
    properties=(
        Property("queries and keys exchanged: transposed", lambda f, s, q, k: (f(s, q, k), f(s, k, q).swapaxes(1, 2))),
        Property("the same when all positions grow by 1000", lambda f, s, q, k: (f(s, q + 1000, k + 1000), f(s, q, k))),
    ),
    mistakes=(
        Mistake(
            _one_sided,
            "This is the causal form: keys after the query get a positive bias. Here both sides are penalised.",
            "which sign should a key after the query get?",
        ),
        Mistake(
            _one_sided_flipped,
            "Keys before the query get a positive bias. Here both sides are penalised.",
            "which function gives a distance whatever the order?",
        ),
        Mistake(
            _rewarded,
            "The minus sign is missing: the farther a key, the more it is paid.",
            "which number should be the largest of a row?",
        ),
        Mistake(
            _by_index,
            "The distances are between indices of the arrays. The positions are given, and may be any.",
            "try one query at position 7 and one key at position 2.",
        ),
        Mistake(
            _both_from_zero,
            "Queries and keys are both counted from their own first position. That loses how far apart they are.",
            "try one query at position 7 and one key at position 2.",
        ),
        Mistake(
            _future_free,
            "Keys after the query cost nothing. Here both sides are penalised.",
            "take the absolute value, not the minimum.",
        ),
        Mistake(
            _one_slope,
            "All heads got the first slope.",
            "give the slopes two more axes: their shape should be (heads, 1, 1).",
        ),
        Mistake(
            _own_slopes,
            "The slopes are computed anew from the number of heads. Use those that are given.",
        ),
        Mistake(
            _row_for_all,
            "Every query got the same row, slope times the key's position. That works under a causal mask only.",
            "without a mask, does a row of −s·|m − n| differ from another one by a constant?",
        ),
    ),
    alternatives=(_symmetric_loops, _symmetric_minimum),
)

# --- 10.3 one more channel


def _joined(q: Any, factor: float, constant: float) -> Any:
    return np.concatenate([q * factor, np.full((len(q), 1), constant)], axis=1)


def _fold(q: Any, slope: float) -> Any:
    d = q.shape[1]
    return _joined(q, math.sqrt((d + 1) / d), slope * math.sqrt(d + 1))


def _old_scale(q: Any, slope: float) -> Any:
    return _joined(q, 1.0, slope * math.sqrt(q.shape[1]))


def _query_as_it_was(q: Any, slope: float) -> Any:
    return _joined(q, 1.0, slope * math.sqrt(q.shape[1] + 1))


def _constant_old_scale(q: Any, slope: float) -> Any:
    d = q.shape[1]
    return _joined(q, math.sqrt((d + 1) / d), slope * math.sqrt(d))


def _bare_slope(q: Any, slope: float) -> Any:
    d = q.shape[1]
    return _joined(q, math.sqrt((d + 1) / d), slope)


def _nothing_scaled(q: Any, slope: float) -> Any:
    return _joined(q, 1.0, slope)


def _ratio_upside_down(q: Any, slope: float) -> Any:
    d = q.shape[1]
    return _joined(q, math.sqrt(d / (d + 1)), slope * math.sqrt(d + 1))


def _constant_negative(q: Any, slope: float) -> Any:
    return _fold(q, -slope)


def _divided_once_more(q: Any, slope: float) -> Any:
    return _fold(q, slope) / (q.shape[1] + 1)


def _channel_in_front(q: Any, slope: float) -> Any:
    return np.roll(_fold(q, slope), 1, axis=1)


def _no_root(q: Any, slope: float) -> Any:
    d = q.shape[1]
    return _joined(q, (d + 1) / d, slope * (d + 1))


def _constant_scaled_twice(q: Any, slope: float) -> Any:
    d = q.shape[1]
    return _joined(q, 1.0, slope * math.sqrt(d + 1)) * math.sqrt((d + 1) / d)


def _fold_filled(q: Any, slope: float) -> Any:
    count, d = q.shape
    more = np.empty((count, d + 1))
    for i in range(count):
        more[i, :d] = q[i] / d**0.5
        more[i, d] = slope
    return more * (d + 1) ** 0.5


def _fold_matrix(q: Any, slope: float) -> Any:
    count, d = q.shape
    scales = np.diag([math.sqrt(1 + 1 / d)] * d + [slope * math.sqrt(1 + d)])
    return np.hstack([q, np.ones((count, 1))]) @ scales


@st.composite
def _queries(draw: Any) -> Any:
    count, d = draw(sizes(1, 2, 3)), draw(sizes(2, 3, 4))
    return draw(quarters(count, d)), _slope(draw)


class _OneHead(Encoding):
    """Causal ALiBi for one head of a given slope."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def bias(self, q: Any, k: Any, *, q_positions: Any, k_positions: Any, mask: Any = None) -> Any:
        return self.slope * offsets(q_positions, k_positions)


def _kernel(fold: Any, q: Any, slope: float) -> Any:
    count, d = q.shape
    n = np.arange(count + 3)  # three keys in a cache
    k = np.cos(np.arange(len(n) * d)).reshape(-1, d)
    more, mask = fold(q, slope), causal(n[3:], n)
    # attention's own scale is that of d + 1 channels; unit vectors as values show the weights
    ours = attention(more[None, None], np.hstack([k, n[:, None]])[None, None], np.eye(len(n))[None, None], mask=mask)
    right = attention(
        q[None, None],
        k[None, None],
        np.eye(len(n))[None, None],
        encoding=_OneHead(slope),
        q_positions=n[3:],
        k_positions=n,
        mask=mask,
    )
    return ours, right


_FOLD = Exercise(
    id="alibi.fold",
    number="10.3",
    chapter="10_alibi",
    title="The bias as one more channel",
    minutes=15,
    difficulty=3,
    function="folded_query",
    kinds=("derive",),
    reference=_fold,
    inputs=_queries(),
    edges={"a wide head (64 channels)": (np.cos(np.arange(128.0)).reshape(2, 64), 1 / 256)},
    properties=(Property("the kernel's weights, masked, are ALiBi's", _kernel),),
    mistakes=(
        Mistake(
            _old_scale,
            "This suits a kernel that divides by √d. This one sees d + 1 channels and divides by √(d + 1).",
            "what does the kernel make of the content now, and of the last channel?",
        ),
        Mistake(
            _query_as_it_was,
            "The last channel is right, but the content is now divided by √(d + 1) where √d is asked for.",
            "by which factor must q grow, so that the kernel's division gives q·k/√d?",
        ),
        Mistake(
            _constant_old_scale,
            "The content is right, but the last channel has √d where the kernel divides by √(d + 1).",
            "after the kernel's division, slope · n should be left.",
        ),
        Mistake(
            _bare_slope,
            "The content is right. The last channel is the slope itself, which the kernel then divides by √(d + 1).",
            "after the kernel's division, slope · n should be left.",
        ),
        Mistake(
            _nothing_scaled,
            "Neither the content nor the last channel allows for the kernel's division by √(d + 1).",
            "write down what the kernel computes, and compare it with q·k/√d + slope · n.",
        ),
        Mistake(
            _ratio_upside_down,
            "The factor of the content is upside down: q must grow, as the kernel divides by more than √d.",
            "is √((d + 1)/d) above or below 1?",
        ),
        Mistake(
            _constant_negative,
            "The last channel is negative: keys with larger positions, which are nearer, are penalised.",
            "under a causal mask, which key has the largest position?",
        ),
        Mistake(
            _divided_once_more,
            "Everything is divided by √(d + 1) here, and the kernel divides by it again.",
            "multiply by what the kernel will divide by.",
        ),
        Mistake(
            _channel_in_front,
            "The new channel stands in front. The keys have theirs at the end.",
        ),
        Mistake(
            _no_root,
            "The roots are missing: the kernel divides by √(d + 1), not by d + 1.",
        ),
        Mistake(
            _constant_scaled_twice,
            "The whole vector is stretched, with the new channel in it, which then has one factor too many.",
            "stretch the content first, then append the constant.",
        ),
    ),
    alternatives=(_fold_filled, _fold_matrix),
)

# --- 10.4 behind a cache


def _weights(content: Any, slope: float, mask: Any, offset: Any) -> Any:
    return _softmax(np.where(mask, content + slope * offset, -1e30))


def _places(content: Any) -> tuple[Any, Any]:
    """Positions of the queries, as a column, and of the keys."""
    q_len, k_len = content.shape
    return np.arange(k_len - q_len, k_len)[:, None], np.arange(k_len)


def _decode(content: Any, slope: float) -> Any:
    m, n = _places(content)
    # the reference's attention: unit vectors of queries and keys make the content, unit values show the weights
    q, k = content * math.sqrt(len(n)), np.eye(len(n))
    y = attention(
        q[None, None],
        k[None, None],
        k[None, None],
        encoding=_OneHead(slope),
        q_positions=m[:, 0],
        k_positions=n,
        mask=causal(m[:, 0], n),
    )
    return y[0, 0]


def _top_left(content: Any, slope: float) -> Any:
    m, n = _places(content)
    return _weights(content, slope, n <= m - m[0], n - m)


def _no_mask(content: Any, slope: float) -> Any:
    m, n = _places(content)
    return _weights(content, slope, n >= 0, n - m)


def _no_mask_distance(content: Any, slope: float) -> Any:
    m, n = _places(content)
    return _weights(content, slope, n >= 0, -np.abs(n - m))


def _self_hidden(content: Any, slope: float) -> Any:
    m, n = _places(content)
    return _weights(content, slope, n < m, n - m)


def _prize_for_distance(content: Any, slope: float) -> Any:
    m, n = _places(content)
    return _weights(content, slope, n <= m, m - n)


def _distance_from_the_top(content: Any, slope: float) -> Any:
    m, n = _places(content)
    return _weights(content, slope, n <= m, -np.abs(n - (m - m[0])))


def _masked_after(content: Any, slope: float) -> Any:
    m, n = _places(content)
    return _no_mask(content, slope) * (n <= m)


def _zero_for_hidden(content: Any, slope: float) -> Any:
    m, n = _places(content)
    return _softmax(np.where(n <= m, content + slope * (n - m), 0.0))


def _no_bias(content: Any, slope: float) -> Any:
    return _decode(content, 0.0)


def _all_old_keys(content: Any, slope: float) -> Any:
    m, n = _places(content)
    return _weights(content, slope, n <= m[0] + 0 * m, n - m)


def _exponentials(content: Any, slope: float) -> Any:
    m, n = _places(content)
    w = np.where(n <= m, np.exp(content + slope * (n - m)), 0.0)
    return w / w.sum(axis=1, keepdims=True)


def _decode_row(content: Any, slope: float) -> Any:
    q_len, k_len = content.shape
    hidden = np.triu(np.full((q_len, k_len), -np.inf), k_len - q_len + 1)
    return _softmax(content + slope * np.arange(k_len) + hidden)


def _decode_loops(content: Any, slope: float) -> Any:
    q_len, k_len = content.shape
    weights = np.zeros(content.shape)
    for i in range(q_len):
        seen = k_len - q_len + i + 1
        largest = max(content[i, :seen])
        w = [math.exp(content[i, n] - largest - slope * (seen - 1 - n)) for n in range(seen)]
        weights[i, :seen] = np.array(w) / sum(w)
    return weights


@st.composite
def _chunks(draw: Any) -> Any:
    new, cached = draw(sizes(1, 2, 3)), draw(sizes(1, 2, 4))
    return draw(quarters(new, cached + new)), _slope(draw)


def _when_it_was_last(decode: Any, content: Any, slope: float) -> Any:
    seen = content.shape[1] - content.shape[0] + 1
    return decode(content, slope)[:1, :seen], decode(content[:1, :seen], slope)


_LARGE = np.array([[900.0, 901.0, 900.5, 899.0], [-900.0, -901.0, -900.5, -899.5], [0.0, 1.0, 2.0, 0.5], [1.0] * 4])

_CHUNK = Exercise(
    id="alibi.chunk",
    number="10.4",
    chapter="10_alibi",
    title="A chunk behind a cache",
    minutes=12,
    difficulty=2,
    function="decode_weights",
    kinds=("cache",),
    draw=True,
    reference=_decode,
    inputs=_chunks(),
    edges={
        "three new tokens behind five, equal contents": (np.zeros((3, 8)), 0.5),
        "one new token": (np.array([[0.0, 1.0, -1.0, 0.5]]), 0.25),
        "logits near 900 and near −900": (_LARGE[:2], 0.5),
    },
    properties=(
        Property("the first new query gets what it got when it was the last token", _when_it_was_last),
        Property("weights of a query add up to 1", lambda f, c, s: (f(c, s).sum(axis=1), np.ones(len(c)))),
    ),
    mistakes=(
        Mistake(
            _top_left,
            "The mask begins at the top left: the first new query sees the first key alone. The queries are the last "
            "tokens, and the mask must end at the bottom right.",
            "with 5 tokens cached, at which position does the first new query stand?",
        ),
        Mistake(
            _no_mask,
            "The mask is missing. With s·(n − m) a key after the query even gets a prize.",
            "how many of the keys may the first new query see?",
        ),
        Mistake(
            _no_mask_distance,
            "The mask is missing: this is attention in both directions.",
            "how many of the keys may the first new query see?",
        ),
        Mistake(
            _self_hidden,
            "A query does not see its own token. The causal mask hides only keys after it.",
            "is n = m allowed?",
        ),
        Mistake(
            _prize_for_distance,
            "The sign is flipped: far keys get a prize.",
            "with equal contents, which key should have the largest weight?",
        ),
        Mistake(
            _distance_from_the_top,
            "The mask is right, but distances are counted as if the first new query stood at 0.",
            "with 5 tokens cached, how far is the first new query from the first key?",
        ),
        Mistake(
            _masked_after,
            "The weights of hidden keys are set to 0 after softmax, so that those of a query no longer add up to 1.",
            "hide keys before softmax: with −inf as their logit.",
        ),
        Mistake(
            _zero_for_hidden,
            "Hidden keys have the logit 0, which is a logit like others: e^0 is 1.",
            "which logit has weight 0?",
        ),
        Mistake(
            _no_bias,
            "The mask is right, but there is no bias.",
            "with equal contents, is your weight of a far key smaller?",
        ),
        Mistake(
            _exponentials,
            "The exponential is taken of the logits as they are. Beyond 709 it is ∞ in float64, and ∞/∞ is no number; "
            "far below 0, all weights of a row are 0.",
            "softmax does not change if a number is taken off a whole row. Which one helps?",
        ),
        Mistake(
            _all_old_keys,
            "All queries see the same keys, those up to the first new token. Later queries see more.",
            "which keys may the last query see?",
        ),
    ),
    alternatives=(_decode_row, _decode_loops),
)

# --- 10.5 a report to judge


def _both_ways(content: Any, slope: float, masked: bool, released: Any = None) -> tuple[Any, Any]:
    n = np.arange(len(content))
    mask = n <= n[:, None] if masked else n >= 0
    as_released = slope * n if released is None else released
    return _weights(content, 1.0, mask, as_released), _weights(content, slope, mask, -np.abs(n - n[:, None]))


def _gap(content: Any, slope: float, masked: bool) -> float:
    code, paper = _both_ways(content, slope, masked)
    return float(np.abs(code - (_decode(content, slope) if masked else paper)).max())


def _always_zero(content: Any, slope: float, masked: bool) -> float:
    return 0.0


def _never_masked(content: Any, slope: float, masked: bool) -> float:
    return _gap(content, slope, False)


def _matrices_compared(content: Any, slope: float, masked: bool) -> float:
    n = np.arange(len(content))
    mask = n <= n[:, None] if masked else n >= 0
    return float(np.abs(np.where(mask, slope * n + slope * np.abs(n - n[:, None]), 0.0)).max())


def _whole_matrices_compared(content: Any, slope: float, masked: bool) -> float:
    return _matrices_compared(content, slope, False)


def _made_negative(content: Any, slope: float, masked: bool) -> float:
    n = np.arange(len(content))
    code, paper = _both_ways(content, slope, masked, released=-slope * n)
    return float(np.abs(code - paper).max())


def _mean_gap(content: Any, slope: float, masked: bool) -> float:
    code, paper = _both_ways(content, slope, masked)
    return float(np.abs(code - paper).mean())


def _signed_gap(content: Any, slope: float, masked: bool) -> float:
    code, paper = _both_ways(content, slope, masked)
    return float((code - paper).max())


def _sum_of_gaps(content: Any, slope: float, masked: bool) -> float:
    code, paper = _both_ways(content, slope, masked)
    return float(np.abs(code - paper).sum())


def _hidden_counted(content: Any, slope: float, masked: bool) -> float:
    code, paper = _both_ways(content, slope, False)
    n = np.arange(len(content))
    return float(np.abs(np.where(n <= n[:, None], code - paper, 0.0)).max()) if masked else _gap(content, slope, False)


def _gap_loops(content: Any, slope: float, masked: bool) -> float:
    largest = 0.0
    for m, row in enumerate(content):
        keys = range(m + 1 if masked else len(row))
        top = max(row[n] for n in keys)
        code = [math.exp(row[n] - top + slope * n) for n in keys]
        paper = [math.exp(row[n] - top - slope * abs(m - n)) for n in keys]
        largest = max(largest, *(abs(a / sum(code) - b / sum(paper)) for a, b in zip(code, paper, strict=True)))
    return largest


def _gap_by_products(content: Any, slope: float, masked: bool) -> float:
    n = np.arange(len(content))
    content = np.where(n <= n[:, None], content, -np.inf) if masked else content
    e = np.exp(content - content.max(axis=1, keepdims=True))  # the bias multiplies the exponentials
    code, paper = e * np.exp(slope * n), e * np.exp(-slope * np.abs(np.subtract.outer(n, n)))
    return float(np.abs(code / code.sum(1, keepdims=True) - paper / paper.sum(1, keepdims=True)).max())


@st.composite
def _reported(draw: Any) -> Any:
    length = draw(sizes(2, 3, 4))
    return draw(quarters(length, length)), _slope(draw), draw(st.booleans())


_REPORT = Exercise(
    id="alibi.positive",
    number="10.5",
    chapter="10_alibi",
    title="Is this a bug? A bias that grows",
    minutes=15,
    difficulty=3,
    function="largest_gap",
    kinds=("bug",),
    reference=_gap,
    inputs=_reported(),
    edges={
        "equal contents, masked": (np.zeros((4, 4)), 0.5, True),
        "equal contents, no mask": (np.zeros((4, 4)), 0.5, False),
        "one louder key, no mask": (np.array([[1.0, 0, 0], [0, 0, 0], [0, 0, 0]]), 0.5, False),
        "logits near 900 and near −900": (_LARGE, 0.5, False),
    },
    mistakes=(
        Mistake(
            _always_zero,
            "The gap is 0 in every case. Under a causal mask that is right. Without one you have either masked all the "
            "same, or written the paper's penalty as s·(n − m), which is not −s·|m − n| for keys after the query.",
            "equal contents, no mask: which weights does the first query get, in both ways?",
        ),
        Mistake(
            _never_masked,
            "The mask is missing: with masked = True, keys after the query must get no weight in either way.",
            "hide them before softmax.",
        ),
        Mistake(
            _matrices_compared,
            "The two matrices are compared. A model never sees them: it sees the weights that softmax makes.",
            "what does softmax do to a constant that is added to a row?",
        ),
        Mistake(
            _whole_matrices_compared,
            "The two matrices are compared, with keys that the mask may hide. Compare attention weights: they are what "
            "a model works with.",
            "what does softmax do to a constant that is added to a row?",
        ),
        Mistake(
            _made_negative,
            "One of the two biases has the wrong sign; both ways give this gap. The released row is s·n, growing to "
            "the right, and the paper has −s·|m − n|.",
            "print both for four tokens: where is the paper's largest number in each row?",
        ),
        Mistake(
            _signed_gap,
            "The absolute value is missing: this is the largest of the signed differences.",
            "which is larger in size, 0.2 or −0.3?",
        ),
        Mistake(_mean_gap, "This is the mean of the differences. The largest one is asked for."),
        Mistake(_sum_of_gaps, "The differences are added up. The largest one is asked for."),
        Mistake(
            _hidden_counted,
            "The softmax runs over all keys, and hidden ones are left out of the comparison only. They must be hidden "
            "before softmax, as they take weight from the others.",
        ),
    ),
    alternatives=(_gap_loops, _gap_by_products),
)

# --- 10.6 a fused kernel with a cache, in PyTorch


def _attend(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    (heads, q_len, d), (kv_heads, k_len, _) = q.shape, k.shape
    m, n = np.arange(k_len - q_len, k_len)[:, None], np.arange(k_len)
    y = np.zeros((heads, q_len, v.shape[2]))
    for h, slope in enumerate(slopes):
        kv = h * kv_heads // heads
        logits = np.where(n <= m, q[h] @ k[kv].T / math.sqrt(d) - slope * (m - n), -np.inf)
        y[h] = _softmax(logits) @ v[kv]
    return y


def _sdpa(
    q: Any, k: Any, v: Any, slopes: Any, *, first: Any = None, mask_first: Any = None, tiled: bool = False,
    scale: Any = None, sign: float = -1.0, masked: bool = True, bias_scale: float = 1.0,
) -> Any:  # fmt: skip
    """Attention with ALiBi through the kernel, in as many right and wrong ways as its arguments have."""
    import torch

    (heads, q_len, _), (kv_heads, k_len, _) = q.shape, k.shape
    first = k_len - q_len if first is None else first
    mask_first = k_len - q_len if mask_first is None else mask_first
    m, n = torch.arange(q_len)[:, None], torch.arange(k_len)
    bias = sign * slopes[:, None, None] * (m + first - n) * bias_scale
    if masked:
        bias = bias.masked_fill(n > m + mask_first, -math.inf)
    group = heads // kv_heads
    k, v = (x.repeat(group, 1, 1) if tiled else x.repeat_interleave(group, dim=0) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def _kernel_from_zero(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    # the bias could stay as it is: from another position it differs by a constant in each row
    return _sdpa(q, k, v, slopes, first=0, mask_first=0)


def _kernel_unmasked(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return _sdpa(q, k, v, slopes, masked=False)


def _kernel_flag_and_bias(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    import torch

    k, v = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (k, v))
    bias = -slopes[:, None, None] * (torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1]))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=True)


def _kernel_tiled(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return _sdpa(q, k, v, slopes, tiled=True)


def _kernel_prize(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return _sdpa(q, k, v, slopes, sign=1.0)


def _kernel_scaled_twice(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return _sdpa(q / math.sqrt(q.shape[2]), k, v, slopes)


def _kernel_bias_scaled(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return _sdpa(q, k, v, slopes, bias_scale=q.shape[2] ** -0.5)


def _kernel_own_hidden(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return _sdpa(q, k, v, slopes, mask_first=k.shape[1] - q.shape[1] - 1)


def _kernel_one_too_many(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return _sdpa(q, k, v, slopes, mask_first=k.shape[1] - q.shape[1] + 1)


def _kernel_first_slopes(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return _sdpa(q, k, v, slopes[: len(k)].repeat_interleave(len(q) // len(k)))


def _kernel_repeated(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return _sdpa(q, k, v, slopes)


def _kernel_grouped(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    import torch

    q_len, k_len = q.shape[1], k.shape[1]
    seen = torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)
    bias = torch.where(seen, slopes[:, None, None] * torch.arange(k_len), -math.inf)  # a constant in a row cancels
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q[None], k[None], v[None], attn_mask=bias[None], enable_gqa=True)[0]


def _without_a_kernel(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    import torch

    q, slopes = q.unflatten(0, (len(k), -1)), slopes.unflatten(0, (len(k), -1))
    n = torch.arange(k.shape[1])
    distance = n[-q.shape[2] :, None] - n
    logits = torch.einsum("cgqd,ckd->cgqk", q, k) / math.sqrt(q.shape[3]) - slopes[..., None, None] * distance
    weights = logits.masked_fill(distance < 0, -math.inf).softmax(-1)
    return torch.einsum("cgqk,ckd->cgqd", weights, v).flatten(0, 1)


@st.composite
def _grouped(draw: Any) -> Any:
    kv_heads, group, d = draw(sizes(1, 2, 3)), draw(sizes(1, 2, 3)), draw(sizes(1, 2, 3))
    new, cached = draw(sizes(1, 2, 3)), draw(sizes(1, 2, 4))
    slopes = 0.75 ** np.arange(1.0, kv_heads * group + 1)
    k, v = draw(quarters(kv_heads, cached + new, d)), draw(quarters(kv_heads, cached + new, d))
    return draw(quarters(kv_heads * group, new, d)), k, v, slopes


_KERNEL_WAVES = np.cos(np.arange(1.0, 301.0) ** 2)

_KERNEL = Exercise(
    id="alibi.kernel",
    number="10.6",
    chapter="10_alibi",
    title="ALiBi in a fused kernel, behind a cache",
    minutes=15,
    difficulty=3,
    function="attend",
    reference=_attend,
    kinds=("torch", "cache"),
    inputs=_grouped(),
    edges={
        "two new tokens behind five, six heads on two": (
            _KERNEL_WAVES[:48].reshape(6, 2, 4), _KERNEL_WAVES[48:104].reshape(2, 7, 4),
            _KERNEL_WAVES[104:160].reshape(2, 7, 4), np.array([0.5, 0.25, 0.125, 0.7, 0.6, 0.05]),
        ),
        "logits near 900 and near −900": (
            np.array([[[900.0], [-900.0]]]), 1 + np.arange(4.0).reshape(1, 4, 1) / 1024,
            _KERNEL_WAVES[:4].reshape(1, 4, 1), np.array([0.5]),
        ),
        "a hidden logit far above the visible ones": (
            np.array([[[1000.0], [-1000.0]]]), np.array([[[-5.0], [-6.0], [20.0]]]),
            np.array([[[1.0], [2.0], [9.0]]]), np.array([0.5]),
        ),
        "no cache yet": (
            _KERNEL_WAVES[:12].reshape(2, 3, 2), _KERNEL_WAVES[12:18].reshape(1, 3, 2),
            _KERNEL_WAVES[18:24].reshape(1, 3, 2), np.array([0.5, 0.25]),
        ),
    },
    properties=(
        Property(
            "a chunk is the same as its tokens one by one",
            lambda f, q, k, v, s: (
                f(q, k, v, s)[:, :1],
                f(q[:, :1], k[:, : k.shape[1] - q.shape[1] + 1], v[:, : k.shape[1] - q.shape[1] + 1], s),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _kernel_from_zero,
            "Mask and bias count the queries from 0, so that new tokens do not see the whole cache. The first of them "
            "stands at k_len − q_len.",
            "behind a cache of 5, how many keys may the one new token see?",
        ),
        Mistake(
            _kernel_unmasked,
            "Nothing is hidden: a mask of numbers is added to the logits, and keys after the query even get a prize.",
            "which number hides a key? masked_fill puts it there.",
        ),
        Mistake(
            _kernel_flag_and_bias,
            "The kernel takes a mask or is_causal=True, not both. With a cache the flag would not help: it is aligned "
            "at the top left.",
            "put the causal mask into the bias.",
        ),
        Mistake(
            _kernel_tiled,
            "Tensor.repeat copies all heads of the cache one after the other: 0, 1, 0, 1. Heads of a group are "
            "neighbours: 0, 0, 1, 1.",
            "with six heads on two, which head of the cache does head 1 read?",
        ),
        Mistake(
            _kernel_prize,
            "The sign is flipped: far keys get a prize.",
            "with equal queries and keys, which key should have the largest weight?",
        ),
        Mistake(
            _kernel_scaled_twice,
            "The logits are divided by √d twice: the kernel does it too.",
            "hand over q as it is.",
        ),
        Mistake(
            _kernel_bias_scaled,
            "The bias is divided by √d. The kernel divides the products of q and k, then adds the mask as it is.",
            "hand over −s·(m − n) as it is.",
        ),
        Mistake(
            _kernel_own_hidden,
            "A new token does not see its own key. Only keys after it are hidden.",
            "is n = m allowed?",
        ),
        Mistake(
            _kernel_one_too_many,
            "A token sees the one after it. In a chunk of two, the first must not see the second.",
            "compare a chunk of two with two chunks of one.",
        ),
        Mistake(
            _kernel_first_slopes,
            "Heads that share keys got one slope between them. Slopes belong to the heads of the queries, one for "
            "each.",
            "print the shape of your bias: is its first axis as long as q's?",
        ),
    ),
    alternatives=(_kernel_repeated, _kernel_grouped, _without_a_kernel),
)  # fmt: skip

EXERCISES = (_SLOPES, _SYMMETRIC, _FOLD, _CHUNK, _REPORT, _KERNEL)
