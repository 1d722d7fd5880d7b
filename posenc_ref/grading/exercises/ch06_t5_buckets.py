"""Exercises of chapter 06: T5's buckets."""

import math
from bisect import bisect_left
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from posenc_ref.bias.offsets import offsets
from posenc_ref.bias.t5 import bucket_starts, look_up, t5_bucket
from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters, sizes

TITLE = "T5's buckets"


def _steps(n: Any, exact: int, more: int, max_distance: int) -> Any:
    """How many of ``more`` equal ratios the distance n ≥ exact is beyond ``exact``."""
    return np.log(np.maximum(n, exact) / exact) / np.log(max_distance / exact) * more


def _one_side(n: Any, num_buckets: int, max_distance: int) -> Any:
    return np.searchsorted(bucket_starts(num_buckets, max_distance), n, side="right") - 1


def _in_steps(n: Any, steps: Any, exact: int, num_buckets: int) -> Any:
    return np.where(n < exact, n, np.minimum(exact + np.floor(steps), num_buckets - 1)).astype(np.int64)


def _divided_once(n: Any, num_buckets: int, max_distance: int) -> Any:
    exact = num_buckets // 2
    factor = (num_buckets - exact) / math.log(max_distance / exact)
    return _in_steps(n, np.log(np.maximum(n, exact) / exact) * factor, exact, num_buckets)


# --- 6.1 buckets in one direction


def _past(offsets: Any) -> Any:
    return np.maximum(-offsets, 0)


