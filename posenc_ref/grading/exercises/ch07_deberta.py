"""Exercises of chapter 07: DeBERTa's disentangled attention."""

import math
from bisect import bisect_left
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.content import deberta_bias, deberta_bias_by_pair, deberta_bucket, deberta_index, deberta_scale
from posenc_ref.grading.exercise import Exercise, Mistake, Property, integers, quarters, sizes

TITLE = "DeBERTa, content and position apart"


def _offset(q_positions: Any, k_positions: Any) -> Any:
    """Query − key, as the paper counts."""
    return q_positions[:, None] - k_positions


# --- 7.1 the row of a pair


def _delta(q_positions: Any, k_positions: Any, span: int) -> Any:
    return deberta_index(q_positions, k_positions, span=span)[0, 0]


def _key_minus_query(q_positions: Any, k_positions: Any, span: int) -> Any:
    return np.clip(-_offset(q_positions, k_positions) + span, 0, 2 * span - 1)


def _one_row_more(q_positions: Any, k_positions: Any, span: int) -> Any:
    return np.clip(_offset(q_positions, k_positions) + span, 0, 2 * span)


def _shaws_rows(q_positions: Any, k_positions: Any, span: int) -> Any:
    return np.clip(-_offset(q_positions, k_positions), -span, span) + span


def _both_ends_alike(q_positions: Any, k_positions: Any, span: int) -> Any:
    return np.clip(_offset(q_positions, k_positions), 1 - span, span - 1) + span


def _not_moved(q_positions: Any, k_positions: Any, span: int) -> Any:
    return np.clip(_offset(q_positions, k_positions), 0, 2 * span - 1)


def _upper_end_only(q_positions: Any, k_positions: Any, span: int) -> Any:
    return np.minimum(_offset(q_positions, k_positions) + span, 2 * span - 1)


def _wrapped(q_positions: Any, k_positions: Any, span: int) -> Any:
    return (_offset(q_positions, k_positions) + span) % (2 * span)


def _positions_counted(q_positions: Any, k_positions: Any, span: int) -> Any:
    return _delta(np.arange(len(q_positions)), np.arange(len(k_positions)), span)


def _queries_counted(q_positions: Any, k_positions: Any, span: int) -> Any:
    return _delta(np.arange(len(q_positions)), k_positions, span)


def _without_direction(q_positions: Any, k_positions: Any, span: int) -> Any:
    return np.clip(np.abs(_offset(q_positions, k_positions)) + span, 0, 2 * span - 1)


def _delta_loops(q_positions: Any, k_positions: Any, span: int) -> Any:
    rows = np.empty((len(q_positions), len(k_positions)), dtype=np.int64)
    for i, m in enumerate(q_positions):
        for j, n in enumerate(k_positions):
            rows[i, j] = 0 if m - n <= -span else 2 * span - 1 if m - n >= span else m - n + span
    return rows


def _delta_counted(q_positions: Any, k_positions: Any, span: int) -> Any:
    # the row is how many of the limits 1 − K, 2 − K, … K − 1 the offset has reached
    limits = np.arange(1 - span, span)
    return np.sum(_offset(q_positions, k_positions)[..., None] >= limits, axis=-1)


@st.composite
def _places(draw: Any) -> Any:
    q, k = draw(integers(draw(sizes(1, 2, 3)))), draw(integers(draw(sizes(2, 1, 4))))
    return q, k, draw(sizes(2, 3, 1, 5))


def _mirrored(delta: Any, q_positions: Any, k_positions: Any, span: int) -> Any:
    near = np.abs(_offset(q_positions, k_positions)) < span
    both = delta(q_positions, k_positions, span) + delta(k_positions, q_positions, span).T
    return both * near, 2 * span * near


