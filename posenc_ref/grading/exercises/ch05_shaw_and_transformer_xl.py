"""Exercises of chapter 05: Shaw's relative vectors, Transformer-XL's shift, and decoding with both."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.attention import masked_softmax
from posenc_ref.content import relative_shift, shaw_bias_by_pair, shaw_index, shaw_values_by_pair
from posenc_ref.grading.exercise import Exercise, Mistake, Property, integers, quarters, sizes

TITLE = "relative positions, Shaw and Transformer-XL"

# The references call posenc_ref. Mistakes are plain NumPy: each of them runs on thousands of inputs in the tests.


def _offset(q_positions: Any, k_positions: Any) -> Any:
    """Key − query."""
    return k_positions - q_positions[:, None]


# --- 5.1 the row of a pair


def _rows(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return shaw_index(q_positions, k_positions, max_distance=max_distance)[0, 0]


def _clipped(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return np.clip(_offset(q_positions, k_positions), -max_distance, max_distance) + max_distance


def _query_minus_key(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return _clipped(-q_positions, -k_positions, max_distance)


def _moved_first(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return np.clip(_offset(q_positions, k_positions) + max_distance, -max_distance, max_distance)


def _one_row_short(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return np.clip(_offset(q_positions, k_positions) + max_distance, 0, 2 * max_distance - 1)


def _not_moved(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return np.clip(_offset(q_positions, k_positions), -max_distance, max_distance)


def _not_clipped(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return _offset(q_positions, k_positions) + max_distance


def _wrapped(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return (_offset(q_positions, k_positions) + max_distance) % (2 * max_distance + 1)


def _without_direction(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return np.minimum(np.abs(_offset(q_positions, k_positions)), max_distance) + max_distance


def _future_shared(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return np.minimum(_clipped(q_positions, k_positions, max_distance), max_distance)


def _keys_down(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return _clipped(q_positions, k_positions, max_distance).T


def _all_counted(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return _clipped(np.arange(len(q_positions)), np.arange(len(k_positions)), max_distance)


def _queries_counted(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return _clipped(np.arange(len(q_positions)), k_positions, max_distance)


def _rows_loops(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    out = np.empty((len(q_positions), len(k_positions)), dtype=np.int64)
    for i, m in enumerate(q_positions):
        for j, n in enumerate(k_positions):
            out[i, j] = max(-max_distance, min(n - m, max_distance)) + max_distance
    return out


def _rows_counted(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    # the row is how many of the limits 1 − K, 2 − K, … K the offset has reached
    limits = np.arange(1 - max_distance, max_distance + 1)
    return np.sum(_offset(q_positions, k_positions)[..., None] >= limits, axis=-1)


@st.composite
def _places(draw: Any) -> Any:
    q, k = draw(integers(draw(sizes(1, 2, 3)))), draw(integers(draw(sizes(2, 1, 4))))
    return q, k, draw(sizes(2, 3, 1, 5))


_INDEX = Exercise(
    id="shaw.rows",
    number="5.1",
    chapter="05_shaw_and_transformer_xl",
    title="The row of a pair",
    minutes=6,
    difficulty=1,
    function="rows",
    reference=_rows,
    inputs=_places(),
    edges={
        "four tokens": (np.arange(4), np.arange(4), 2),
        "one new token behind a cache of 9": (np.array([9]), np.arange(10), 4),
        "far positions": (np.array([100_000, 3]), np.array([99_999, 100_001, 0]), 3),
    },
    properties=(
        Property(
            "rows stay when all positions grow by 100",
            lambda rows, q, k, reach: (rows(q + 100, k + 100, reach), rows(q, k, reach)),
        ),
        Property(
            "seen from the key, the row is 2K minus it",
            lambda rows, q, k, reach: (rows(k, q, reach).T, 2 * reach - rows(q, k, reach)),
        ),
        Property(
            "each query alone has the same rows",
            lambda rows, q, k, reach: (rows(q[-1:], k, reach), rows(q, k, reach)[-1:]),
        ),
    ),
    mistakes=(
        Mistake(
            _query_minus_key,
            "This counts query − key. Asked for is key − query, so that small rows are the past.",
            "which row should a key far before the query have, the first or the last?",
        ),
        Mistake(
            _moved_first,
            "K was added before clipping to −K … K, so that the token itself and all keys after it share row K.",
            "clip first. What range do you have then, and what must be added?",
        ),
        Mistake(
            _one_row_short,
            "The last row, 2K, is never used: the table has 2K + 1 rows, K on each side and the token itself.",
            "list the rows of a table for K = 2.",
        ),
        Mistake(
            _not_moved,
            "These are clipped offsets, from −K on. NumPy reads negative rows from the table's other end, without an "
            "error.",
            "the smallest row should be 0: what must be added?",
        ),
        Mistake(
            _not_clipped,
            "Offsets beyond K were not clipped, so that rows below 0 or above 2K are asked for.",
            "try a key 10 tokens before the query, with K = 2.",
        ),
        Mistake(
            _wrapped,
            "Offsets beyond an end come back in at the other one (%). They should stop at the end.",
            "which rows have keys 2, 3 and 30 steps back, for K = 2?",
        ),
        Mistake(
            _without_direction,
            "The offset lost its sign: keys before and after the query get the same row.",
            "which keys should have rows below K?",
        ),
        Mistake(
            _future_shared,
            "All keys after the query share row K with the token itself. Rows above K are for the future.",
            "which row should a key right after the query have, for K = 2?",
        ),
        Mistake(
            _keys_down,
            "Keys go down and queries across. Asked for is one line for each query.",
            "give one query and three keys: which shape is asked for?",
        ),
        Mistake(
            _all_counted,
            "Positions were counted from 0 by the arrays' lengths. They are given.",
            "what changes in your result when every query moves by 5?",
        ),
        Mistake(
            _queries_counted,
            "Queries were counted from 0; q_positions is not used. Behind a cache of 9 keys a new query stands at 9.",
            "which offset has a query at 9 to the key at 8?",
        ),
    ),
    alternatives=(_rows_loops, _rows_counted),
)

# --- 5.2 logits without a vector for each pair


def _key_logits(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    bias = shaw_bias_by_pair(q[None, None], q_positions, k_positions, keys)[0, 0]
    return q @ k.T / math.sqrt(q.shape[1]) + bias


def _table_row(q_positions: Any, k_positions: Any, keys: Any) -> Any:
    return _clipped(q_positions, k_positions, len(keys) // 2)


def _term(q: Any, keys: Any, row: Any) -> Any:
    return np.take_along_axis(q @ keys.T, row, axis=1)


def _logits(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    return (q @ k.T + _term(q, keys, _table_row(q_positions, k_positions, keys))) / math.sqrt(q.shape[1])


def _bias_not_scaled(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    return q @ k.T / math.sqrt(q.shape[1]) + _term(q, keys, _table_row(q_positions, k_positions, keys))


def _not_scaled(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    return _logits(q, k, keys, q_positions, k_positions) * math.sqrt(q.shape[1])


def _scaled_by_d(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    return _logits(q, k, keys, q_positions, k_positions) / math.sqrt(q.shape[1])


def _bias_alone(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    return _logits(q, 0 * k, keys, q_positions, k_positions)


def _content_alone(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    return _logits(q, k, 0 * keys, q_positions, k_positions)


def _key_asks(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    row = _table_row(q_positions, k_positions, keys)
    return (q @ k.T + _term(k, keys, row.T).T) / math.sqrt(q.shape[1])


def _table_backwards(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    return _logits(q, k, keys[::-1], q_positions, k_positions)


def _logits_counted(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    return _logits(q, k, keys, np.arange(len(q)), np.arange(len(k)))


def _logits_queries_counted(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    return _logits(q, k, keys, np.arange(len(q)), k_positions)


def _one_vector_a_query(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    row = _table_row(q_positions, k_positions, keys)[:1]
    return (q @ k.T + q @ keys[row[0]].T) / math.sqrt(q.shape[1])


def _logits_loops(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    out, reach = np.empty((len(q), len(k))), len(keys) // 2
    for i, m in enumerate(q_positions):
        for j, n in enumerate(k_positions):
            out[i, j] = q[i] @ (k[j] + keys[min(max(n - m, -reach), reach) + reach])
    return out / math.sqrt(q.shape[1])


def _logits_one_hot(q: Any, k: Any, keys: Any, q_positions: Any, k_positions: Any) -> Any:
    chosen = np.eye(len(keys))[_table_row(q_positions, k_positions, keys)]  # (q_len, k_len, 2K + 1)
    return (q @ k.T + np.einsum("mnr,mr->mn", chosen, q @ keys.T)) * q.shape[1] ** -0.5


@st.composite
def _vectors(draw: Any) -> Any:
    new, seen, d, reach = draw(sizes(1, 2)), draw(sizes(2, 1, 3)), draw(sizes(1, 2)), draw(sizes(1, 2))
    places = draw(integers(new, high=9)), draw(integers(seen, high=9))
    return draw(quarters(new, d)), draw(quarters(seen, d)), draw(quarters(2 * reach + 1, d)), *places


_WAVES = np.cos(np.arange(1.0, 401.0) ** 2).reshape(100, 4)

_LOGITS = Exercise(
    id="shaw.key_logits",
    number="5.2",
    chapter="05_shaw_and_transformer_xl",
    title="Logits without a vector for each pair",
    minutes=10,
    difficulty=2,
    function="key_logits",
    draw=True,
    reference=_key_logits,
    inputs=_vectors(),
    edges={
        "two new tokens behind a cache of 20": (
            _WAVES[:2], _WAVES[2:24], _WAVES[24:31], np.array([20, 21]), np.arange(22),
        ),
    },
    properties=(
        Property(
            "logits stay when all positions grow by 100",
            lambda f, q, k, keys, m, n: (f(q, k, keys, m + 100, n + 100), f(q, k, keys, m, n)),
        ),
        Property(
            "one vector in all rows is the same as that vector added to every key",
            lambda f, q, k, keys, m, n: (
                f(q, k, 0 * keys + keys[0], m, n),
                q @ (k + keys[0]).T / math.sqrt(q.shape[1]),
            ),
        ),
        Property(
            "each query alone has the same logits",
            lambda f, q, k, keys, m, n: (f(q[-1:], k, keys, m[-1:], n), f(q, k, keys, m, n)[-1:]),
        ),
    ),
    mistakes=(
        Mistake(
            _bias_not_scaled,
            "Only q·k is divided by √d. The relative vector belongs to the key, so that its product is divided, too.",
            "put the same vector into all rows: what should change?",
        ),
        Mistake(
            _not_scaled,
            "The logits are not divided by √d.",
            "d is the width of q.",
        ),
        Mistake(
            _scaled_by_d,
            "The logits are divided by d. Asked for is √d.",
            "how often is the root taken, how often is it divided by?",
        ),
        Mistake(
            _bias_alone,
            "The content's product q·k is missing.",
            "does your result change when k does?",
        ),
        Mistake(
            _content_alone,
            "The table is not used: these are ordinary logits.",
            "does your result change when keys does?",
        ),
        Mistake(
            _key_asks,
            "The relative vectors meet the key's content. They are added to the key, so that the query meets them.",
            "multiply out q · (k + a).",
        ),
        Mistake(
            _table_backwards,
            "The table is read backwards: offsets count key − query, row 0 is the far past.",
            "which row belongs to the key right before the query, for K = 1?",
        ),
        Mistake(
            _logits_counted,
            "Positions were counted from 0 by the arrays' lengths. They are given.",
            "what changes in your result when q_positions does?",
        ),
        Mistake(
            _logits_queries_counted,
            "Queries were counted from 0, keys by k_positions. Behind a cache of 20, the first query stands at 20.",
            "which offset has the first query behind a cache of 20 to the key at 19?",
        ),
        Mistake(
            _one_vector_a_query,
            "All queries use the first query's rows. Each query has its own.",
            "compare the second row of your result with that of the second query alone.",
        ),
    ),
    alternatives=(_logits_loops, _logits_one_hot),
)  # fmt: skip

# --- 5.3 the shift


def _shift(scores: Any) -> Any:
    return np.tril(relative_shift(scores), scores.shape[1] - scores.shape[0])


def _masked(x: Any) -> Any:
    return np.tril(x, x.shape[1] - x.shape[0])


def _by_key(scores: Any, start: Any) -> Any:
    """Score of query m for key n from column ``start(m) + n``; 0 where there is none."""
    q_len, columns = scores.shape
    out = np.zeros_like(scores)
    for m in range(q_len):
        for n in range(columns):
            if 0 <= start(m) + n < columns:
                out[m, n] = scores[m, start(m) + n]
    return out


def _garbage_left(scores: Any) -> Any:
    return relative_shift(scores)


def _not_shifted(scores: Any) -> Any:
    return _masked(scores)


def _other_way(scores: Any) -> Any:
    return _masked(_by_key(scores, lambda m: m - scores.shape[0] + 1))


def _by_row_number(scores: Any) -> Any:
    return _masked(_by_key(scores, lambda m: m))


def _rolled(scores: Any) -> Any:
    q_len = len(scores)
    return np.stack([np.roll(row, m + 1 - q_len) for m, row in enumerate(scores)])


def _zero_behind(scores: Any) -> Any:
    q_len, columns = scores.shape
    padded = np.concatenate([scores, np.zeros((q_len, 1))], axis=1)
    return _masked(padded.reshape(columns + 1, q_len)[1:].reshape(q_len, columns))


def _last_row_dropped(scores: Any) -> Any:
    q_len, columns = scores.shape
    padded = np.concatenate([np.zeros((q_len, 1)), scores], axis=1)
    return _masked(padded.reshape(columns + 1, q_len)[:-1].reshape(q_len, columns))


def _square_mask(scores: Any) -> Any:
    return np.tril(relative_shift(scores))


def _transposed(scores: Any) -> Any:
    q_len, columns = scores.shape
    padded = np.concatenate([np.zeros((q_len, 1)), scores], axis=1)
    return _masked(padded.T[1:].reshape(q_len, columns))


def _shift_loops(scores: Any) -> Any:
    q_len, columns = scores.shape
    out = np.zeros((q_len, columns))
    for m in range(q_len):
        good = columns - (q_len - 1 - m)
        out[m, :good] = scores[m, columns - good :]
    return out


def _shift_picked(scores: Any) -> Any:
    q_len, columns = scores.shape
    column = np.arange(columns) + np.arange(q_len)[::-1, None]
    picked = np.take_along_axis(scores, np.minimum(column, columns - 1), axis=1)
    return np.where(column < columns, picked, 0.0)


def _shift_reread(scores: Any) -> Any:
    q_len, columns = scores.shape
    padded = np.pad(scores, ((0, 0), (1, 0)))
    return _masked(padded.reshape(columns + 1, q_len)[1:].reshape(q_len, columns))


@st.composite
def _scores(draw: Any) -> Any:
    q_len = draw(sizes(2, 3, 1))
    return (draw(quarters(q_len, q_len + draw(sizes(0, 1, 2)))),)


_SHIFT = Exercise(
    id="xl.shift",
    number="5.3",
    chapter="05_shaw_and_transformer_xl",
    title="The shift",
    minutes=12,
    difficulty=2,
    function="shift",
    draw=True,
    reference=_shift,
    inputs=_scores(),
    edges={
        "three queries, five keys": (np.arange(1.0, 16.0).reshape(3, 5),),
        "four queries, four keys": (np.arange(1.0, 17.0).reshape(4, 4),),
    },
    properties=(
        Property("the last query's row stays", lambda f, s: (f(s)[-1], s[-1])),
        Property(
            "each query keeps its newest scores, in order",
            lambda f, s: (f(s)[0, : s.shape[1] - len(s) + 1], s[0, len(s) - 1 :]),
        ),
        Property(
            "keys after the query have 0",
            lambda f, s: (np.triu(f(s), s.shape[1] - len(s) + 1), np.zeros(s.shape)),
        ),
    ),
    mistakes=(
        Mistake(
            _garbage_left,
            "The good cells are right. Right of them, zeros and the next query's scores are left: asked for is 0.",
            "print shift(np.arange(1.0, 17.0).reshape(4, 4)) and look above the diagonal.",
        ),
        Mistake(
            _not_shifted,
            "The scores stayed in their columns; only keys after the query were set to 0.",
            "the score for offset 0 is in the last column. In which column should it be for the first query?",
        ),
        Mistake(
            _other_way,
            "The rows moved right. Row m must move left by q_len − 1 − m.",
            "the score for offset 0 is in the last column. In which column should it be for the first query?",
        ),
        Mistake(
            _by_row_number,
            "Row m moved left by m. The last row should stay and the first one move most: by q_len − 1 − m.",
            "which query may use all columns, the first or the last?",
        ),
        Mistake(
            _rolled,
            "Scores that leave at the left come back in at the right (roll). Right of the good cells should be 0.",
            "look at the last cell of row 0.",
        ),
        Mistake(
            _zero_behind,
            "Every row moved one column too far, so that offset 0 is lost. Was the zero put behind the rows? It "
            "belongs in front.",
            "number the memory of a 2 × 2 array with a zero in front, and with one behind.",
        ),
        Mistake(
            _last_row_dropped,
            "The last q_len numbers were dropped. It is the first ones that have to go.",
            "where does the first query's score for offset 0 stand, and where should it?",
        ),
        Mistake(
            _square_mask,
            "Cells beyond column m were set to 0. With more keys than queries, query m stands at m + k_len − q_len.",
            "with three queries and five keys, how many keys may the first query see?",
        ),
        Mistake(
            _transposed,
            "The array was transposed where it should be reread: reshape keeps the order in memory, .T does not.",
            "padded.reshape(k_len + 1, q_len) and padded.T have one shape: compare their first rows.",
        ),
    ),
    alternatives=(_shift_loops, _shift_picked, _shift_reread),
)

# --- 5.4 decoding with a cache


def _causal(q_len: int, k_len: int, first: int) -> Any:
    """Mask of queries of which the first one stands at position ``first``."""
    return np.tri(q_len, k_len, first, dtype=bool)


def _decode(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    m, n = np.arange(len(k) - len(q), len(k)), np.arange(len(k))
    weights = masked_softmax(_key_logits(q, k, keys, m, n), n <= m[:, None])
    return weights @ v + shaw_values_by_pair(weights[None, None], m, n, values)[0, 0]


def _attend(
    q: Any, k: Any, v: Any, keys: Any, values: Any, *, places: Any = None, seen: Any = None,
    hidden: float = -np.inf, kept: Any = True,
) -> Any:  # fmt: skip
    """The new tokens' output with queries at ``places`` that see ``seen``, where these are not the right ones.

    ``hidden`` is the logit of the other keys; weights that are not ``kept`` are set to 0 after softmax.
    """
    right, n = np.arange(len(k) - len(q), len(k)), np.arange(len(k))
    places = right if places is None else places
    seen = n <= right[:, None] if seen is None else seen
    logits = np.where(seen, _logits(q, k, keys, places, n), hidden)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights = kept * weights / weights.sum(axis=1, keepdims=True)
    return weights @ v + np.einsum("mn,mnd->md", weights, values[_table_row(places, n, values)])


def _queries_from_zero(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, values, places=np.arange(len(q)))


def _mask_from_zero(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, values, seen=_causal(len(q), len(k), 0))


def _all_from_zero(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, values, places=np.arange(len(q)), seen=_causal(len(q), len(k), 0))


def _all_at_the_last(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, values, places=np.full(len(q), len(k) - 1))


def _no_mask(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, values, seen=True)


def _own_key_hidden(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, values, seen=_causal(len(q), len(k), len(k) - len(q) - 1))


def _masked_with_zero(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, values, hidden=0.0)


def _masked_after(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, values, seen=True, kept=_causal(len(q), len(k), len(k) - len(q)))


def _decode_not_scaled(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q * math.sqrt(q.shape[1]), k, v, keys, values)


def _without_values(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, 0 * values)


def _without_keys(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, 0 * keys, values)


def _one_table_twice(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys, keys)


def _tables_swapped(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, values, keys)


def _decode_backwards(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    return _attend(q, k, v, keys[::-1], values[::-1])


def _no_maximum(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    m, n = np.arange(len(k) - len(q), len(k))[:, None], np.arange(len(k))
    weights = np.where(n <= m, np.exp(_logits(q, k, keys, m[:, 0], n)), 0.0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return weights @ v + np.einsum("mn,mnd->md", weights, values[_table_row(m[:, 0], n, values)])


def _decode_full_pass(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    # queries of earlier tokens do not matter: zeros stand for them, and their rows are dropped
    old = len(k) - len(q)
    return _attend(np.pad(q, ((old, 0), (0, 0))), k, v, keys, values)[old:]


def _decode_loops(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    reach, out = len(keys) // 2, np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        m = len(k) - len(q) + i
        rows = [max(n - m, -reach) + reach for n in range(m + 1)]
        logits = np.array([q[i] @ (k[n] + keys[r]) for n, r in enumerate(rows)]) / math.sqrt(q.shape[1])
        weights = np.exp(logits - logits.max())
        for n, r in enumerate(rows):
            out[i] += weights[n] / weights.sum() * (v[n] + values[r])
    return out


@st.composite
def _cached(draw: Any) -> Any:
    new, old, d = draw(sizes(1, 2)), draw(sizes(1, 2)), draw(sizes(1, 2))
    k, v = draw(quarters(new + old, d)), draw(quarters(new + old, d))
    return draw(quarters(new, d)), k, v, draw(quarters(3, d)), draw(quarters(3, d))  # K = 1: clips after one step


def _in_chunks_of_one(decode: Any, q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
    ends = range(len(k) - len(q) + 1, len(k) + 1)
    one_by_one = [decode(q[[i]], k[:end], v[:end], keys, values) for i, end in enumerate(ends)]
    return np.concatenate(one_by_one), decode(q, k, v, keys, values)


_DECODE = Exercise(
    id="shaw.decode",
    number="5.4",
    chapter="05_shaw_and_transformer_xl",
    title="Decoding with a cache",
    minutes=20,
    difficulty=3,
    function="decode",
    kinds=("cache",),
    reference=_decode,
    inputs=_cached(),
    edges={
        "two new tokens behind a cache of 9": (
            _WAVES[:2], _WAVES[2:13], _WAVES[13:24], _WAVES[24:31], _WAVES[31:38],
        ),
        "one new token behind a cache of 5": (
            _WAVES[40:41], _WAVES[41:47], _WAVES[47:53], _WAVES[53:56], _WAVES[56:59],
        ),
        "logits near 900 and near −900": (
            np.array([[900.0], [-900.0]]), 1 + np.arange(4.0)[:, None] / 1024, np.array([[0.5], [1.0], [-1.0], [2.0]]),
            np.arange(3.0)[:, None] / 1024, np.array([[0.25], [1.0], [-0.5]]),
        ),
    },
    properties=(
        Property(
            "a chunk is the same as its tokens one by one",
            _in_chunks_of_one,
        ),
        Property(
            "one vector in all rows of the values' table is added to every output",
            lambda f, q, k, v, keys, values: (
                f(q, k, v, keys, 0 * values + values[0]),
                f(q, k, v, keys, 0 * values) + values[0],
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _queries_from_zero,
            "Offsets count the queries from 0, as BERT's relative_key once did with a cache. The first new token "
            "stands at k_len − q_len.",
            "behind a cache of 5, which offset has the one new token to the key right before it?",
        ),
        Mistake(
            _mask_from_zero,
            "The offsets are right, the mask is not: it is aligned at the top left, so that new tokens do not see the "
            "whole cache.",
            "behind a cache of 5, how many keys may the one new token see?",
        ),
        Mistake(
            _all_from_zero,
            "Queries are counted from 0, in offsets and mask. The first new token stands at k_len − q_len.",
            "behind a cache of 5, how many keys may the one new token see?",
        ),
        Mistake(
            _all_at_the_last,
            "All new tokens are put at the last place. That is right for one, wrong for a chunk of two.",
            "with k_len = 6 and two new tokens, where does the first one stand?",
        ),
        Mistake(
            _no_mask,
            "A new token sees the tokens after it. In a chunk of two, the first must not see the second.",
            "compare a chunk of two with two chunks of one.",
        ),
        Mistake(
            _own_key_hidden,
            "A new token does not see its own key. n ≤ m keeps it.",
            "which row of the tables belongs to offset 0?",
        ),
        Mistake(
            _without_values,
            "The vectors on the values are missing.",
            "does your result change when values does?",
        ),
        Mistake(
            _without_keys,
            "The vectors on the keys are missing.",
            "does your result change when keys does?",
        ),
        Mistake(
            _masked_with_zero,
            "Hidden keys get the logit 0, and e⁰ is 1: they still have weight. Before softmax they need −∞.",
            "print the weights of the first of two new tokens. Is the last one 0?",
        ),
        Mistake(
            _masked_after,
            "The mask comes after softmax, so that the weights that are left do not add up to 1.",
            "print the sum of each token's weights.",
        ),
        Mistake(
            _no_maximum,
            "The exponential is taken of the logits as they are. Beyond 709 it is ∞ in float64, and ∞/∞ is no number; "
            "far below 0, all weights of a row are 0.",
            "softmax does not change if a number is taken off a whole row. Which one helps?",
        ),
        Mistake(
            _decode_not_scaled,
            "The logits are not divided by √d.",
            "compare your logits with those of exercise 5.2.",
        ),
        Mistake(
            _one_table_twice,
            "The table for keys is used for the values as well. They are two tables.",
            "does your result change when values does?",
        ),
        Mistake(
            _tables_swapped,
            "The two tables are exchanged.",
            "which table may change the attention weights?",
        ),
        Mistake(
            _decode_backwards,
            "The tables are read backwards: offsets count key − query, row 0 is the far past.",
            "which row belongs to a key far before the query?",
        ),
    ),
    alternatives=(_decode_full_pass, _decode_loops),
)  # fmt: skip

# --- 5.5 is this a bug?


def _garbage_seen(mask: Any, columns: int) -> int:
    # each score is labelled with its query, then shifted: who stands where?
    q_len, k_len = mask.shape
    query = np.arange(1.0, q_len + 1)[:, None]
    return int((mask & (relative_shift(np.tile(query, (1, columns)))[:, :k_len] != query)).sum())


def _after(mask: Any, shift: int) -> Any:
    """The kept cells of each query m with n > m + shift."""
    q_len, k_len = mask.shape
    return mask & (np.arange(k_len) > np.arange(q_len)[:, None] + shift)


def _garbage(mask: Any, columns: int) -> Any:
    return _after(mask, columns - len(mask))


def _hidden_counted(mask: Any, columns: int) -> int:
    return int(_garbage(~mask, columns).sum())


def _mask_ignored(mask: Any, columns: int) -> int:
    return int(_garbage(np.ones_like(mask), columns).sum())


def _top_left(mask: Any, columns: int) -> int:
    return int(_after(mask, 0).sum())


def _columns_ignored(mask: Any, columns: int) -> int:
    return int(_after(mask, mask.shape[1] - mask.shape[0]).sum())


def _zeros_forgiven(mask: Any, columns: int) -> int:
    return int(_after(mask, columns - len(mask) + 1).sum())


def _diagonal_too(mask: Any, columns: int) -> int:
    return int(_after(mask, columns - len(mask) - 1).sum())


def _good_counted(mask: Any, columns: int) -> int:
    return int((mask & ~_garbage(mask, columns)).sum())


def _rows_not_cells(mask: Any, columns: int) -> int:
    return int(_garbage(mask, columns).any(axis=1).sum())


def _never(mask: Any, columns: int) -> int:
    return 0


def _yes_or_no(mask: Any, columns: int) -> int:
    return int(_garbage(mask, columns).any())


def _garbage_formula(mask: Any, columns: int) -> int:
    return int(_garbage(mask, columns).sum())


def _garbage_loops(mask: Any, columns: int) -> int:
    q_len, k_len = mask.shape
    return sum(bool(mask[m, n]) and n + q_len - 1 - m >= columns for m in range(q_len) for n in range(k_len))


def _garbage_by_offset(mask: Any, columns: int) -> int:
    # the columns are the offsets 1 − k_len …; count kept pairs whose offset has no column
    q_len, k_len = mask.shape
    offset = np.arange(k_len) - np.arange(k_len - q_len, k_len)[:, None]
    return int(np.count_nonzero(mask[~np.isin(offset, np.arange(1 - k_len, 1 - k_len + columns))]))


@st.composite
def _masks(draw: Any) -> Any:
    from hypothesis.extra import numpy as hnp

    q_len, memory = draw(sizes(2, 3, 1, 4)), draw(sizes(0, 1, 2))
    k_len = q_len + memory
    kind = draw(st.sampled_from(["any", "any", "any", "causal", "all"]))
    mask = draw(hnp.arrays(np.bool_, (q_len, k_len), elements=st.booleans(), fill=st.nothing()))
    if kind != "any":
        mask = np.ones((q_len, k_len), dtype=bool) if kind == "all" else _causal(q_len, k_len, memory)
    return mask, k_len + draw(st.integers(0, q_len - 1))


_BUG = Exercise(
    id="xl.garbage",
    number="5.5",
    chapter="05_shaw_and_transformer_xl",
    title="Is this a bug? A triangle that is not zeroed",
    minutes=15,
    difficulty=3,
    function="garbage_seen",
    kinds=("bug",),
    reference=_garbage_seen,
    inputs=_masks(),
    edges={
        "the decoder of the report": (_causal(4, 4, 0), 4),
        "that decoder with a memory of 3": (_causal(4, 7, 3), 7),
        "an encoder with as many columns as keys": (np.ones((5, 5), dtype=bool), 5),
        "an encoder with 2T − 1 columns": (np.ones((5, 5), dtype=bool), 9),
    },
    properties=(
        Property(
            "a causal mask with k_len columns shows no garbage",
            lambda f, mask, columns: (
                f(_causal(len(mask), mask.shape[1], mask.shape[1] - len(mask)), mask.shape[1]),
                0,
            ),
        ),
        Property(
            "with all offsets there is none, whatever the mask",
            lambda f, mask, columns: (f(mask, sum(mask.shape) - 1), 0),
        ),
        Property(
            "each row alone has its share",
            lambda f, mask, columns: (
                sum(f(np.where(np.arange(len(mask))[:, None] == m, mask, False), columns) for m in range(len(mask))),
                f(mask, columns),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _hidden_counted,
            "This counts garbage that the mask hides. True keeps a cell.",
            "what should a causal mask in a decoder give?",
        ),
        Mistake(
            _mask_ignored,
            "This counts all garbage, also where the mask hides it. Softmax never sees that.",
            "what should a causal mask in a decoder give?",
        ),
        Mistake(
            _top_left,
            "Cells with n > m are counted. With a memory the first query stands behind it, and with more columns "
            "cells to the right are good, too.",
            "row m moves left by q_len − 1 − m. How many of its columns are left?",
        ),
        Mistake(
            _columns_ignored,
            "All keys after the query are counted. With more columns than keys, some of those have a right score.",
            "what should 2T − 1 columns give, without a mask?",
        ),
        Mistake(
            _zeros_forgiven,
            "The zero between two rows is not counted. A score of 0 is no score: softmax gives it weight.",
            "what does e⁰ weigh beside e⁻¹?",
        ),
        Mistake(
            _diagonal_too,
            "The last good cell of each row is counted as garbage.",
            "for four queries and four columns, is the diagonal good?",
        ),
        Mistake(
            _good_counted,
            "This counts the kept cells that are good.",
            "what should 2T − 1 columns give, without a mask?",
        ),
        Mistake(
            _rows_not_cells,
            "This counts queries that see garbage. Asked for are cells.",
            "an encoder with 5 tokens and 5 columns: how many cells lie above the diagonal?",
        ),
        Mistake(
            _never,
            "This says that softmax never sees garbage. That holds for a causal mask; an encoder has none.",
            "an encoder with 5 tokens and 5 columns: what stands right of the diagonal?",
        ),
        Mistake(
            _yes_or_no,
            "This says whether there is garbage (1 or 0). Asked for is how many cells.",
            "sum where you asked any.",
        ),
    ),
    alternatives=(_garbage_formula, _garbage_loops, _garbage_by_offset),
)

# --- 5.6 the gradient of a clipped table, in PyTorch


def _table_gradient(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    gradient = np.zeros((2 * max_distance + 1, len(upstream)))
    row = _rows(q_positions, k_positions, max_distance)
    for m, n in np.ndindex(row.shape):
        gradient[row[m, n]] += upstream[:, m, n]
    return gradient


def _rows_torch(q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return (k_positions - q_positions[:, None]).clamp(-max_distance, max_distance) + max_distance


def _added_up(upstream: Any, row: Any, max_distance: int) -> Any:
    """Sums over the pairs of a row; pairs whose row is −1 are left out."""
    import torch

    one_hot = (row.flatten()[:, None] == torch.arange(2 * max_distance + 1)).to(upstream.dtype)
    return one_hot.T @ upstream.flatten(1).T


def _last_wins(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    gradient = upstream.new_zeros(2 * max_distance + 1, len(upstream))
    for m, row in enumerate(_rows_torch(q_positions, k_positions, max_distance)):
        for n, r in enumerate(row):
            gradient[r] = upstream[:, m, n]
    return gradient


def _buffered_addition(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    gradient = upstream.new_zeros(2 * max_distance + 1, len(upstream))
    for m, row in enumerate(_rows_torch(q_positions, k_positions, max_distance)):
        before = gradient.clone()
        for n, r in enumerate(row):  # what gradient[row] += … does for the keys of one query
            gradient[r] = before[r] + upstream[:, m, n]
    return gradient


def _far_pairs_lost(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    offset = k_positions - q_positions[:, None]
    row = (offset + max_distance).masked_fill(offset.abs() > max_distance, -1)
    return _added_up(upstream, row, max_distance)


def _upside_down(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    return _added_up(upstream, _rows_torch(q_positions, k_positions, max_distance), max_distance).flip(0)


def _counted_from_zero(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    import torch

    q_places, k_places = torch.arange(len(q_positions)), torch.arange(len(k_positions))
    return _added_up(upstream, _rows_torch(q_places, k_places, max_distance), max_distance)


def _averaged(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    import torch

    row = _rows_torch(q_positions, k_positions, max_distance)
    count = torch.bincount(row.flatten(), minlength=2 * max_distance + 1).clamp(min=1)
    return _added_up(upstream, row, max_distance) / count[:, None]


def _heads_mixed(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    row = _rows_torch(q_positions, k_positions, max_distance)
    mixed = upstream.reshape(-1, len(upstream)).T.reshape(upstream.shape)
    return _added_up(mixed, row, max_distance)


def _pairs_exchanged(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    row = _rows_torch(q_positions, k_positions, max_distance)
    return _added_up(upstream, row.T, max_distance)


def _heads_added(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    row = _rows_torch(q_positions, k_positions, max_distance)
    return _added_up(upstream.sum(0, keepdim=True).expand_as(upstream), row, max_distance)


def _by_index_add(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    row = _rows_torch(q_positions, k_positions, max_distance).flatten()
    gradient = upstream.new_zeros(2 * max_distance + 1, len(upstream))
    return gradient.index_add(0, row, upstream.flatten(1).T)


def _by_scatter_add(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    row = _rows_torch(q_positions, k_positions, max_distance).flatten().expand(len(upstream), -1)
    gradient = upstream.new_zeros(len(upstream), 2 * max_distance + 1)
    return gradient.scatter_add(1, row, upstream.flatten(1)).T


def _by_autograd(upstream: Any, q_positions: Any, k_positions: Any, max_distance: int) -> Any:
    table = upstream.new_zeros(2 * max_distance + 1, len(upstream)).requires_grad_()
    bias = table[_rows_torch(q_positions, k_positions, max_distance)].movedim(-1, 0)
    bias.backward(upstream)
    return table.grad


@st.composite
def _upstream(draw: Any) -> Any:
    heads, q_len, k_len = draw(sizes(1, 2, 3)), draw(sizes(1, 2, 3)), draw(sizes(1, 2, 4))
    places = draw(integers(q_len, high=6)), draw(integers(k_len, high=6))
    return draw(quarters(heads, q_len, k_len)), *places, draw(sizes(1, 2, 3))


_TABLE_GRADIENT = Exercise(
    id="shaw.table_gradient",
    number="5.6",
    chapter="05_shaw_and_transformer_xl",
    title="What a clipped table learns from",
    minutes=12,
    difficulty=2,
    function="table_gradient",
    reference=_table_gradient,
    kinds=("torch",),
    inputs=_upstream(),
    edges={
        "all pairs of five tokens, clipped at 2": (
            np.cos(np.arange(75.0) ** 2).reshape(3, 5, 5),
            np.arange(5),
            np.arange(5),
            2,
        ),
        "two queries behind a cache of 5": (
            np.sin(np.arange(28.0) ** 2).reshape(2, 2, 7),
            np.array([5, 6]),
            np.arange(7),
            3,
        ),
    },
    properties=(
        Property(
            "nothing is lost: the rows add up to the whole gradient",
            lambda f, g, q, k, c: (f(g, q, k, c).sum(axis=0), g.sum(axis=(1, 2))),
        ),
    ),
    mistakes=(
        Mistake(
            _last_wins,
            "Each pair overwrites what others left in its row. A row is read by many pairs, and their gradients add "
            "up.",
            "with five tokens, how many pairs read the row of offset 0?",
        ),
        Mistake(
            _buffered_addition,
            "The line `gradient[row] += …` reads, adds and writes once for a whole index: of two keys that share a "
            "row, one is lost.",
            "index_add_ adds every one of them.",
        ),
        Mistake(
            _far_pairs_lost,
            "Pairs beyond max_distance are left out. They read the outermost rows, so they train them too.",
            "which row does offset −9 read when max_distance is 3?",
        ),
        Mistake(
            _upside_down,
            "Offsets are query − key: the rows are upside down. Row 0 belongs to a key far *before* the query.",
            "for a causal mask, which half of the rows gets no gradient?",
        ),
        Mistake(
            _counted_from_zero,
            "Positions are counted from 0. Queries behind a cache start elsewhere: use those that are given.",
            "which offset have q_positions = [5] and k_positions = [5]?",
        ),
        Mistake(
            _averaged,
            "Gradients of a row are averaged. The derivative of a loss by a number that is used n times is a sum of n "
            "terms.",
            "what is the derivative of x + x?",
        ),
        Mistake(
            _heads_mixed,
            "The axis of the heads is moved by reshape, which leaves the numbers in their old order and so mixes "
            "heads and pairs.",
            "flatten(1) keeps the heads apart; .T or movedim then moves them last.",
        ),
        Mistake(
            _pairs_exchanged,
            "Gradients and rows are paired in different orders: one list goes through the queries first, the other "
            "through the keys.",
            "flatten (q, k) of both in the same way, without a transpose between.",
        ),
        Mistake(
            _heads_added,
            "All heads get the sum over the heads. Every head has its own column.",
            "what is the gradient of head 0 if only head 1 has any upstream?",
        ),
    ),
    alternatives=(_by_index_add, _by_scatter_add, _by_autograd),
)

EXERCISES = (_INDEX, _LOGITS, _SHIFT, _DECODE, _BUG, _TABLE_GRADIENT)