def _causal_bucket(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    return t5_bucket(offsets, bidirectional=False, num_buckets=num_buckets, max_distance=max_distance)


def _query_minus_key(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    return _causal_bucket(-offsets, num_buckets, max_distance)


def _absolute(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    return _causal_bucket(-np.abs(offsets), num_buckets, max_distance)


def _below_zero(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    exact = num_buckets // 2
    return _in_steps(-offsets, _steps(-offsets, exact, num_buckets - exact, max_distance), exact, num_buckets)


def _no_minimum(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    n, exact = _past(offsets), num_buckets // 2
    steps = _steps(n, exact, num_buckets - exact, max_distance)
    return np.where(n < exact, n, exact + steps).astype(np.int64)


def _clipped(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    return np.minimum(_past(offsets), num_buckets - 1)


def _rounded(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    n, exact = _past(offsets), num_buckets // 2
    steps = np.rint(_steps(n, exact, num_buckets - exact, max_distance))
    return _in_steps(n, steps, exact, num_buckets)


def _rounded_up(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    n, exact = _past(offsets), num_buckets // 2
    steps = np.ceil(_steps(n, exact, num_buckets - exact, max_distance))
    return _in_steps(n, steps, exact, num_buckets)


def _starts_in_floats(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    exact = num_buckets // 2
    more = num_buckets - exact
    starts = [*range(exact), *(math.ceil(exact * (max_distance / exact) ** (k / more)) for k in range(more))]
    return np.searchsorted(starts, _past(offsets), side="right") - 1


def _up_to_max_distance(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    n, exact = _past(offsets), num_buckets // 2
    return _in_steps(n, _steps(n, exact, num_buckets - exact - 1, max_distance), exact, num_buckets)


def _all_buckets_as_steps(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    n, exact = _past(offsets), num_buckets // 2
    return _in_steps(n, _steps(n, exact, num_buckets, max_distance), exact, num_buckets)


def _ratio_not_taken(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    n, exact = _past(offsets), num_buckets // 2
    steps = np.log(np.maximum(n, 1)) / np.log(max_distance) * (num_buckets - exact)
    return _in_steps(n, steps, exact, num_buckets)


def _causal_divided_once(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    return _divided_once(_past(offsets), num_buckets, max_distance)


def _causal_formula(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    n, exact = _past(offsets), num_buckets // 2
    return _in_steps(n, _steps(n, exact, num_buckets - exact, max_distance), exact, num_buckets)


def _causal_loops(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    exact = num_buckets // 2
    more, buckets = num_buckets - exact, []
    for n in _past(offsets).tolist():
        k = 0  # whole numbers: n^more ≥ exact^(more − k) · max_distance^k
        while n >= exact and k < more - 1 and n**more >= exact ** (more - k - 1) * max_distance ** (k + 1):
            k += 1
        buckets.append(min(n, exact) + k)
    return np.array(buckets, dtype=np.int64)


# Settings in which the formula as released, in float64, gives the exact bucket everywhere.
_SETTINGS = [(4, 8), (4, 16), (6, 24), (6, 81), (8, 20), (8, 32), (10, 50), (16, 40)]


@st.composite
def _offsets_one_way(draw: Any) -> Any:
    num_buckets, max_distance = draw(st.sampled_from(_SETTINGS))
    distances = [*range(num_buckets), *bucket_starts(num_buckets, max_distance)[2:], max_distance, 3 * max_distance]
    signed = st.sampled_from([s * n for n in sorted(set(distances)) for s in (-1, 1)])
    return np.array(draw(st.lists(signed, min_size=1, max_size=5)), dtype=np.int64), num_buckets, max_distance


_CAUSAL = Exercise(
    id="t5.causal_bucket",
    number="6.1",
    chapter="06_t5_buckets",
    title="Buckets, looking back",
    minutes=10,
    difficulty=2,
    function="causal_bucket",
    reference=_causal_bucket,
    inputs=_offsets_one_way(),
    edges={
        "every offset around the query": (np.arange(-60, 20), 8, 20),
        "T5's decoder": (np.array([-5000, -128, -113, -112, -64, -17, -16, -15, 0, 3]), 32, 128),
        "a start that is a whole number": (np.array([-65, -64, -63]), 16, 128),
        "another one": (np.array([-193, -192, -191]), 12, 384),
    },
    properties=(
        Property(
            "beyond max_distance everything is in the last bucket",
            lambda f, o, b, m: (f(-np.abs(o) - m, b, m), np.full(o.shape, b - 1)),
        ),
        Property(
            "keys after the query are in bucket 0",
            lambda f, o, b, m: (f(np.abs(o), b, m), np.zeros(o.shape, dtype=np.int64)),
        ),
    ),
    mistakes=(
        Mistake(
            _query_minus_key,
            "The sign is taken the other way round. Offsets are key minus query, so the past is negative; here all of "
            "the past falls into bucket 0.",
            "which offset has the key just before the query?",
        ),
        Mistake(
            _absolute,
            "A key after the query gets the bucket of its distance. In one direction all of them are in bucket 0.",
            "what should offset +3 give?",
        ),
        Mistake(
            _below_zero,
            "Keys after the query get negative buckets, which index the table from its end. Distances stop at 0.",
            "take the maximum of −offset and 0 first.",
        ),
        Mistake(
            _no_minimum,
            "The minimum is missing: far distances get buckets that the table does not have.",
            "which bucket does your formula give to max_distance itself? How many buckets are there?",
        ),
        Mistake(
            _clipped,
            "Each distance has a bucket of its own until they run out. That is plain clipping; only the first half is "
            "exact.",
            "with 8 buckets, which distances share bucket 5?",
        ),
        Mistake(
            _rounded,
            "The number of steps is rounded to the nearest whole number. It should be rounded down.",
            "a distance that is 0.9 steps out has not reached the next bucket.",
        ),
        Mistake(
            _rounded_up,
            "The number of steps is rounded up. In T5 it is rounded down.",
            "with 8 buckets, which distances should share the first bucket that is not exact, bucket 4?",
        ),
        Mistake(
            _starts_in_floats,
            "The first distances are computed as floats and rounded up. One that is a whole number can come out a "
            "little too large, 192.0000000001, and its bucket begins one too late.",
            "compare whole numbers: n^N ≥ E^(N − k) · M^k.",
        ),
        Mistake(
            _up_to_max_distance,
            "The ratios are stretched so that the last bucket begins at max_distance. In T5 it begins one ratio "
            "before.",
            "how many equal ratios lead from the exact range to max_distance: all of the other buckets, or one less?",
        ),
        Mistake(
            _all_buckets_as_steps,
            "The quotient of logarithms is multiplied by all buckets. Only those that are not exact share this range.",
            "with 8 buckets, how many are left for distances from 4 on?",
        ),
        Mistake(
            _ratio_not_taken,
            "The logarithms are those of n and max_distance themselves. The logarithmic part begins at the exact "
            "range: divide both by it first.",
            "which number of steps should the distance num_buckets // 2 get?",
        ),
        Mistake(
            _causal_divided_once,
            "This is the right formula in another order: the number of buckets is divided by a logarithm first. "
            "Rounding then makes 5.999… of 6.",
            "divide the two logarithms by each other before anything else, or compare whole numbers.",
        ),
    ),
    alternatives=(_causal_formula, _causal_loops),
)

# --- 6.2 buckets in both directions


def _two_sided_bucket(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    return t5_bucket(offsets, bidirectional=True, num_buckets=num_buckets, max_distance=max_distance)


def _sides_swapped(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    return _two_sided_bucket(-offsets, num_buckets, max_distance)


def _query_in_the_future(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    side = num_buckets // 2
    return _one_side(np.abs(offsets), side, max_distance) + side * (offsets >= 0)


def _not_halved(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    return _one_side(np.abs(offsets), num_buckets, max_distance) + num_buckets * (offsets > 0)


def _shift_only(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    return _one_side(np.abs(offsets), num_buckets, max_distance) + num_buckets // 2 * (offsets > 0)


def _halved_once(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    side = num_buckets // 2
    return np.minimum(np.abs(offsets), side - 1) + side * (offsets > 0)


def _no_minimum_two_sided(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    side = num_buckets // 2
    return _no_minimum(-np.abs(offsets), side, max_distance) + side * (offsets > 0)


def _one_bucket_for_the_future(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    side = num_buckets // 2
    return _one_side(_past(offsets), side, max_distance) + side * (offsets > 0)


def _from_left_to_right(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    side = num_buckets // 2
    n = _one_side(np.abs(offsets), side, max_distance)
    return np.where(offsets > 0, side + n, side - n)


def _distance_halved_too(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    side = num_buckets // 2
    return _one_side(np.abs(offsets), side, max_distance // 2) + side * (offsets > 0)


def _two_sided_divided_once(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    side = num_buckets // 2
    return _divided_once(np.abs(offsets), side, max_distance) + side * (offsets > 0)


def _two_sided_formula(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    side = num_buckets // 2
    exact, n = side // 2, np.abs(offsets)
    return _in_steps(n, _steps(n, exact, side - exact, max_distance), exact, side) + np.where(offsets > 0, side, 0)


def _two_sided_from_one(offsets: Any, num_buckets: int, max_distance: int) -> Any:
    side = num_buckets // 2
    before, after = (_causal_loops(o, side, max_distance) for o in (offsets, -offsets))
    return np.where(offsets > 0, after + side, before)


@st.composite
def _offsets_both_ways(draw: Any) -> Any:
    side, max_distance = draw(st.sampled_from(_SETTINGS))
    distances = [*range(side), *bucket_starts(side, max_distance)[2:], max_distance, 3 * max_distance]
    signed = st.sampled_from([s * n for n in sorted(set(distances)) for s in (1, -1)])
    return np.array(draw(st.lists(signed, min_size=1, max_size=5)), dtype=np.int64), 2 * side, max_distance


def _never_the_same(bucket: Any, offsets: Any, num_buckets: int, max_distance: int) -> Any:
    before = bucket(-np.abs(offsets), num_buckets, max_distance)
    after = bucket(np.abs(offsets) + 1, num_buckets, max_distance)
    return np.isin(before, after).any(), False


_TWO_SIDED = Exercise(
    id="t5.two_sided_bucket",
    number="6.2",
    chapter="06_t5_buckets",
    title="Buckets, looking both ways",
    minutes=10,
    difficulty=2,
    function="two_sided_bucket",
    reference=_two_sided_bucket,
    inputs=_offsets_both_ways(),
    edges={
        "every offset around the query": (np.arange(-60, 61), 16, 20),
        "T5's encoder": (np.array([-5000, -91, -90, -64, -8, -1, 0, 1, 8, 64, 90, 91, 5000]), 32, 128),
    },
    properties=(
        Property("no bucket serves both sides", _never_the_same),
        Property(
            "every bucket is in the table",
            lambda f, o, b, m: (np.clip(f(3 * o, b, m), 0, b - 1), f(3 * o, b, m)),
        ),
    ),
    mistakes=(
        Mistake(
            _sides_swapped,
            "Past and future are swapped: keys before the query got the upper half of the buckets. Offsets are key "
            "minus query.",
            "is offset +1 before the query or after it? Which half should it get?",
        ),
        Mistake(
            _query_in_the_future,
            "The query's own position, offset 0, got the upper half. It belongs to the lower one, with the past.",
            "which comparison decides the half: offset > 0, or offset ≥ 0?",
        ),
        Mistake(
            _not_halved,
            "Each side got num_buckets buckets, so that there are twice as many as the table has rows.",
            "num_buckets counts both sides together. How many has one?",
        ),
        Mistake(
            _shift_only,
            "The future is shifted by half the buckets, but each side uses all of them: the two overlap.",
            "how many buckets may one side use, and how many of those are exact?",
        ),
        Mistake(
            _halved_once,
            "The buckets are halved for the two sides, but not a second time for the exact and the logarithmic half. "
            "So every bucket is exact, and this is plain clipping.",
            "with 16 buckets a side has 8. How many of those hold one distance each?",
        ),
        Mistake(
            _no_minimum_two_sided,
            "The minimum is missing: far keys of the past run into the buckets of the future.",
            "which bucket does offset −3 · max_distance get?",
        ),
        Mistake(
            _one_bucket_for_the_future,
            "All keys after the query are in one bucket: their distance was set to 0, as for a decoder.",
            "use the absolute value of the offset for the distance.",
        ),
        Mistake(
            _from_left_to_right,
            "The past is numbered from far to near, as the rows of Shaw's table are. T5 counts away from the query on "
            "both sides.",
            "offset 0 should be bucket 0. What is yours?",
        ),
        Mistake(
            _distance_halved_too,
            "Not only the buckets were halved but max_distance too. It is a distance, the same on both sides.",
            "only num_buckets counts both sides together.",
        ),
        Mistake(
            _two_sided_divided_once,
            "This is the right formula in another order: the number of buckets is divided by a logarithm first. "
            "Rounding then makes 5.999… of 6, in T5's own encoder.",
            "divide the two logarithms by each other before anything else, or compare whole numbers.",
        ),
    ),
    alternatives=(_two_sided_formula, _two_sided_from_one),
)

# --- 6.3 the bias of a chunk behind a cache


def _chunk_bias(table: Any, starts: Any, cached: int, new: int) -> Any:
    q, k = np.arange(cached, cached + new), np.arange(cached + new)
    return look_up(offsets(q, k), table, starts.tolist(), bidirectional=False)[0]


def _read(table: Any, starts: Any, distance: Any) -> Any:
    return table[np.searchsorted(starts, distance, side="right") - 1].transpose(2, 0, 1)


def _distances(first: int, cached: int, new: int) -> Any:
    """Distances back to all keys, for queries that stand at first, first + 1, …"""
    return np.maximum(np.arange(first, first + new)[:, None] - np.arange(cached + new), 0)


def _chunk_at_zero(table: Any, starts: Any, cached: int, new: int) -> Any:
    return _read(table, starts, _distances(0, cached, new))


def _chunk_one_late(table: Any, starts: Any, cached: int, new: int) -> Any:
    return _read(table, starts, _distances(cached + 1, cached, new))


def _chunk_one_early(table: Any, starts: Any, cached: int, new: int) -> Any:
    return _read(table, starts, _distances(cached - 1, cached, new))


def _last_row_for_all(table: Any, starts: Any, cached: int, new: int) -> Any:
    return np.repeat(_chunk_bias(table, starts, cached, new)[:, -1:], new, axis=1)


def _chunk_sign(table: Any, starts: Any, cached: int, new: int) -> Any:
    q, k = np.arange(cached, cached + new)[:, None], np.arange(cached + new)
    return _read(table, starts, np.maximum(k - q, 0))


def _chunk_absolute(table: Any, starts: Any, cached: int, new: int) -> Any:
    q, k = np.arange(cached, cached + new)[:, None], np.arange(cached + new)
    return _read(table, starts, np.abs(k - q))


def _distance_as_row(table: Any, starts: Any, cached: int, new: int) -> Any:
    return table[np.minimum(_distances(cached, cached, new), len(table) - 1)].transpose(2, 0, 1)


def _left_side(table: Any, starts: Any, cached: int, new: int) -> Any:
    n = _distances(cached, cached, new)
    return table[np.searchsorted(starts, n, side="left") - 1].transpose(2, 0, 1)


def _not_minus_one(table: Any, starts: Any, cached: int, new: int) -> Any:
    return table[np.searchsorted(starts, _distances(cached, cached, new), side="right")].transpose(2, 0, 1)


def _search_left(table: Any, starts: Any, cached: int, new: int) -> Any:
    return table[np.searchsorted(starts, _distances(cached, cached, new))].transpose(2, 0, 1)


def _reshaped(table: Any, starts: Any, cached: int, new: int) -> Any:
    n = _distances(cached, cached, new)
    return table[np.searchsorted(starts, n, side="right") - 1].reshape(table.shape[1], *n.shape)


def _not_stopped_at_zero(table: Any, starts: Any, cached: int, new: int) -> Any:
    return _read(table, starts, np.arange(cached, cached + new)[:, None] - np.arange(cached + new))


def _masked_by_zeros(table: Any, starts: Any, cached: int, new: int) -> Any:
    return np.tril(_chunk_bias(table, starts, cached, new), k=cached)


def _masked(table: Any, starts: Any, cached: int, new: int) -> Any:
    future = np.arange(cached + new) > np.arange(cached, cached + new)[:, None]
    return np.where(future, -np.inf, _chunk_bias(table, starts, cached, new))


def _chunk_loops(table: Any, starts: Any, cached: int, new: int) -> Any:
    bias = np.zeros((table.shape[1], new, cached + new))
    for i in range(new):
        for j in range(cached + new):
            n = max(cached + i - j, 0)
            bucket = sum(bool(s <= n) for s in starts) - 1
            bias[:, i, j] = table[bucket]
    return bias


def _chunk_of_the_full_bias(table: Any, starts: Any, cached: int, new: int) -> Any:
    return _read(table, starts, _distances(0, 0, cached + new))[:, cached:]


def _chunk_from_vector(table: Any, starts: Any, cached: int, new: int) -> Any:
    n = np.maximum(-np.arange(1 - cached - new, new), 0)
    values = _read(table, starts, n[None])[:, 0]
    return sliding_window_view(values, cached + new, axis=1)[:, ::-1].copy()


@st.composite
def _chunks(draw: Any) -> Any:
    num_buckets, max_distance = draw(st.sampled_from([(4, 8), (4, 16), (6, 24)]))
    table = draw(quarters(num_buckets, draw(sizes(1, 2, 3))))
    starts = np.array(bucket_starts(num_buckets, max_distance))
    return table, starts, draw(sizes(2, 5, 1, 9)), draw(sizes(1, 2, 3))


def _part_of_the_full_bias(chunk_bias: Any, table: Any, starts: Any, cached: int, new: int) -> Any:
    return chunk_bias(table, starts, cached, new), chunk_bias(table, starts, 0, cached + new)[:, cached:]


_CHUNK = Exercise(
    id="t5.chunk_bias",
    number="6.3",
    chapter="06_t5_buckets",
    title="The bias of a chunk behind a cache",
    minutes=12,
    difficulty=2,
    function="chunk_bias",
    kinds=("cache",),
    draw=True,
    reference=_chunk_bias,
    inputs=_chunks(),
    edges={
        "no cache yet": (np.arange(8.0).reshape(4, 2), np.array([0, 1, 2, 4]), 0, 3),
        "T5's decoder, far into a text": (
            np.cos(np.arange(96.0)).reshape(32, 3), np.array(bucket_starts(32, 128)), 150, 4,
        ),
    },
    properties=(Property("a chunk's bias is a part of the full bias", _part_of_the_full_bias),),
    mistakes=(
        Mistake(
            _chunk_at_zero,
            "The chunk's first query stands at 0 here. It stands behind the cached tokens. The first chunk of a text "
            "comes out right, and all later ones do not.",
            "with 5 cached tokens, which position has the first new one?",
        ),
        Mistake(
            _chunk_one_late,
            "The queries stand one place too far: positions count from 0, so with 5 cached tokens the next one is at "
            "5.",
            "what is the distance from a new token to itself?",
        ),
        Mistake(
            _chunk_one_early,
            "The queries stand one place too early: the first new token got the position of the last cached one.",
            "what is the distance from the first new token to the last cached one?",
        ),
        Mistake(
            _last_row_for_all,
            "All new queries share the row of the last one. Each has a row of its own, shifted by one.",
            "print the bias for two new tokens: row 0 should be row 1 moved one column to the left.",
        ),
        Mistake(
            _chunk_sign,
            "The distances are those of the keys after the query: all of the past got bucket 0.",
            "the distance to a key in the past is query minus key.",
        ),
        Mistake(
            _chunk_absolute,
            "Keys after the query got the bucket of their distance. In one direction they all have bucket 0.",
            "use a maximum with 0 where you take the absolute value.",
        ),
        Mistake(
            _distance_as_row,
            "The distance itself is used as the row of the table. Look up its bucket first: the last one whose first "
            "distance is not larger.",
            "np.searchsorted(starts, n, side=…) finds it.",
        ),
        Mistake(
            _left_side,
            "The search stops on the left side, so that a distance that begins a bucket lands in the one before, and "
            "distance 0 at index −1, which is the last row.",
            'how many of the starts are ≤ n? That is side="right".',
        ),
        Mistake(
            _not_minus_one,
            "The search counts the starts that are ≤ n. Buckets are numbered from 0: subtract 1.",
            "how many starts are ≤ 0, and which bucket has distance 0?",
        ),
        Mistake(
            _search_left,
            "By default searchsorted counts the starts below n, so that all but the first distance of a bucket land in "
            "the next one.",
            'count the starts that are ≤ n, side="right", and subtract 1.',
        ),
        Mistake(
            _reshaped,
            "The axis of the heads is moved by reshape, which leaves the numbers in their old order and so mixes heads "
            "with keys.",
            "transpose moves an axis; reshape cuts the same sequence of numbers elsewhere.",
        ),
        Mistake(
            _not_stopped_at_zero,
            "Keys after the query have a distance below 0, which the search puts at index −1: Python reads the last "
            "row, that of the farthest keys. They should have bucket 0.",
            "where should distances stop? Which index does searchsorted(starts, −1) − 1 give?",
        ),
        Mistake(
            _masked_by_zeros,
            "Keys after the query have the bias 0. They should have the number of bucket 0, table[0].",
            "leave the future as the table has it.",
        ),
        Mistake(
            _masked,
            "Keys after the query have −∞: that is the mask already. Here only the bias is asked for, bucket 0.",
            "leave the future as the table has it.",
        ),
    ),
    alternatives=(_chunk_loops, _chunk_of_the_full_bias, _chunk_from_vector),
)  # fmt: skip

# --- 6.4 a report to judge


def _last_starts(num_buckets: int, max_distance: int) -> tuple[int, int]:
    side = num_buckets // 2
    return bucket_starts(side, max_distance)[-1], side - 1


def _start_unrounded(side: int, max_distance: int) -> float:
    """Where the last bucket begins, before rounding."""
    exact = side // 2
    more = side - exact
    return float(exact * (max_distance / exact) ** ((more - 1) / more))


def _at_max_distance(num_buckets: int, max_distance: int) -> tuple[int, int]:
    return max_distance, num_buckets // 2 - 1


def _not_halved_for_sides(num_buckets: int, max_distance: int) -> tuple[int, int]:
    return bucket_starts(num_buckets, max_distance)[-1], num_buckets - 1


def _one_too_far(num_buckets: int, max_distance: int) -> tuple[int, int]:
    return _last_starts(num_buckets, max_distance)[0], num_buckets // 2


def _change_changes_nothing(num_buckets: int, max_distance: int) -> tuple[int, int]:
    return (_last_starts(num_buckets, max_distance)[0],) * 2


def _change_at_max_distance(num_buckets: int, max_distance: int) -> tuple[int, int]:
    return _last_starts(num_buckets, max_distance)[0], max_distance


def _swapped(num_buckets: int, max_distance: int) -> tuple[int, int]:
    return _last_starts(num_buckets, max_distance)[::-1]


def _cut_off(num_buckets: int, max_distance: int) -> tuple[int, int]:
    return int(_start_unrounded(num_buckets // 2, max_distance)), num_buckets // 2 - 1


def _rounded_up_in_floats(num_buckets: int, max_distance: int) -> tuple[int, int]:
    return math.ceil(_start_unrounded(num_buckets // 2, max_distance)), num_buckets // 2 - 1


def _in_int64(num_buckets: int, max_distance: int) -> tuple[int, int]:
    side = num_buckets // 2
    exact = side // 2
    n = np.arange(exact, max_distance + 1)
    reached = n ** (side - exact) >= exact * np.int64(max_distance) ** (side - exact - 1)
    return int(n[np.argmax(reached)]), side - 1


def _searched_in_floats(num_buckets: int, max_distance: int) -> tuple[int, int]:
    side = num_buckets // 2
    exact = side // 2
    scale = math.log(max_distance / exact)
    for n in range(exact, max_distance):
        if exact + int(math.log(n / exact) / scale * (side - exact)) >= side - 1:
            return n, side - 1
    return max_distance, side - 1


def _the_one_before(num_buckets: int, max_distance: int) -> tuple[int, int]:
    side = num_buckets // 2
    return bucket_starts(side, max_distance)[-2], side - 1


def _starts_by_counting(num_buckets: int, max_distance: int) -> tuple[int, int]:
    exact = num_buckets // 4
    more = num_buckets // 2 - exact
    n = exact
    while n**more < exact * max_distance ** (more - 1):
        n += 1
    return n, num_buckets // 2 - 1


def _starts_by_fractions(num_buckets: int, max_distance: int) -> tuple[int, int]:
    def first_of_the_last(side: int, exact: int) -> int:
        more = side - exact
        if not more:  # nothing is left for the logarithmic half
            return side - 1
        far = Fraction(max_distance, exact) ** (more - 1)
        return bisect_left(range(max_distance), far, lo=exact, key=lambda n: Fraction(n, exact) ** more)

    side = num_buckets // 2
    return first_of_the_last(side, side // 2), first_of_the_last(side, side)


@st.composite
def _reported(draw: Any) -> Any:
    side = 2 * draw(st.integers(2, 8))
    return 2 * side, side + draw(st.integers(1, 150))


_REPORT = Exercise(
    id="t5.halved_twice",
    number="6.4",
    chapter="06_t5_buckets",
    title="Is this a bug? Halved twice",
    minutes=15,
    difficulty=3,
    function="last_starts",
    kinds=("bug",),
    reference=_last_starts,
    inputs=_reported(),
    edges={
        "T5's encoder": (32, 128),
        "a start that is a whole number": (20, 160),
        "another one": (24, 384),
        "many buckets, a long text": (64, 2048),
    },
    mistakes=(
        Mistake(
            _at_max_distance,
            "The first number is max_distance. The last bucket begins one ratio before it: after all equal ratios but "
            "one.",
            "which bucket would max_distance get without the minimum? Is there such a bucket?",
        ),
        Mistake(
            _not_halved_for_sides,
            "This takes all buckets for one side. The code halves them first, because the other half is for the "
            "future.",
            "read the first line of the code once more.",
        ),
        Mistake(
            _one_too_far,
            "The second number is one too large: the minimum already puts it into the last bucket, and the distance "
            "before it has that number by itself.",
            "with 4 buckets on a side, all exact: which distance is the first in bucket 3?",
        ),
        Mistake(
            _change_changes_nothing,
            "Both numbers are those of the code as it is. With the proposed change all buckets of a side are exact.",
            "how many buckets are left for the logarithm when max_exact = num_buckets?",
        ),
        Mistake(
            _change_at_max_distance,
            "The second number is max_distance, but with the proposed change no bucket is left to reach that far.",
            "what is num_buckets − max_exact, by which the quotient of logarithms is multiplied?",
        ),
        Mistake(
            _swapped,
            "The two numbers are in the wrong order: first the code as it is, then the proposed change.",
        ),
        Mistake(
            _cut_off,
            "The start is cut to a whole number. That distance lies before it: the first one in the bucket is the next "
            "whole number, unless the start is whole.",
            "for T5 the formula says 90.5. Has distance 90 reached it?",
        ),
        Mistake(
            _rounded_up_in_floats,
            "The start is computed as a float and rounded up. One that is a whole number can come out a little too "
            "large, and the result is one too far.",
            "compare whole numbers: n^N ≥ E · M^(N − 1).",
        ),
        Mistake(
            _in_int64,
            "The whole numbers are NumPy's, 64 bits wide. They overflow without a word when num_buckets and "
            "max_distance are large.",
            "Python's own integers have any size: take int(n) before you raise it to a power.",
        ),
        Mistake(
            _searched_in_floats,
            "The search runs over the formula in floats. Where the start is a whole number, the quotient of logarithms "
            "can come out a little too small, and the result is one too far.",
            "compare whole numbers: n^N ≥ E · M^(N − 1).",
        ),
        Mistake(
            _the_one_before,
            "The first number is where the last but one bucket begins.",
            "with N buckets on the logarithmic half, how many ratios lie before the last of them: N − 1 or N − 2?",
        ),
    ),
    alternatives=(_starts_by_counting, _starts_by_fractions),
)

# --- 6.5 a matrix from a vector


def _matrix(vector: Any, q_len: int, k_len: int) -> Any:
    i, j = np.arange(q_len)[:, None], np.arange(k_len)
    return vector[:, q_len - 1 - i + j]


def _not_flipped(vector: Any, q_len: int, k_len: int) -> Any:
    return _matrix(vector, q_len, k_len)[:, ::-1]


def _query_minus_key_matrix(vector: Any, q_len: int, k_len: int) -> Any:
    return _matrix(vector[:, ::-1], q_len, k_len)


def _one_row_for_all(vector: Any, q_len: int, k_len: int) -> Any:
    return np.repeat(vector[:, None, :k_len], q_len, axis=1)


def _mirrored(vector: Any, q_len: int, k_len: int) -> Any:
    i, j = np.arange(k_len - q_len, k_len)[:, None], np.arange(k_len)
    return vector[:, k_len - 1 - np.abs(j - i)]


def _offset_as_index(vector: Any, q_len: int, k_len: int) -> Any:
    i, j = np.arange(k_len - q_len, k_len)[:, None], np.arange(k_len)
    return vector[:, j - i]  # a negative index counts from the end


def _no_future(vector: Any, q_len: int, k_len: int) -> Any:
    i, j = np.arange(q_len)[:, None], np.arange(k_len)
    return vector[:, np.minimum(q_len - 1 - i + j, k_len - 1)]


def _first_queries(vector: Any, q_len: int, k_len: int) -> Any:
    i, j = np.arange(q_len)[:, None], np.arange(k_len)
    return vector[:, np.minimum(k_len - 1 + j - i, vector.shape[1] - 1)]


def _heads_reshaped(vector: Any, q_len: int, k_len: int) -> Any:
    i, j = np.arange(q_len)[:, None], np.arange(k_len)
    return vector.T[q_len - 1 - i + j].reshape(len(vector), q_len, k_len)


def _matrix_loops(vector: Any, q_len: int, k_len: int) -> Any:
    B = np.zeros((len(vector), q_len, k_len))
    for i in range(q_len):
        for j in range(k_len):
            offset = j - (k_len - q_len + i)
            B[:, i, j] = vector[:, offset + k_len - 1]
    return B


def _matrix_slices(vector: Any, q_len: int, k_len: int) -> Any:
    return np.stack([vector[:, q_len - 1 - i : q_len - 1 - i + k_len] for i in range(q_len)], axis=1)


def _matrix_windows(vector: Any, q_len: int, k_len: int) -> Any:
    return sliding_window_view(vector, k_len, axis=1)[:, ::-1].copy()


@st.composite
def _vectors(draw: Any) -> Any:
    q_len = draw(sizes(2, 1, 3))
    k_len = q_len + draw(sizes(1, 0, 3))
    return draw(quarters(draw(sizes(1, 2)), q_len + k_len - 1)), q_len, k_len


_FROM_VECTOR = Exercise(
    id="t5.matrix_from_vector",
    number="6.5",
    chapter="06_t5_buckets",
    title="A matrix out of a vector",
    minutes=10,
    difficulty=2,
    function="matrix_from_vector",
    draw=True,
    reference=_matrix,
    inputs=_vectors(),
    edges={
        "counting numbers, three heads": (np.arange(24.0).reshape(3, 8), 3, 6),
        "as many queries as keys": (np.arange(14.0).reshape(2, 7), 4, 4),
    },
    properties=(
        Property("constant along diagonals", lambda f, v, q, k: (f(v, q, k)[:, 1:, 1:], f(v, q, k)[:, :-1, :-1])),
        Property(
            "the last query finds offset 0 at the last key", lambda f, v, q, k: (f(v, q, k)[:, -1, -1], v[:, k - 1])
        ),
    ),
    mistakes=(
        Mistake(
            _not_flipped,
            "The rows are in reverse order. The last query is farthest from the first key, so its row begins at the "
            "start of the vector; the first query's row begins at the end.",
            "which offset has the last query to the first key? Where in the vector does it stand?",
        ),
        Mistake(
            _query_minus_key_matrix,
            "The vector is read backwards: offsets are key minus query, so along a row they grow.",
            "from one key to the next, does key minus query grow or fall?",
        ),
        Mistake(
            _one_row_for_all,
            "All queries have the same row. One query later, every offset is smaller by one.",
            "row i begins one number earlier than row i − 1.",
        ),
        Mistake(
            _mirrored,
            "The offset's sign is lost: keys after the query got the number of the same distance in the past.",
            "where in the vector do offsets above 0 stand?",
        ),
        Mistake(
            _offset_as_index,
            "The offset itself is used as an index. Python reads a negative index from the end, without an error.",
            "at which index does offset 0 stand? Add that to the offset.",
        ),
        Mistake(
            _no_future,
            "Keys after the query all got the number of offset 0. Here the vector has numbers for them too.",
            "take the vector as it is; masking comes later.",
        ),
        Mistake(
            _first_queries,
            "The queries are taken for the first tokens. They are the last q_len of k_len tokens, as with a cache.",
            "at which position stands the first query when q_len = 2 and k_len = 5?",
        ),
        Mistake(
            _heads_reshaped,
            "The axis of the heads is moved by reshape, which mixes heads with keys.",
            "index the last axis, vector[:, …], and no axis has to be moved.",
        ),
    ),
    alternatives=(_matrix_loops, _matrix_slices, _matrix_windows),
)

# --- 6.6 a layer for decoding, in PyTorch


def _layer(table: Any, max_distance: int, q_len: int, k_len: int, upstream: Any) -> Any:
    offset = np.arange(k_len) - np.arange(k_len - q_len, k_len)[:, None]
    bucket = _causal_bucket(offset, len(table), max_distance)
    gradient = np.zeros_like(table)
    for m, n in np.ndindex(bucket.shape):
        gradient[bucket[m, n]] += upstream[:, m, n]
    return np.ascontiguousarray(table[bucket].transpose(2, 0, 1)), gradient


def _use_layer(answer: Any, table: Any, max_distance: Any, q_len: Any, k_len: Any, upstream: Any) -> Any:
    import torch

    layer = answer(len(table), max_distance, table.shape[1])
    with torch.no_grad():
        layer.weight.copy_(table)
    layer(1, 1)  # what one call leaves must not spoil the next
    bias = layer(q_len, k_len)
    bias.backward(upstream)
    gradient = torch.zeros_like(table) if layer.weight.grad is None else layer.weight.grad
    return bias, gradient


def _as_layer(bias: Any) -> Any:
    """A layer out of its forward pass ``bias(weight, max_distance, q_len, k_len)``."""

    def build(num_buckets: int, max_distance: int, heads: int) -> Any:
        import torch

        class Layer(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(num_buckets, heads))

            def forward(self, q_len: int, k_len: int) -> Any:
                return bias(self.weight, max_distance, q_len, k_len)

        return Layer()

    build.__name__ = bias.__name__
    return build


def _places_torch(q_len: int, k_len: int) -> Any:
    """Distances query − key of the last ``q_len`` of ``k_len`` tokens."""
    import torch

    return torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)


def _bucket_torch(distance: Any, num_buckets: int, max_distance: int, rounded: str = "floor") -> Any:
    """As released: logarithms in float32."""
    import torch

    n, exact = distance.clamp(min=0), num_buckets // 2
    steps = torch.log(n.clamp(min=exact).float() / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    return torch.where(n < exact, n, (exact + getattr(steps, rounded)().long()).clamp(max=num_buckets - 1))


def _looked_up(weight: Any, bucket: Any) -> Any:
    return weight[bucket].permute(2, 0, 1)


@_as_layer
def _layer_from_zero(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    distance = _places_torch(q_len, k_len) - (k_len - q_len)
    return _looked_up(weight, _bucket_torch(distance, len(weight), max_distance))


@_as_layer
def _layer_all_last(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    distance = _places_torch(1, k_len).expand(q_len, -1)
    return _looked_up(weight, _bucket_torch(distance, len(weight), max_distance))


@_as_layer
def _layer_sign(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    return _looked_up(weight, _bucket_torch(-_places_torch(q_len, k_len), len(weight), max_distance))


@_as_layer
def _layer_absolute(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    return _looked_up(weight, _bucket_torch(_places_torch(q_len, k_len).abs(), len(weight), max_distance))


@_as_layer
def _layer_two_sided(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    distance, side = _places_torch(q_len, k_len), len(weight) // 2
    return _looked_up(weight, _bucket_torch(distance.abs(), side, max_distance) + side * (distance < 0))


@_as_layer
def _layer_clipped(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    return _looked_up(weight, _places_torch(q_len, k_len).clamp(0, len(weight) - 1))


@_as_layer
def _layer_rounded(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    return _looked_up(weight, _bucket_torch(_places_torch(q_len, k_len), len(weight), max_distance, "round"))


@_as_layer
def _layer_reshaped(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    bucket = _bucket_torch(_places_torch(q_len, k_len), len(weight), max_distance)
    return weight[bucket].reshape(weight.shape[1], q_len, k_len)


@_as_layer
def _layer_future_lost(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    distance = _places_torch(q_len, k_len)
    return _looked_up(weight, _bucket_torch(distance, len(weight), max_distance)) * (distance >= 0)


@_as_layer
def _layer_detached(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    return _looked_up(weight.data, _bucket_torch(_places_torch(q_len, k_len), len(weight), max_distance))


@_as_layer
def _layer_released(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    return _looked_up(weight, _bucket_torch(_places_torch(q_len, k_len), len(weight), max_distance))


@_as_layer
def _layer_searched(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    import torch

    starts = torch.tensor(bucket_starts(len(weight), max_distance))
    distance = _places_torch(q_len, k_len).clamp(min=0)
    bucket = (distance[..., None] >= starts).sum(-1) - 1
    return torch.nn.functional.embedding(bucket, weight).movedim(-1, 0)


@_as_layer
def _layer_from_vector(weight: Any, max_distance: int, q_len: int, k_len: int) -> Any:
    # one bias for each offset, then a window of it for each query
    offsets = _places_torch(1, k_len + q_len - 1)[0] - (q_len - 1)
    vector = weight[_bucket_torch(offsets, len(weight), max_distance)].T
    return vector.unfold(1, k_len, 1).flip(1)


@st.composite
def _decoding(draw: Any) -> Any:
    # settings in which no start is a power that rounding could move
    num_buckets, max_distance = draw(st.sampled_from([(8, 20), (10, 50), (16, 40)]))
    q_len, cached, heads = draw(sizes(1, 2, 3)), draw(sizes(0, 1, 5, 14, 30)), draw(sizes(1, 2, 3))
    table = draw(quarters(num_buckets, heads)).astype(np.float32)
    return table, max_distance, q_len, cached + q_len, draw(quarters(heads, q_len, cached + q_len)).astype(np.float32)


_LAYER = Exercise(
    id="t5.layer",
    number="6.6",
    chapter="06_t5_buckets",
    title="A layer that decodes",
    minutes=20,
    difficulty=3,
    function="T5Bias",
    reference=_layer,
    use=_use_layer,
    asks=("num_buckets", "max_distance", "heads"),
    kinds=("torch", "cache"),
    draw=True,
    inputs=_decoding(),
    edges={
        "four new tokens behind 150": (
            np.arange(96, dtype=np.float32).reshape(32, 3), 128, 4, 154, np.ones((3, 4, 154), np.float32),
        ),
        "no cache yet": (np.arange(16, dtype=np.float32).reshape(8, 2), 20, 5, 5, np.ones((2, 5, 5), np.float32)),
    },
    mistakes=(
        Mistake(
            _layer_from_zero,
            "The queries are counted from 0. They are the last tokens: the first of them stands at k_len − q_len.",
            "behind a cache of 5, how far is the one new token from the key before it?",
        ),
        Mistake(
            _layer_all_last,
            "All queries share the row of the last one. Each stands at its own position.",
            "compare a chunk of two with two chunks of one.",
        ),
        Mistake(
            _layer_sign,
            "The distances are those of keys after the query: all of the past got bucket 0.",
            "the distance to a key in the past is query minus key.",
        ),
        Mistake(
            _layer_absolute,
            "Keys after the query got the bucket of their distance. In one direction they all have bucket 0.",
            "use clamp(min=0) where you take the absolute value.",
        ),
        Mistake(
            _layer_two_sided,
            "The buckets are shared between both sides, as in the encoder. A decoder gives all of them to the past.",
            "which bucket has the farthest key?",
        ),
        Mistake(
            _layer_clipped,
            "Every distance has a bucket of its own, up to the last one. Only the first half of the buckets is like "
            "that; the others grow as a logarithm.",
            "where does bucket num_buckets // 2 + 1 begin?",
        ),
        Mistake(
            _layer_rounded,
            "The logarithm is rounded to the nearest whole number. A bucket begins where it is reached: round down.",
            ".long() cuts off what is behind the point.",
        ),
        Mistake(
            _layer_reshaped,
            "The axis of the heads is moved by reshape, which leaves the numbers in their old order and so mixes "
            "heads with keys.",
            "permute moves an axis.",
        ),
        Mistake(
            _layer_future_lost,
            "Keys after the query have the bias 0. They should have the number of bucket 0; hiding them is left to "
            "the mask.",
            "leave the future as the table has it.",
        ),
        Mistake(
            _layer_detached,
            "The bias has lost its way back to the parameter (.data, .detach() or no_grad), so nothing is trained.",
            "print bias.requires_grad.",
        ),
    ),
    alternatives=(_layer_released, _layer_searched, _layer_from_vector),
)  # fmt: skip

EXERCISES = (_CAUSAL, _TWO_SIDED, _CHUNK, _REPORT, _FROM_VECTOR, _LAYER)