_INDEX = Exercise(
    id="deberta.index",
    number="7.1",
    chapter="07_deberta",
    title="The row of a pair",
    minutes=6,
    difficulty=1,
    function="delta",
    reference=_delta,
    inputs=_places(),
    edges={
        "one new token behind a cache of 9": (np.array([9]), np.arange(10), 4),
        "far positions": (np.array([100_000, 3]), np.array([99_999, 100_001, 0]), 3),
    },
    properties=(
        Property(
            "rows stay when all positions grow by 100",
            lambda delta, q, k, span: (delta(q + 100, k + 100, span), delta(q, k, span)),
        ),
        Property("within the span, δ(m, n) and δ(n, m) add up to 2K", _mirrored),
        Property(
            "each query alone has the same rows",
            lambda delta, q, k, span: (delta(q, k, span)[-1:], delta(q[-1:], k, span)),
        ),
    ),
    mistakes=(
        Mistake(
            _key_minus_query,
            "This counts key − query. The paper's δ counts query − key, so that keys after the query have small rows.",
            "which row should a key 50 tokens ahead have, the first or the last?",
        ),
        Mistake(
            _shaws_rows,
            "These are Shaw's rows: key − query, with 2K + 1 of them. Here it is query − key, with 2K.",
            "which rows exist for span = 2?",
        ),
        Mistake(
            _one_row_more,
            "The largest row is 2K, but the table has 2K rows, so that the last is 2K − 1.",
            "list the rows of a table for span = 2.",
        ),
        Mistake(
            _both_ends_alike,
            "Row 0 is never used: the offsets were clipped to −(K − 1) … K − 1. The lower end is −K.",
            "for span = 2, which row has a key two steps ahead of the query? And one step?",
        ),
        Mistake(
            _not_moved,
            "K was not added before clipping, so that all keys after the query share row 0 with the token itself.",
            "which row is the token itself? It should be K.",
        ),
        Mistake(
            _upper_end_only,
            "Rows below 0 are left. NumPy would read them from the table's other end, without an error.",
            "try a key far ahead of the query.",
        ),
        Mistake(
            _wrapped,
            "Rows beyond an end come back in at the other one (%). They should stop at the end.",
            "which rows have keys 3, 30 and 300 steps back?",
        ),
        Mistake(
            _positions_counted,
            "Positions were counted from 0 by the arrays' lengths; the values of q_positions and k_positions are "
            "not used.",
            "what changes in your result when every query moves by 5?",
        ),
        Mistake(
            _queries_counted,
            "Queries were counted from 0; q_positions is not used. Behind a cache of 9 keys a new query stands at 9.",
            "which offset has a query at 9 to the key at 8?",
        ),
        Mistake(
            _without_direction,
            "The distance lost its sign: keys before and after the query get the same row.",
            "which keys should have rows below K?",
        ),
    ),
    alternatives=(_delta_loops, _delta_counted),
)

# --- 7.2 logarithmic buckets


def _log_bucket(relative: Any, buckets: int, max_position: int) -> Any:
    return deberta_bucket(relative, bucket_size=buckets, max_position=max_position)


def _by_logarithm(relative: Any, h: int, longest: int, factor: int, end: float = math.inf) -> Any:
    """The formula with its parts as arguments; ``end`` is where distances are clipped."""
    n = np.minimum(np.abs(relative), end)
    steps = factor * (np.log(np.maximum(n, h) / h) / np.log(longest / h))
    return np.where(n <= h, relative, np.sign(relative) * (h + np.ceil(steps))).astype(np.int64)


def _longest_is_max(relative: Any, buckets: int, max_position: int) -> Any:
    h = buckets // 2
    return _by_logarithm(relative, h, max_position, h - 1, max_position)


def _longest_is_the_text(relative: Any, buckets: int, max_position: int) -> Any:
    h, longest = buckets // 2, max(int(np.abs(relative).max()), buckets // 2 + 1)
    return _by_logarithm(relative, h, longest, h - 1)


def _whole_h(relative: Any, buckets: int, max_position: int) -> Any:
    return _by_logarithm(relative, buckets // 2, max_position - 1, buckets // 2, max_position - 1)


def _counts_on(relative: Any, buckets: int, max_position: int) -> Any:
    return _by_logarithm(relative, buckets // 2, max_position - 1, buckets // 2 - 1)


def _no_half(relative: Any, buckets: int, max_position: int) -> Any:
    longest = max(max_position - 1, buckets + 1)
    return _by_logarithm(relative, buckets, longest, buckets - 1, longest)


def _rounded_down(relative: Any, buckets: int, max_position: int) -> Any:
    h, n = buckets // 2, np.minimum(np.abs(relative), max_position - 1)
    steps = (h - 1) * (np.log(np.maximum(n, h) / h) / np.log((max_position - 1) / h))
    return np.where(n <= h, relative, np.sign(relative) * (h + np.floor(steps))).astype(np.int64)


def _rounded_after_the_sign(relative: Any, buckets: int, max_position: int) -> Any:
    h, n = buckets // 2, np.minimum(np.abs(relative), max_position - 1)
    steps = (h - 1) * (np.log(np.maximum(n, h) / h) / np.log((max_position - 1) / h))
    return np.where(n <= h, relative, np.ceil(np.sign(relative) * (h + steps))).astype(np.int64)


def _sign_lost(relative: Any, buckets: int, max_position: int) -> Any:
    return np.abs(_log_bucket(relative, buckets, max_position))


def _sign_lost_far_away(relative: Any, buckets: int, max_position: int) -> Any:
    right = _log_bucket(relative, buckets, max_position)
    return np.where(np.abs(relative) <= buckets // 2, right, np.abs(right))


def _clipped(relative: Any, buckets: int, max_position: int) -> Any:
    return np.clip(relative, -buckets, buckets - 1)


def _bucket_search(relative: Any, buckets: int, max_position: int) -> Any:
    # each bucket ends at a whole number: search it, in whole numbers
    h, last = buckets // 2, max_position - 1
    ends = [max(n for n in range(h, last + 1) if n ** (h - 1) <= last**b * h ** (h - 1 - b)) for b in range(h)]
    out = [int(np.sign(r)) * (abs(r) if abs(r) <= h else h + bisect_left(ends, min(abs(r), last))) for r in relative]
    return np.array(out, dtype=np.int64)


def _bucket_loops(relative: Any, buckets: int, max_position: int) -> Any:
    h, out = buckets // 2, []
    for r in relative.tolist():
        n = min(abs(r), max_position - 1)
        if n > h:
            n = h + math.ceil((h - 1) * (math.log(n / h) / math.log((max_position - 1) / h)))
        out.append(int(math.copysign(n, r)))
    return np.array(out, dtype=np.int64)


@st.composite
def _distances(draw: Any) -> Any:
    # configurations in which no quotient of logarithms is a whole number, except at the end
    buckets, max_position = draw(st.sampled_from([(8, 30), (9, 30), (12, 50), (10, 27)]))
    return draw(integers(draw(sizes(1, 2, 5)), low=-60, high=60)), buckets, max_position


_RELEASED = np.array([0, 127, -128, 129, 130, -200, 300, 511, -511, 512, -5000])

_BUCKET = Exercise(
    id="deberta.log_bucket",
    number="7.2",
    chapter="07_deberta",
    title="Logarithmic buckets",
    minutes=12,
    difficulty=2,
    function="log_bucket",
    reference=_log_bucket,
    inputs=_distances(),
    edges={
        "a table that ends right behind the exact part": (np.arange(-8, 9), 8, 6),
        "the released models (256 buckets, 512 positions)": (_RELEASED, 256, 512),
        "all distances of a small table": (np.arange(-55, 56), 12, 50),
    },
    properties=(
        Property(
            "the bucket of −r is minus the bucket of r",
            lambda f, r, buckets, longest: (f(-r, buckets, longest), -f(r, buckets, longest)),
        ),
        Property(
            "the last distance before max_position has the last bucket",
            lambda f, r, buckets, longest: (
                f(np.array([longest - 1, longest + 7]), buckets, longest),
                np.array([2 * (buckets // 2) - 1] * 2),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _longest_is_max,
            "The logarithm runs up to max_position. The longest distance in a text of max_position tokens is one less.",
            "for 256 buckets and 512 positions, 511 should have bucket 255. What is yours for 300?",
        ),
        Mistake(
            _longest_is_the_text,
            "The logarithm runs up to the largest distance that was passed in. It should run to max_position − 1, a "
            "property of the model: a token's bucket must not depend on the other tokens.",
            "does the bucket of 20 change when 50 is in the same array?",
        ),
        Mistake(
            _whole_h,
            "The steps are multiplied by h where h − 1 is asked for, so that the last bucket is 2h, one too many.",
            "bucket h is taken by the distance h itself. How many are left up to 2h − 1?",
        ),
        Mistake(
            _counts_on,
            "Beyond max_position − 1 this goes on counting, as the first version of the authors' code did. Here the "
            "last bucket stays.",
            "clip the distance before you take its logarithm.",
        ),
        Mistake(
            _no_half,
            "The exact range goes up to the number of buckets. It is half of that, h = buckets // 2.",
            "how many buckets are left for the logarithm in your version?",
        ),
        Mistake(
            _rounded_down,
            "The steps are rounded down, as T5 does. DeBERTa rounds up: the first distance beyond h has a new bucket.",
            "for 8 buckets, which bucket has the distance 5? The 4 has bucket 4.",
        ),
        Mistake(
            _rounded_after_the_sign,
            "Negative offsets are rounded towards zero, since the sign came before the rounding. Round the distance, "
            "then put the sign back.",
            "what is ceil(−4.3), and what is −ceil(4.3)?",
        ),
        Mistake(
            _sign_lost,
            "The sign is lost: keys before and after the query get the same bucket.",
            "what is your bucket of −3?",
        ),
        Mistake(
            _sign_lost_far_away,
            "Beyond h the sign is lost, so that far keys after the query are taken for far keys before it.",
            "compare your buckets of −20 and 20.",
        ),
        Mistake(
            _clipped,
            "This clips, as version 1 does. Versions 2 and 3 keep distances apart beyond the exact range by a "
            "logarithm.",
            "for 8 buckets and 30 positions, do the distances 10 and 25 share a bucket?",
        ),
    ),
    alternatives=(_bucket_search, _bucket_loops),
)

# --- 7.3 three terms by picking


def _attend(
    q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any, p2c_index: Any = "released"
) -> Any:
    bias = deberta_bias_by_pair(
        q[None, None], k[None, None], q_positions, k_positions, keys=k_rel, queries=q_rel, p2c_index=p2c_index
    )
    return q @ k.T * deberta_scale(q.shape[1], terms=2) + bias[0, 0]


def _three_terms(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _attend(q, k, k_rel, q_rel, q_positions, k_positions)


def _index_of_the_paper(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _attend(q, k, k_rel, q_rel, q_positions, k_positions, "paper")


def _row(q_positions: Any, k_positions: Any, table: Any) -> Any:
    return np.clip(_offset(q_positions, k_positions) + len(table) // 2, 0, len(table) - 1)


def _terms(q: Any, k: Any, k_rel: Any, q_rel: Any, row: Any) -> Any:
    """The three terms, unscaled, by picking."""
    c2p = np.take_along_axis(q @ k_rel.T, row, axis=1)
    return q @ k.T, c2p, np.take_along_axis(k @ q_rel.T, row.T, axis=1).T


def _berts_scale(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return math.sqrt(3) * _three_terms(q, k, k_rel, q_rel, q_positions, k_positions)


def _content_scaled_alone(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    c2c, c2p, p2c = _terms(q, k, k_rel, q_rel, _row(q_positions, k_positions, k_rel))
    return c2c / math.sqrt(q.shape[1]) + (c2p + p2c) / math.sqrt(3 * q.shape[1])


def _root_of_d_alone(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _three_terms(q, k, k_rel, q_rel, q_positions, k_positions) / math.sqrt(3)


def _not_turned_back(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    row = _row(q_positions, k_positions, k_rel)
    c2c, c2p, _ = _terms(q, k, k_rel, q_rel, row)
    p2c = np.take_along_axis(k @ q_rel.T, row, axis=1)
    return (c2c + c2p + p2c) / math.sqrt(3 * q.shape[1])


def _tables_swapped(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _three_terms(q, k, q_rel, k_rel, q_positions, k_positions)


def _without_p2c(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    c2c, c2p, _ = _terms(q, k, k_rel, q_rel, _row(q_positions, k_positions, k_rel))
    return (c2c + c2p) / math.sqrt(2 * q.shape[1])


def _with_a_fourth(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    row = _row(q_positions, k_positions, k_rel)
    fourth = np.sum(q_rel[row] * k_rel[row], axis=-1)
    return (sum(_terms(q, k, k_rel, q_rel, row)) + fourth) / math.sqrt(4 * q.shape[1])


def _offset_flipped(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _three_terms(q, k, k_rel, q_rel, -q_positions, -k_positions)


def _places_made_up(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _three_terms(q, k, k_rel, q_rel, np.arange(len(q)), np.arange(len(k)))


def _queries_from_zero(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _three_terms(q, k, k_rel, q_rel, np.arange(len(q)), k_positions)


def _terms_loops(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    out = np.empty((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            row = min(max(q_positions[i] - k_positions[j] + len(k_rel) // 2, 0), len(k_rel) - 1)
            out[i, j] = q[i] @ k[j] + q[i] @ k_rel[row] + k[j] @ q_rel[row]
    return out / (3 * q.shape[1]) ** 0.5


def _terms_one_hot(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    chosen = np.eye(len(k_rel))[_row(q_positions, k_positions, k_rel)]  # (q_len, k_len, 2K)
    both = np.einsum("mnr,mr->mn", chosen, q @ k_rel.T) + np.einsum("mnr,nr->mn", chosen, k @ q_rel.T)
    return (q @ k.T + both) * (3 * q.shape[1]) ** -0.5


def _terms_picked(q: Any, k: Any, k_rel: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return sum(_terms(q, k, k_rel, q_rel, _row(q_positions, k_positions, k_rel))) / math.sqrt(3 * q.shape[1])


@st.composite
def _vectors(draw: Any) -> Any:
    new, seen, d, span = draw(sizes(1, 2)), draw(sizes(2, 1, 3, 4)), draw(sizes(1, 2, 3)), draw(sizes(2, 1, 3))
    tables = draw(quarters(2 * span, d)), draw(quarters(2 * span, d))
    places = draw(integers(new, high=9)), draw(integers(seen, high=9))
    return draw(quarters(new, d)), draw(quarters(seen, d)), *tables, *places


_WAVES = np.cos(np.arange(1.0, 401.0) ** 2).reshape(50, 8)

_TERMS = Exercise(
    id="deberta.three_terms",
    number="7.3",
    chapter="07_deberta",
    title="Three terms by picking",
    minutes=15,
    difficulty=3,
    function="logits",
    draw=True,
    reference=_three_terms,
    inputs=_vectors(),
    edges={
        "two new tokens behind a cache of 20": (
            _WAVES[:2], _WAVES[2:24], _WAVES[24:32], _WAVES[32:40], np.array([20, 21]), np.arange(22),
        ),
    },
    properties=(
        Property(
            "logits stay when all positions grow by 100",
            lambda f, q, k, kr, qr, m, n: (f(q, k, kr, qr, m + 100, n + 100), f(q, k, kr, qr, m, n)),
        ),
        Property(
            "each query alone has the same logits",
            lambda f, q, k, kr, qr, m, n: (f(q, k, kr, qr, m, n)[-1:], f(q[-1:], k, kr, qr, m[-1:], n)),
        ),
        Property(
            "with tables of zeros, content remains, over √(3d)",
            lambda f, q, k, kr, qr, m, n: (f(q, k, 0 * kr, 0 * qr, m, n), q @ k.T / math.sqrt(3 * q.shape[1])),
        ),
    ),
    mistakes=(
        Mistake(
            _index_of_the_paper,
            "The third term reads row δ(n, m), as the paper's equation 4 says. Asked for is what released models need: "
            "δ(m, n), the same row as the second.",
            "compare the row of q_rel for the first query and the last key with that of k_rel.",
        ),
        Mistake(
            _berts_scale,
            "The logits are divided by √d, as in BERT. Three terms of variance d have variance 3d.",
            "divide one of your logits by the right one. Which number is it?",
        ),
        Mistake(
            _content_scaled_alone,
            "The content's own product is divided by √d, the other two by √(3d). The divisor is common to all three.",
            "set both tables to zero: what is left should be q · k / √(3d).",
        ),
        Mistake(
            _root_of_d_alone,
            "The divisor is 3√d, so that only d stands under the root. The 3 belongs there, too.",
            "what is the divisor for d = 1?",
        ),
        Mistake(
            _not_turned_back,
            "In the third term k @ q_rel.T has a row for each key, but the index has one for each query. That is "
            "wrong, and raises an error only where their numbers differ. Transpose the index, and the result back.",
            "write the shapes beside each line, with 2 queries and 3 keys.",
        ),
        Mistake(
            _tables_swapped,
            "The tables are exchanged: the query meets k_rel, the key meets q_rel.",
            "a row of k_rel is a kind of key. Which vector looks for keys?",
        ),
        Mistake(
            _without_p2c,
            "The term position→content is missing: the key meets q_rel.",
            "does your result change when q_rel does?",
        ),
        Mistake(
            _with_a_fourth,
            "There is a fourth term, position→position. DeBERTa leaves it out, and divides by √(3d).",
            "which of your products holds neither q nor k?",
        ),
        Mistake(
            _offset_flipped,
            "Both relative terms count key − query. δ counts query − key.",
            "which row of k_rel should meet a query at 5 with a key at 3, for a span of 4?",
        ),
        Mistake(
            _places_made_up,
            "Positions were counted from 0 by the arrays' lengths. They are given, since behind a cache queries do not "
            "start at 0.",
            "what changes in your result when q_positions does?",
        ),
        Mistake(
            _queries_from_zero,
            "Queries are counted from 0, keys by k_positions. Behind a cache of 20, the first query stands at 20.",
            "which offset has the first query behind a cache of 20 to the key at 19?",
        ),
    ),
    alternatives=(_terms_loops, _terms_one_hot, _terms_picked),
)  # fmt: skip

# --- 7.4 is this a bug?


def _p2c(k: Any, q_rel: Any, q_positions: Any, k_positions: Any, index: Any) -> Any:
    """Position→content of the reference, its scale undone."""
    arguments: Any = {"keys": None, "queries": q_rel, "p2c_index": index}
    q = np.zeros((1, 1, len(q_positions), k.shape[1]))
    bias = deberta_bias(q, k[None, None], q_positions, k_positions, **arguments)
    return bias[0, 0] / deberta_scale(k.shape[1], terms=1)


def _both_readings(k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return [_p2c(k, q_rel, q_positions, k_positions, index) for index in ("paper", "released")]


def _which_index(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    readings = _both_readings(k, q_rel, q_positions, k_positions)
    return tuple(bool(np.abs(scores - r).max() < 1e-9) for r in readings)


def _names_swapped(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _which_index(scores, k, q_rel, q_positions, k_positions)[::-1]


def _one_or_the_other(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    released = _which_index(scores, k, q_rel, q_positions, k_positions)[1]
    return not released, released


def _never_neither(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    paper = _which_index(scores, k, q_rel, q_positions, k_positions)[0]
    return paper, not paper


def _never_both(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    paper, released = _which_index(scores, k, q_rel, q_positions, k_positions)
    return paper, released and not paper


def _any_pair(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    readings = _both_readings(k, q_rel, q_positions, k_positions)
    return tuple(bool((np.abs(scores - r) < 1e-9).any()) for r in readings)


def _first_pair(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    readings = _both_readings(k, q_rel, q_positions, k_positions)
    return tuple(bool(abs(scores[0, 0] - r[0, 0]) < 1e-9) for r in readings)


def _up_to_a_factor(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    def one(x: Any) -> Any:
        return x / max(np.linalg.norm(x), 1e-300)

    readings = _both_readings(k, q_rel, q_positions, k_positions)
    return tuple(bool(np.abs(one(scores) - one(r)).max() < 1e-9) for r in readings)


def _nearest(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    readings = _both_readings(k, q_rel, q_positions, k_positions)
    paper, released = (float(np.abs(scores - r).max().round(9)) for r in readings)
    return paper <= released, released <= paper


def _last_row(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    readings = _both_readings(k, q_rel, q_positions, k_positions)
    return tuple(bool(np.abs(scores - r)[-1].max() < 1e-9) for r in readings)


def _off_the_diagonal(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    others = _offset(q_positions, k_positions) != 0
    readings = _both_readings(k, q_rel, q_positions, k_positions)
    return tuple(bool((np.abs(scores - r)[others] < 1e-9).all()) for r in readings)


def _exactly_equal(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    rows = _row(k_positions, q_positions, q_rel).T, _row(q_positions, k_positions, q_rel)
    return tuple(bool((scores == np.sum(q_rel[row] * k, axis=-1)).all()) for row in rows)


def _sums_only(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    readings = _both_readings(k, q_rel, q_positions, k_positions)
    return tuple(bool(abs(scores.sum() - r.sum()) < 1e-9) for r in readings)


def _within_the_span(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    near = np.abs(_offset(q_positions, k_positions)) < len(q_rel) // 2
    readings = _both_readings(k, q_rel, q_positions, k_positions)
    return tuple(bool((np.abs(scores - r)[near] < 1e-9).all()) for r in readings)


def _counted_from_zero(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _which_index(scores, k, q_rel, np.arange(len(q_positions)), np.arange(len(k)))


def _scaled(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    return _which_index(scores * math.sqrt(3 * k.shape[1]), k, q_rel, q_positions, k_positions)


def _which_by_loops(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    rows, found = len(q_rel), [True, True]
    for i, m in enumerate(q_positions):
        for j, n in enumerate(k_positions):
            for which, r in enumerate((n - m, m - n)):
                row = min(max(r + rows // 2, 0), rows - 1)
                found[which] &= abs(float(k[j] @ q_rel[row]) - scores[i, j]) < 1e-9
    return bool(found[0]), bool(found[1])


def _which_by_picking(scores: Any, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    products, row = k @ q_rel.T, _row(k_positions, q_positions, q_rel)  # a row for each key
    paper = np.take_along_axis(products, row, axis=1).T
    released = np.take_along_axis(products, _row(q_positions, k_positions, q_rel).T, axis=1).T
    return np.allclose(scores, paper, 0, 1e-9), np.allclose(scores, released, 0, 1e-9)


def _program(name: str, k: Any, q_rel: Any, q_positions: Any, k_positions: Any) -> Any:
    """What some code puts out for position→content."""
    paper, released = _both_readings(k, q_rel, q_positions, k_positions)
    rows = len(q_rel)
    if name == "scaled":
        return released / math.sqrt(3 * k.shape[1])
    if name == "wrapped":  # its ends come in again at the other side
        return np.take_along_axis(k @ q_rel.T, (_offset(q_positions, k_positions) + rows // 2).T % rows, axis=1).T
    if name == "rounded":  # in another order of operations
        return released + 1e-12
    if name == "counted":  # from 0
        return _p2c(k, q_rel, np.arange(len(q_positions)), np.arange(len(k)), "released")
    return paper if name == "paper" else released


@st.composite
def _unknown_code(draw: Any) -> Any:
    name = draw(st.sampled_from(["released", "paper", "wrapped", "scaled", "counted", "one pair off"]))
    new, seen, d, span = draw(sizes(2, 1, 3)), draw(sizes(2, 3, 4)), draw(sizes(1, 2)), draw(sizes(2, 1, 3))
    k, q_rel = draw(quarters(seen, d)), draw(quarters(2 * span, d))
    q_positions, k_positions = draw(integers(new, high=7)), draw(integers(seen, high=7))
    scores = _program(name, k, q_rel, q_positions, k_positions)
    if name == "one pair off":  # any pair
        scores[draw(st.integers(0, new - 1)), draw(st.integers(0, seen - 1))] += 1
    return scores, k, q_rel, q_positions, k_positions


def _example(name: str, q_positions: Any, k_positions: Any, step: float = 1.0) -> Any:
    k, q_rel = 1 + step * np.arange(len(k_positions))[:, None], np.array([[10.0], [20.0], [30.0], [40.0]])
    return _program(name, k, q_rel, q_positions, k_positions), k, q_rel, q_positions, k_positions


def _one_off(query: int, key: int) -> Any:
    scores, *rest = _example("released", np.arange(3), np.arange(3))
    scores[query, key] += 1
    return scores, *rest


def _judged(which: int, name: str) -> Any:
    def sides(f: Any, scores: Any, *at: Any) -> Any:
        return f(_program(name, *at), *at)[which], True

    return sides


_BUG = Exercise(
    id="deberta.which_index",
    number="7.4",
    chapter="07_deberta",
    title="Is this a bug? Which index does the code follow?",
    minutes=20,
    difficulty=3,
    function="which_index",
    kinds=("bug",),
    reference=_which_index,
    inputs=_unknown_code(),
    edges={
        "three tokens, released code": _example("released", np.arange(3), np.arange(3)),
        "three tokens, the paper's index": _example("paper", np.arange(3), np.arange(3)),
        "one word three times": _example("released", np.arange(3), np.arange(3), step=0.0),
        "far apart, ends that wrap": _example("wrapped", np.array([9, 2]), np.array([2, 3, 9])),
        "a token with itself": _example("paper", np.array([5]), np.array([5])),
        "divided by √3": _example("scaled", np.arange(3), np.arange(3)),
        "one pair is wrong": _one_off(0, 1),
        "one token with itself is wrong": _one_off(2, 2),
        "last digits that differ": _example("rounded", np.arange(3), np.arange(3)),
        "a cache, queries counted from 0": _example("counted", np.array([4]), np.arange(5)),
    },
    properties=(
        Property("scores made with the paper's index are called so", _judged(0, "paper")),
        Property("scores made with the released index are called so", _judged(1, "released")),
    ),
    mistakes=(
        Mistake(
            _names_swapped,
            "The two are exchanged. The paper's p2c reads row δ(n, m), key − query; released code reads δ(m, n).",
            "for a query at 0, a key at 2 and a span of 2, which row is δ(n, m)?",
        ),
        Mistake(
            _one_or_the_other,
            "This takes everything that is not released for the paper's. Code can be neither, or fit both.",
            "what do you answer to scores of random numbers?",
        ),
        Mistake(
            _never_neither,
            "This takes everything that is not the paper's for released code. Code can be neither, or fit both.",
            "what do you answer to scores of random numbers?",
        ),
        Mistake(
            _never_both,
            "Where the scores fit both readings, both should be True: such inputs cannot tell them apart.",
            "what should the answer be for one token with itself?",
        ),
        Mistake(
            _any_pair,
            "One pair that fits is taken for enough (any). All pairs must fit.",
            "on the diagonal both readings agree. Does that prove anything?",
        ),
        Mistake(
            _first_pair,
            "Only the first pair is looked at. All pairs must fit.",
            "if the first pair is a token with itself, can it tell the readings apart?",
        ),
        Mistake(
            _last_row,
            "Only the last query's pairs are looked at. All pairs must fit.",
            "what if one score of another query is wrong?",
        ),
        Mistake(
            _off_the_diagonal,
            "Pairs at one position were left out. There both readings agree, but the scores can still be wrong.",
            "what do you answer if only a token's score with itself is wrong?",
        ),
        Mistake(
            _nearest,
            "This says which reading is nearer. Scores near one can still be neither: compare with 1e-9.",
            "what do you answer to scores of random numbers?",
        ),
        Mistake(
            _exactly_equal,
            "The entries are compared with ==. Scores of another program differ in the last digits: allow 1e-9.",
            "print scores − right. How large are the differences?",
        ),
        Mistake(
            _up_to_a_factor,
            "Scores that are a multiple of a reading are accepted. A wrong scale is a bug of its own: compare values.",
            "what do you answer to scores that are all divided by √3?",
        ),
        Mistake(
            _sums_only,
            "Only the sums are compared. Two different tables can have the same sum.",
            "compare entry by entry.",
        ),
        Mistake(
            _within_the_span,
            "Pairs at the clipped ends were left out. That is where code goes wrong unseen.",
            "what if the code wraps around there instead of clipping?",
        ),
        Mistake(
            _counted_from_zero,
            "Positions were counted from 0 by the arrays' lengths. They are given, and need not start at 0.",
            "what changes in your readings when q_positions does?",
        ),
        Mistake(
            _scaled,
            "Your readings are divided by √(3d). The scores here are plain dot products.",
            "for d = 1, what is the score of key 2 with row 30?",
        ),
    ),
    alternatives=(_which_by_loops, _which_by_picking),
)

EXERCISES = (_INDEX, _BUCKET, _TERMS, _BUG)
