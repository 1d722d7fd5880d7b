"""Exercises of chapter 11: decoding with a cache."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.attention import attention
from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters, sizes
from posenc_ref.positions import causal, kept_positions, positions_from_mask
from posenc_ref.rotary import cos_sin, rerotate, rotate

TITLE = "decoding with a cache"


# --- 11.1 positions of padded rows


def _positions(real: Any) -> Any:
    return positions_from_mask(real)


def _columns(real: Any) -> Any:
    return np.tile(np.arange(real.shape[1]), (len(real), 1))


def _columns_of_real(real: Any) -> Any:
    return _columns(real) * real


def _from_one(real: Any) -> Any:
    return np.cumsum(real, axis=1) * real


def _minus_one(real: Any) -> Any:
    return np.cumsum(real, axis=1) - 1


def _padding_counts_on(real: Any) -> Any:
    return np.maximum(np.cumsum(real, axis=1) - 1, 0)


def _padding_gets_one(real: Any) -> Any:
    return np.where(real == 0, 1, np.cumsum(real, axis=1) - 1)


def _down_the_batch(real: Any) -> Any:
    return (np.cumsum(real, axis=0) - 1) * real


def _over_all_rows(real: Any) -> Any:
    return (np.cumsum(real).reshape(real.shape) - 1) * real


def _from_the_end(real: Any) -> Any:
    return (np.cumsum(real[:, ::-1], axis=1)[:, ::-1] - 1) * real


def _length_taken_off(real: Any) -> Any:
    padding = real.shape[1] - real.sum(axis=1, keepdims=True)  # right only if it is all on the left
    return np.maximum(_columns(real) - padding, 0) * real


def _positions_loops(real: Any) -> Any:
    p = np.zeros_like(real)
    for row, out in zip(real, p, strict=True):
        count = 0
        for t, r in enumerate(row):
            if r:
                out[t] = count
                count += 1
    return p


def _positions_where(real: Any) -> Any:
    p = np.zeros_like(real)
    for row, out in zip(real, p, strict=True):
        out[np.flatnonzero(row)] = np.arange(row.sum())
    return p


@st.composite
def _padded(draw: Any) -> Any:
    length, rows = draw(sizes(4, 6)), []
    for _ in range(draw(sizes(2, 3))):
        tokens = draw(st.integers(1, length))
        left = draw(st.integers(0, length - tokens))
        rows.append([0] * left + [1] * tokens + [0] * (length - tokens - left))
    return (np.array(rows, dtype=np.int64),)


_POSITIONS = Exercise(
    id="cache.positions",
    number="11.1",
    chapter="11_decoding_with_a_cache",
    title="Positions of padded rows",
    minutes=8,
    difficulty=1,
    kinds=("cache",),
    function="positions",
    reference=_positions,
    inputs=_padded(),
    edges={
        "padding on the left": (np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]]),),
        "padding on the right": (np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),),
        "padding on both sides": (np.array([[0, 0, 1, 1, 0], [0, 1, 1, 1, 0]]),),
    },
    properties=(
        Property("the last token of a row is its length minus 1", lambda f, real: (f(real).max(1), real.sum(1) - 1)),
        Property(
            "one more column of padding on the left changes nothing",
            lambda f, real: (f(np.pad(real, ((0, 0), (1, 0))))[:, 1:], f(real)),
        ),
    ),
    mistakes=(
        Mistake(
            _columns,
            "These are the column numbers. A text that is padded on the left does not begin in column 0.",
            "which position has the first real token of each row?",
        ),
        Mistake(
            _columns_of_real,
            "Padding has 0, as it should, but real tokens have their column number. They are counted from the first "
            "real token.",
            "count the real tokens up to each column, with a cumulative sum.",
        ),
        Mistake(
            _from_one,
            "Real tokens are counted from 1. Positions begin at 0.",
            "a cumulative sum of ones begins with 1. What is missing?",
        ),
        Mistake(
            _minus_one,
            "Real tokens are right. Padding has other numbers: −1 on the left, which would read a table's last row, or "
            "the last position again. Asked for is 0.",
            "multiply by the mask, or use np.where.",
        ),
        Mistake(
            _padding_counts_on,
            "Real tokens are right, and so is padding on the left. Padding on the right repeats the last position; "
            "asked for is 0.",
            "multiply by the mask instead of cutting off below 0.",
        ),
        Mistake(
            _padding_gets_one,
            "Padding has 1, as in some libraries. It is masked, so that would do no harm, but asked for is 0.",
            "which fill value is asked for?",
        ),
        Mistake(
            _down_the_batch,
            "The sum runs down the batch. It must run along each text.",
            "which axis of (batch, seq) is the text?",
        ),
        Mistake(
            _over_all_rows,
            "The sum runs on from one row to the next. Each text begins again at 0.",
            "np.cumsum without axis flattens the array.",
        ),
        Mistake(
            _from_the_end,
            "Tokens are counted from the end of the text. The first real token is at 0.",
            "in which direction does the sum run?",
        ),
        Mistake(
            _length_taken_off,
            "All padding of a row is taken off, as if it stood on the left. Padding on the right must not move a text.",
            "look at a row such as [1, 1, 0].",
        ),
    ),
    alternatives=(_positions_loops, _positions_where),
)

# --- 11.2 one decoding step


def _turn(x: Any, p: Any, theta: Any) -> Any:
    return rotate(x, *cos_sin(np.asarray(p), theta), layout="interleaved")


def _attend(q: Any, keys: Any, values: Any, scale: float | None = None) -> Any:
    logits = keys @ q * (len(q) ** -0.5 if scale is None else scale)
    w = np.exp(logits - logits.max())
    return w / w.sum() @ values


def _decode(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    # the other route: the whole text at once, from unturned keys, and its last row
    n = len(keys)
    unturned = np.concatenate([_turn(keys, -np.arange(n), theta), k[None]])
    every_v = np.concatenate([values, v[None]])
    p = np.arange(n + 1)
    q_all = np.concatenate([unturned[:n], q[None]])
    turned = [_turn(x, p, theta) for x in (q_all, unturned)]
    full = attention(turned[0][None, None], turned[1][None, None], every_v[None, None], mask=causal(p, p))
    return full[0, 0, -1], np.concatenate([keys, turned[1][n:]])


def _step(
    q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any, *, q_at: int | None = None, k_at: int | None = None
) -> Any:
    n = len(keys)
    new = _turn(k, n if k_at is None else k_at, theta)
    keys = np.concatenate([keys, new[None]])
    return _attend(_turn(q, n if q_at is None else q_at, theta), keys, np.concatenate([values, v[None]])), keys


def _both_at_zero(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    return _step(q, k, v, keys, values, theta, q_at=0, k_at=0)


def _query_at_zero(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    return _step(q, k, v, keys, values, theta, q_at=0)


def _one_too_far(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    return _step(q, k, v, keys, values, theta, q_at=len(keys) + 1, k_at=len(keys) + 1)


def _one_too_near(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    return _step(q, k, v, keys, values, theta, q_at=len(keys) - 1, k_at=len(keys) - 1)


def _not_itself(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    if not len(keys):
        return _step(q, k, v, keys, values, theta)
    n = len(keys)
    return _attend(_turn(q, n, theta), keys, values), np.concatenate([keys, _turn(k, n, theta)[None]])


def _turned_twice(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    return _step(q, k, v, _turn(keys, np.arange(len(keys)), theta), values, theta)


def _cached_unturned(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    out, _ = _step(q, k, v, keys, values, theta)
    return out, np.concatenate([keys, k[None]])


def _key_not_turned(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    return _step(q, k, v, keys, values, theta, k_at=0)


def _values_turned(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    n = len(keys)
    return _step(q, k, _turn(v, n, theta), keys, _turn(values, np.arange(n), theta), theta)


def _no_scale(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    n = len(keys)
    keys = np.concatenate([keys, _turn(k, n, theta)[None]])
    return _attend(_turn(q, n, theta), keys, np.concatenate([values, v[None]]), scale=1.0), keys


def _no_maximum(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    n = len(keys)
    keys = np.concatenate([keys, _turn(k, n, theta)[None]])
    with np.errstate(all="ignore"):
        w = np.exp(keys @ _turn(q, n, theta) / np.sqrt(len(q)))
        return w / w.sum() @ np.concatenate([values, v[None]]), keys


def _put_in_front(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    out, all_keys = _step(q, k, v, keys, values, theta)
    return out, np.roll(all_keys, 1, axis=0)


def _decode_complex(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    hands = np.exp(1j * len(keys) * theta)
    zq, zk = (hands * (x[0::2] + 1j * x[1::2]) for x in (q, k))
    new = np.stack([zk.real, zk.imag], axis=-1).reshape(-1)
    z = np.concatenate([keys[:, 0::2] + 1j * keys[:, 1::2], zk[None]])
    logits = (z.conj() @ zq).real / np.sqrt(len(q))
    w = np.exp(logits - logits.max())
    return (w / w.sum()) @ np.concatenate([values, v[None]]), np.concatenate([keys, new[None]])


def _decode_reference(q: Any, k: Any, v: Any, keys: Any, values: Any, theta: Any) -> Any:
    return _step(q, k, v, keys, values, theta)


@st.composite
def _steps(draw: Any) -> Any:
    pairs, n = draw(sizes(1, 2)), draw(sizes(3, 2, 1, 5))
    d = 2 * pairs
    theta = np.array([1.0, 0.25])[:pairs]
    q, k, v, keys, values = (draw(quarters(*s)) for s in ((d,), (d,), (d,), (n, d), (n, d)))
    return q, k, v, keys, values, theta


def _one_key(q: float) -> Any:
    """An empty cache; the only score is 43 q/√2."""
    return np.array([q, 0.0]), np.array([43.0, 0.0]), np.array([1.0, 2.0]), np.zeros((0, 2)), np.zeros((0, 2))


_STEP_EDGE = tuple(np.cos(np.arange(n) * s).reshape(shape) for n, s, shape in (
    (4, 1.0, (4,)), (4, 2.0, (4,)), (4, 3.0, (4,)), (28, 0.7, (7, 4)), (28, 1.3, (7, 4)),
))  # fmt: skip

_DECODE = Exercise(
    id="cache.step",
    number="11.2",
    chapter="11_decoding_with_a_cache",
    title="One decoding step",
    minutes=15,
    difficulty=2,
    kinds=("cache",),
    function="step",
    reference=_decode,
    inputs=_steps(),
    edges={
        "the eighth token": (*_STEP_EDGE, np.array([1.0, 0.01])),
        "the first token (empty cache)": (
            *_STEP_EDGE[:3],
            np.zeros((0, 4)),
            np.zeros((0, 4)),
            np.array([1.0, 0.01]),
        ),
        "a score of 900": (*_one_key(30.0), np.array([1.0])),
        "a score of −900": (*_one_key(-30.0), np.array([1.0])),
        "scores of 900 and −500": (
            *_one_key(30.0)[:3],
            np.array([[-43.0, 0.0]]),
            np.array([[3.0, 4.0]]),
            np.array([1.0]),
        ),
    },
    properties=(
        Property(
            "the new key is as long as it was",
            lambda f, q, k, *rest: (np.sum(f(q, k, *rest)[1][-1] ** 2), np.sum(k**2)),
        ),
        Property(
            "equal values come out as they are",
            lambda f, q, k, v, keys, values, theta: (
                f(q, k, np.ones_like(v), keys, np.ones_like(values), theta)[0],
                np.ones_like(v),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _both_at_zero,
            "The new query and key are at position 0 in every step. Their position is the number of tokens "
            "before them.",
            "how many rows has the cache when the fifth token comes?",
        ),
        Mistake(
            _query_at_zero,
            "The new key is right, but the query is at position 0. A token's query and key share one position.",
            "turn both by the same angles.",
        ),
        Mistake(
            _one_too_far,
            "Query and key are one position too far: len(keys) + 1. Positions are counted from 0.",
            "with an empty cache the new token is at 0.",
        ),
        Mistake(
            _one_too_near,
            "Query and key are at the position of the last cached token. The new token is behind it.",
            "with an empty cache the new token is at 0.",
        ),
        Mistake(
            _not_itself,
            "The new token does not see its own key and value. Append them before you attend.",
            "how many weights are there when the cache holds three tokens?",
        ),
        Mistake(
            _turned_twice,
            "The cached keys are turned once more. They were turned when they were cached.",
            "which of the keys still needs its turn?",
        ),
        Mistake(
            _cached_unturned,
            "The output is right, but the new key goes into the cache unturned, beside turned ones. The next step will "
            "be wrong.",
            "which key meets the query in the next step?",
        ),
        Mistake(
            _key_not_turned,
            "The query is turned, the new key is not.",
            "the score of a token with itself should not depend on its position. Does it?",
        ),
        Mistake(
            _values_turned,
            "Values are turned too. RoPE acts on queries and keys only.",
            "what comes out if all values are equal?",
        ),
        Mistake(
            _no_scale,
            "The logits are not divided by √d.",
            "what makes the softmax too sharp here?",
        ),
        Mistake(
            _no_maximum,
            "The exponential of a large score is more than a float holds, and of a very negative one it is 0. Take the "
            "largest score off first: the weights stay the same.",
            "what is np.exp(900)? And 0 divided by 0?",
        ),
        Mistake(
            _put_in_front,
            "The output is right, but the new key stands in front of the others. Later tokens go to the end.",
            "which row of the cache is position 0?",
        ),
    ),
    alternatives=(_decode_reference, _decode_complex),
)

# --- 11.3 moving cached keys


def _move(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    moved = rerotate(keys[None, None], old_positions=old, new_positions=new, inv_freq=theta, layout="interleaved")
    return moved[0, 0]


def _turned_again(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return _turn(keys, new, theta)


def _moved_backwards(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return _turn(keys, old - new, theta)


def _only_turned_back(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return _turn(keys, -old, theta)


def _sum_of_both(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return _turn(keys, old + new, theta)


def _one_shift(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return _turn(keys, new[-1] - old[-1], theta)


def _first_pair_only(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return _turn(keys, new - old, np.full_like(theta, theta[0]))


def _newest_forgotten(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return np.concatenate([_move(keys[:-1], old[:-1], new[:-1], theta), keys[-1:]])


def _half_layout(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return rotate(keys, *cos_sin(new - old, theta), layout="half")


def _not_moved(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return keys.copy()


def _numbered_by_itself(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return _turn(keys, np.arange(len(keys)) - old, theta)


def _move_complex(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    z = (keys[:, 0::2] + 1j * keys[:, 1::2]) * np.exp(1j * (new - old)[:, None] * theta)
    return np.stack([z.real, z.imag], axis=-1).reshape(keys.shape)


def _move_in_two_turns(keys: Any, old: Any, new: Any, theta: Any) -> Any:
    return _turn(_turn(keys, -old, theta), new, theta)


@st.composite
def _moves(draw: Any) -> Any:
    n, pairs = draw(sizes(2, 3)), 2
    old = np.sort(draw(st.lists(st.integers(3, 20), min_size=n, max_size=n, unique=True)))
    new = np.sort(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n, unique=True)))
    return draw(quarters(n, 2 * pairs)), old.astype(np.int64), new.astype(np.int64), np.array([1.0, 0.25])


_MOVE = Exercise(
    id="cache.move",
    number="11.3",
    chapter="11_decoding_with_a_cache",
    title="Move keys that were turned",
    minutes=12,
    difficulty=2,
    kinds=("cache",),
    function="move",
    reference=_move,
    inputs=_moves(),
    edges={
        "two sinks and three late tokens": (
            np.cos(np.arange(20.0)).reshape(5, 4),
            np.array([0, 1, 96, 97, 98]),
            np.arange(5),
            np.array([1.0, 0.01]),
        ),
        "an unsorted cache (a ring)": (
            np.cos(np.arange(12.0)).reshape(3, 4),
            np.array([9, 7, 8]),
            np.array([2, 0, 1]),
            np.array([1.0, 0.01]),
        ),
    },
    properties=(
        Property("there and back is where it was", lambda f, k, old, new, t: (f(f(k, old, new, t), new, old, t), k)),
        Property(
            "an unturned key, turned at new, is what comes out",
            lambda f, k, old, new, t: (f(_turn(k, old, t), old, new, t), _turn(k, new, t)),
        ),
    ),
    mistakes=(
        Mistake(
            _turned_again,
            "The keys are turned by their new positions, on top of the old turn. They end at old + new.",
            "for old = new nothing should change. Does it?",
        ),
        Mistake(
            _moved_backwards,
            "The keys are turned by old − new: the wrong way.",
            "R(a) R(old) = R(new). Which a?",
        ),
        Mistake(
            _only_turned_back,
            "The old turn is undone, but the new one is missing.",
            "where are the keys now? At position 0, all of them.",
        ),
        Mistake(
            _sum_of_both,
            "The keys are turned by old + new. Rotations add up, so the difference is needed.",
            "R(a) R(old) = R(new). Which a?",
        ),
        Mistake(
            _one_shift,
            "All keys are moved by the shift of the last one. Sinks stay and late tokens move: each key has its own.",
            "print new − old.",
        ),
        Mistake(
            _first_pair_only,
            "All pairs turn at the speed of the first. Pair g turns by (new − old) · θ_g.",
            "print theta: how many numbers are there?",
        ),
        Mistake(
            _newest_forgotten,
            "All keys are moved but the newest, which stays at its old position.",
            "is there a slice that ends one too early?",
        ),
        Mistake(
            _half_layout,
            "Channels g and g + d/2 are taken for a pair. These keys were turned in the interleaved layout: "
            "2g and 2g + 1.",
            "which channels belong to pair 0?",
        ),
        Mistake(
            _not_moved,
            "The keys are returned as they were.",
            "what changes when a token at 97 is called token 3?",
        ),
        Mistake(
            _numbered_by_itself,
            "The keys go to positions 0, 1, 2, … in the order of the cache. Asked for are those in new.",
            "is new used at all?",
        ),
    ),
    alternatives=(_move_complex, _move_in_two_turns),
)

# --- 11.4 is this a bug?


def _lost(new: int, total: int) -> Any:
    p = np.arange(total)
    right = causal(p[total - new :], p)[0]  # positions of the queries: the last ones
    return right, right.sum(axis=1) - np.tri(new, total, dtype=bool).sum(axis=1)


def _top_left(new: int, total: int) -> Any:
    mask = np.tri(new, total, dtype=bool)
    return mask, np.full(new, total - new)


def _documented(new: int, total: int) -> Any:
    return np.tri(new, total, dtype=bool), np.zeros(new, dtype=np.int64)


def _nothing_lost(new: int, total: int) -> Any:
    return _lost(new, total)[0], np.zeros(new, dtype=np.int64)


def _strict(new: int, total: int) -> Any:
    mask = np.tri(new, total, total - new - 1, dtype=bool)
    return mask, mask.sum(axis=1) - np.tri(new, total, dtype=bool).sum(axis=1)


def _one_too_many(new: int, total: int) -> Any:
    mask = np.tri(new, total, total - new + 1, dtype=bool)
    return mask, mask.sum(axis=1) - np.tri(new, total, dtype=bool).sum(axis=1)


def _all_seen(new: int, total: int) -> Any:
    mask = np.ones((new, total), dtype=bool)
    return mask, total - np.arange(1, new + 1)


def _hidden_marked(new: int, total: int) -> Any:
    mask, lost = _lost(new, total)
    return ~mask, lost


def _seen_counted(new: int, total: int) -> Any:
    mask, _ = _lost(new, total)
    return mask, mask.sum(axis=1)


def _seen_top_left_counted(new: int, total: int) -> Any:
    return _lost(new, total)[0], np.arange(1, new + 1)


def _sign_of_lost(new: int, total: int) -> Any:
    mask, lost = _lost(new, total)
    return mask, -lost


def _lost_loops(new: int, total: int) -> Any:
    mask, lost = np.zeros((new, total), dtype=bool), np.zeros(new, dtype=np.int64)
    for i in range(new):
        for n in range(total):
            mask[i, n] = n <= total - new + i
            lost[i] += mask[i, n] and n > i
    return mask, lost


def _lost_cut(new: int, total: int) -> Any:
    return np.tri(total, dtype=bool)[-new:], np.full(new, total - new, dtype=np.int64)


@st.composite
def _chunks(draw: Any) -> Any:
    new = draw(st.integers(1, 12))
    return new, new + draw(st.integers(0, 40))


_CORNER = Exercise(
    id="cache.corner",
    number="11.4",
    chapter="11_decoding_with_a_cache",
    title="Is this a bug? A mask in the wrong corner",
    minutes=12,
    difficulty=3,
    kinds=("bug", "cache"),
    function="lost",
    reference=_lost,
    inputs=_chunks(),
    edges={"one new token": (1, 6), "a chunk": (3, 9), "no cache": (4, 4)},
    properties=(
        Property("the last query sees everything", lambda f, new, total: (f(new, total)[0][-1], np.ones(total, bool))),
        Property(
            "without a cache nothing is lost", lambda f, new, total: (f(new, new)[1], np.zeros(new, dtype=np.int64))
        ),
    ),
    mistakes=(
        Mistake(
            _top_left,
            "The mask is the one that the report complains of: row i sees keys 0 … i. The counts are right.",
            "with one new token, which keys must it see?",
        ),
        Mistake(
            _documented,
            "This is the documented mask, and no key is counted as lost. The new tokens are the last of the text, so "
            "they may see what is in the cache.",
            "write down the positions of the new tokens for new = 1, total = 6.",
        ),
        Mistake(
            _nothing_lost,
            "The mask is right, but no key is counted as lost.",
            "compare, row by row, with np.tri(new, total).",
        ),
        Mistake(
            _strict,
            "No query sees its own key. The mask ends one too early.",
            "should the last query see the last key?",
        ),
        Mistake(
            _one_too_many,
            "Each query sees one key of the future.",
            "without a cache, does the first query see one key or two?",
        ),
        Mistake(
            _all_seen,
            "All new tokens see all keys. That is right for one new token; in a chunk the early ones would "
            "see later ones.",
            "what may the first of three new tokens see?",
        ),
        Mistake(
            _hidden_marked,
            "The mask is True where a key is hidden. Here True means that it is seen.",
            "with one new token, is anything hidden?",
        ),
        Mistake(
            _seen_counted,
            "The mask is right. The counts are the keys that each query should see, not those it loses.",
            "subtract what the top-left mask lets it see.",
        ),
        Mistake(
            _seen_top_left_counted,
            "The mask is right. The counts are the keys that the top-left mask leaves, not those it takes away.",
            "subtract them from what the query should see.",
        ),
        Mistake(
            _sign_of_lost,
            "The counts have the wrong sign: keys lost are the right number minus the top-left number.",
            "can a number of keys be negative?",
        ),
    ),
    alternatives=(_lost_loops, _lost_cut),
)

# --- 11.5 bytes of a cache


def _bytes(layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    number = np.zeros((2, kv_heads, head_dim), dtype=np.float16).nbytes  # one token in one layer
    return number * sum(min(tokens, window) if n < windowed else tokens for n in range(layers))


def _bytes_with(
    layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int, **other: Any
) -> int:
    slots = other.get("slots", (layers - windowed) * tokens + windowed * min(window, tokens))
    return int(other.get("both", 2) * other.get("width", 2) * slots * other.get("counted", kv_heads) * head_dim)


def _query_heads(layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    return _bytes_with(layers, windowed, window, heads, heads, head_dim, tokens)


def _keys_only(layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens, both=1)


def _bits(layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens, width=16)


def _float32(layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens, width=4)


def _no_windows(layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens, slots=layers * tokens)


def _all_windowed(
    layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int
) -> int:
    slots = layers * min(window, tokens)
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens, slots=slots)


def _full_windows(
    layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int
) -> int:
    slots = (layers - windowed) * tokens + windowed * window
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens, slots=slots)


def _one_layer(layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens, slots=tokens)


def _windows_forgotten(
    layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int
) -> int:
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens, slots=(layers - windowed) * tokens)


def _no_heads(layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens, counted=1)


def _bytes_formula(
    layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int
) -> int:
    return _bytes_with(layers, windowed, window, heads, kv_heads, head_dim, tokens)


def _bytes_loops(layers: int, windowed: int, window: int, heads: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    total = 0
    for layer in range(layers):
        for t in range(tokens):
            if layer < layers - windowed or t >= tokens - window:
                total += 4 * kv_heads * head_dim
    return total


@st.composite
def _models(draw: Any) -> Any:
    layers = draw(st.integers(2, 6))
    kv_heads = draw(sizes(2, 3))
    return (
        layers, draw(st.integers(0, layers - 1)), draw(sizes(4, 16)), kv_heads * draw(sizes(2, 4)), kv_heads,
        draw(sizes(8, 12)), draw(st.integers(1, 40)),
    )  # fmt: skip


_BYTES = Exercise(
    id="cache.memory",
    number="11.5",
    chapter="11_decoding_with_a_cache",
    title="The bytes of a cache",
    minutes=10,
    difficulty=2,
    function="cache_bytes",
    reference=_bytes,
    inputs=_models(),
    edges={
        "32 layers, no window": (32, 0, 4096, 32, 8, 128, 8192),
        "half of the layers windowed": (8, 4, 16, 8, 2, 64, 2000),
        "a text shorter than the window": (8, 4, 16, 8, 2, 64, 10),
    },
    properties=(
        Property(
            "query heads do not count",
            lambda f, layers, windowed, window, heads, *rest: (
                f(layers, windowed, window, 3 * heads, *rest),
                f(layers, windowed, window, heads, *rest),
            ),
        ),
        Property(
            "twice the key heads, twice the bytes",
            lambda f, layers, windowed, window, heads, kv, *rest: (
                f(layers, windowed, window, heads, 2 * kv, *rest),
                2 * f(layers, windowed, window, heads, kv, *rest),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _query_heads,
            "The heads of the queries are counted. Queries are not kept; keys and values have kv_heads.",
            "what does the cache hold for a head that shares its keys?",
        ),
        Mistake(
            _keys_only,
            "This is half of it. Keys *and* values are kept, and a number in bfloat16 takes 2 bytes.",
            "which of the two factors of 2 is missing?",
        ),
        Mistake(
            _bits,
            "These are bits. Asked for are bytes.",
            "how many bytes are 16 bits?",
        ),
        Mistake(
            _float32,
            "Four bytes a number are counted, as for float32. bfloat16 has 16 bits.",
            "how many bytes are 16 bits?",
        ),
        Mistake(
            _no_windows,
            "All layers keep the whole text. A windowed layer keeps its window only.",
            "what does a windowed layer hold after 1000 tokens?",
        ),
        Mistake(
            _all_windowed,
            "All layers keep a window. Only `windowed` of them have one.",
            "set windowed to 0: does the window still matter?",
        ),
        Mistake(
            _full_windows,
            "A windowed layer is counted with a full window even if the text is shorter.",
            "how many tokens are there to keep after the first?",
        ),
        Mistake(
            _one_layer,
            "This is one layer without a window. Each layer has keys and values of its own.",
            "what are `layers` and `windowed` for?",
        ),
        Mistake(
            _windows_forgotten,
            "The windowed layers are not counted at all. They keep up to `window` tokens.",
            "what does a windowed layer hold after 1000 tokens?",
        ),
        Mistake(
            _no_heads,
            "One head is counted. There are kv_heads of keys, and as many of values.",
            "which shape has the array of keys?",
        ),
    ),
    alternatives=(_bytes_formula, _bytes_loops),
)

# --- 11.6 a cache of fixed size, in PyTorch


def _use_cache(cache: "Any", k: "Any", v: "Any", real: "Any", sizes: "Any") -> "Any":
    """The whole text in chunks: room at the end, positions of all tokens, their masks below one another."""
    import torch

    batch, heads, seq, head_dim = k.shape
    kv_cache, start, positions, masks = cache(batch, heads, seq + 2, head_dim), 0, [], []
    for size in sizes.tolist():
        s = slice(start, start + size)
        keys, values, p, mask = kv_cache(k[:, :, s], v[:, :, s], real[:, s])
        positions.append(p.clone())
        masks.append(mask.clone())
        start += size
    return keys, values, torch.cat(positions, 1), torch.cat(masks, 2)


def _filled(k: Any, v: Any, real: Any, sizes: Any) -> Any:
    batch, heads, seq, head_dim = k.shape
    room = np.zeros((2, batch, heads, seq + 2, head_dim), dtype=np.float32)
    room[:, :, :, :seq] = k, v
    p, mask = np.zeros((batch, seq), dtype=np.int64), np.zeros((batch, 1, seq, seq + 2), dtype=bool)
    for b in range(batch):
        for t in range(seq):
            p[b, t] = real[b, :t].sum() if real[b, t] else 0
            mask[b, 0, t, : t + 1] = real[b, : t + 1]
    return room[0], room[1], p, mask


class _Room:
    """A right cache, with a hook for each thing that goes wrong."""

    def __init__(self, batch: int, heads: int, slots: int, head_dim: int) -> None:
        import torch

        self.torch, self.length, self.tokens = torch, 0, 0
        self.keys, self.values = torch.zeros(2, batch, heads, slots, head_dim)
        self.real = torch.zeros(batch, slots, dtype=torch.bool)

    def __call__(self, k: Any, v: Any, real: Any) -> Any:
        start = self.start()
        end = start + k.shape[2]
        self.write(k, v, start, end)
        self.real[:, start:end] = real
        self.length, self.tokens = self.after(end, k.shape[2]), self.tokens + k.shape[2]
        slot = self.torch.arange(self.keys.shape[2])
        at = slot[start:end]
        mask = self.seen(slot, at, start)[None] & self.hidden()[:, None]
        return *self.returned(end), self.positions(real, start, end), mask[:, None]

    def start(self) -> int:
        return self.length

    def write(self, k: Any, v: Any, start: int, end: int) -> None:
        self.keys[:, :, start:end], self.values[:, :, start:end] = k, v

    def after(self, end: int, new: int) -> int:
        return end

    def seen(self, slot: Any, at: Any, start: int) -> Any:
        return slot <= at[:, None]

    def hidden(self) -> Any:
        return self.real

    def positions(self, real: Any, start: int, end: int) -> Any:
        return ((self.real.cumsum(1) - 1) * self.real)[:, start:end]

    def returned(self, end: int) -> Any:
        return self.keys, self.values


class _WrittenAtZero(_Room):
    def start(self) -> int:
        return 0


class _LastChunkOnly(_Room):
    def after(self, end: int, new: int) -> int:
        return new


class _OneToken(_Room):
    def after(self, end: int, new: int) -> int:
        return end - new + 1


class _KeysTwice(_Room):
    def write(self, k: Any, v: Any, start: int, end: int) -> None:
        super().write(k, k, start, end)


class _ColumnNumbers(_Room):
    def positions(self, real: Any, start: int, end: int) -> Any:
        return self.torch.arange(start, end) * real


class _EachChunkFromZero(_Room):
    def positions(self, real: Any, start: int, end: int) -> Any:
        return (real.cumsum(1) - 1) * real


class _PaddingMinusOne(_Room):
    def positions(self, real: Any, start: int, end: int) -> Any:
        return (self.real.cumsum(1) - 1)[:, start:end]


class _CountedFromOne(_Room):
    def positions(self, real: Any, start: int, end: int) -> Any:
        return (self.real.cumsum(1) * self.real)[:, start:end]


class _OldTokensHidden(_Room):
    def write(self, k: Any, v: Any, start: int, end: int) -> None:
        super().write(k, v, start, end)
        self.real[:] = False


class _FromTop(_Room):
    def seen(self, slot: Any, at: Any, start: int) -> Any:
        return slot <= at[:, None] - start


class _NoMask(_Room):
    def seen(self, slot: Any, at: Any, start: int) -> Any:
        return self.torch.ones(len(at), len(slot), dtype=self.torch.bool)


class _NotItself(_Room):
    def seen(self, slot: Any, at: Any, start: int) -> Any:
        return slot < at[:, None]


class _PaddingSeen(_Room):
    def hidden(self) -> Any:
        return self.torch.ones_like(self.real)


class _HiddenMarked(_Room):
    def __call__(self, k: Any, v: Any, real: Any) -> Any:
        *rest, mask = super().__call__(k, v, real)
        return *rest, ~mask


class _SlotsAgainstPositions(_Room):
    def __call__(self, k: Any, v: Any, real: Any) -> Any:
        keys, values, p, _ = super().__call__(k, v, real)
        slot = self.torch.arange(keys.shape[2])
        return keys, values, p, (slot <= p[..., None])[:, None] & self.real[:, None, None]


class _PartInUse(_Room):
    def returned(self, end: int) -> Any:
        return self.keys[:, :, :end], self.values[:, :, :end]


class _Concatenating:
    """Chunks in lists; room and masks made from them at each call."""

    def __init__(self, batch: int, heads: int, slots: int, head_dim: int) -> None:
        self.slots, self.chunks = slots, []  # type: ignore[var-annotated]

    def __call__(self, k: Any, v: Any, real: Any) -> Any:
        import torch

        self.chunks.append((k, v, real))
        keys, values, all_real = (torch.cat(x, -2 if x[0].ndim == 4 else 1) for x in zip(*self.chunks, strict=True))
        total, new = keys.shape[2], k.shape[2]
        padding = all_real.int().argmax(1, keepdim=True) if all_real.any() else total  # on the left only
        p = (torch.arange(total - new, total) - padding).clamp(min=0)
        keys, values = (torch.nn.functional.pad(x, (0, 0, 0, self.slots - total)) for x in (keys, values))
        seen = torch.ones(new, self.slots, dtype=torch.bool).tril(total - new)
        real_slots = torch.nn.functional.pad(all_real, (0, self.slots - total))
        return keys, values, p * real, (seen * real_slots[:, None])[:, None]


class _TokenByToken:
    """Loops, and an index for each token."""

    def __init__(self, batch: int, heads: int, slots: int, head_dim: int) -> None:
        import torch

        self.k, self.v = (torch.zeros(batch, heads, slots, head_dim) for _ in "kv")
        self.slot_of: list[list[int]] = [[] for _ in range(batch)]  # slots of the real tokens of each row
        self.used = 0

    def __call__(self, k: Any, v: Any, real: Any) -> Any:
        import torch

        batch, _, new, _ = k.shape
        p = torch.zeros(batch, new, dtype=torch.int64)
        mask = torch.zeros(batch, 1, new, self.k.shape[2], dtype=torch.bool)
        for t in range(new):
            at = torch.tensor([self.used])
            self.k.index_copy_(2, at, k[:, :, t : t + 1])
            self.v.index_copy_(2, at, v[:, :, t : t + 1])
            for b in range(batch):
                if real[b, t]:
                    p[b, t] = len(self.slot_of[b])
                    self.slot_of[b].append(self.used)
                mask[b, 0, t, self.slot_of[b]] = True
            self.used += 1
        return self.k, self.v, p, mask


@st.composite
def _padded_chunks(draw: Any) -> Any:
    sizes_ = [draw(st.integers(2, 3)), *draw(st.lists(st.integers(1, 2), min_size=2, max_size=3))]
    seq, batch, heads, head_dim = sum(sizes_), draw(sizes(2, 3)), draw(sizes(1, 2)), 2
    padding = [draw(st.integers(0, seq - 2)) for _ in range(batch)]
    real = np.arange(seq) >= np.array(padding)[:, None]
    k, v = (draw(quarters(batch, heads, seq, head_dim)).astype(np.float32) for _ in "kv")
    return k, v, real, np.array(sizes_, dtype=np.int64)


def _cache_edge(padding: list[int], chunks: list[int]) -> Any:
    seq = sum(chunks)
    k, v = np.cos(np.arange(2.0 * len(padding) * 3 * seq * 4)).astype(np.float32).reshape(2, len(padding), 3, seq, 4)
    return k, v, np.arange(seq) >= np.array(padding)[:, None], np.array(chunks)


_FIXED = Exercise(
    id="cache.fixed",
    number="11.6",
    chapter="11_decoding_with_a_cache",
    title="A cache of fixed size",
    minutes=25,
    difficulty=3,
    function="KVCache",
    reference=_filled,
    inputs=_padded_chunks(),
    edges={
        "a prompt, then three tokens": _cache_edge([0, 2], [4, 1, 1, 1]),
        "chunks of several tokens": _cache_edge([3, 1, 0], [2, 3, 2]),
    },
    properties=(
        Property(
            "chunks or all at once, the result is the same",
            lambda f, k, v, real, sizes: (f(k, v, real, sizes), f(k, v, real, np.array([sizes.sum()]))),
        ),
        Property(
            "a row without padding has positions 0, 1, 2, …",
            lambda f, k, v, real, sizes: (
                f(k, v, np.ones_like(real), sizes)[2],
                np.tile(np.arange(real.shape[1]), (len(real), 1)),
            ),
        ),
        Property(
            "as many keys are seen as there are real tokens so far",
            lambda f, k, v, real, sizes: (f(k, v, real, sizes)[3].sum(-1)[:, 0], real.cumsum(1)),
        ),
    ),
    mistakes=(
        Mistake(
            _WrittenAtZero,
            "Each chunk is written into the first slots, over what was there. A chunk belongs behind the tokens that "
            "are in the cache.",
            "keep the number of tokens so far in the module. Where does the second chunk begin?",
        ),
        Mistake(
            _LastChunkOnly,
            "The number of tokens is set to the size of the last chunk. The second chunk lands in the right place, the "
            "third does not.",
            "add the size of the chunk to the number of tokens before it.",
        ),
        Mistake(
            _OneToken,
            "The number of tokens grows by one at each call. A call may bring several.",
            "how many tokens are there after a prompt of four?",
        ),
        Mistake(
            _KeysTwice,
            "Keys are written into the room for values too.",
            "is v used at all?",
        ),
        Mistake(
            _ColumnNumbers,
            "The positions of real tokens are slot numbers. A row that is padded on the left begins at 0 with its "
            "first real token.",
            "how many real tokens of its row stand before a token?",
        ),
        Mistake(
            _EachChunkFromZero,
            "Positions begin again at 0 in each chunk. They count all real tokens of the row so far.",
            "keep in the module which slots hold real tokens, and count over all of them.",
        ),
        Mistake(
            _PaddingMinusOne,
            "Real tokens are right. Padding has −1, which as an index is a table's last row. Asked for is 0.",
            "multiply by real, or use clamp.",
        ),
        Mistake(
            _CountedFromOne,
            "Real tokens are counted from 1. Positions begin at 0.",
            "how many real tokens come before the first one?",
        ),
        Mistake(
            _OldTokensHidden,
            "The module remembers which tokens of the last chunk are real, and not those of earlier ones: they are "
            "neither counted nor seen.",
            "keep one entry for each slot, and write each chunk's behind the others.",
        ),
        Mistake(
            _FromTop,
            "The triangle of the mask starts in the top-left corner: in each chunk the first token sees slot 0 only.",
            "compare slots with the slots of the new tokens, not with their number in the chunk.",
        ),
        Mistake(
            _NoMask,
            "A token of a chunk sees the later ones of the same chunk.",
            "with a chunk of three, which slots may the first of them see?",
        ),
        Mistake(
            _NotItself,
            "No token sees itself.",
            "which slots does the first token of a row without padding see?",
        ),
        Mistake(
            _PaddingSeen,
            "The mask is causal, but lets tokens see padding.",
            "which slots hold padding? The module must remember it: a later call does not bring it again.",
        ),
        Mistake(
            _HiddenMarked,
            "The mask is True where a key is hidden. Here True means that it is seen.",
            "which entry has a slot that is not used yet?",
        ),
        Mistake(
            _SlotsAgainstPositions,
            "Slots are compared with positions. In a row with padding, slot 3 may hold position 1, so that a token is "
            "hidden from itself.",
            "compare slots with slots.",
        ),
        Mistake(
            _PartInUse,
            "Only the slots in use are returned, so that the shape grows. Asked for are all slots; the mask hides the "
            "unused ones.",
            "return the whole room.",
        ),
    ),
    alternatives=(_Concatenating, _TokenByToken),
    kinds=("torch", "cache"),
    use=_use_cache,
    asks=("batch", "heads", "slots", "head_dim"),
)

# --- 11.7 sinks and the latest tokens, in PyTorch


def _use_sinks(cache: "Any", k: "Any", v: "Any", sinks: int, size: int, theta: "Any") -> "Any":
    """One token after the other; the keys and values that are in the cache in the end."""
    sink_cache = cache(sinks, size, theta)
    for t in range(k.shape[1]):
        keys, values = sink_cache(k[:, t], v[:, t])
    return keys, values


def _streamed(k: Any, v: Any, sinks: int, size: int, theta: Any) -> Any:
    left = kept_positions(k.shape[1], sinks=sinks, size=size)
    return _turn(k[:, left], np.arange(len(left)), theta), v[:, left]


class _Sinks:
    """A right cache that moves turned keys, with a hook for each thing that goes wrong."""

    def __init__(self, sinks: int, size: int, theta: Any) -> None:
        self.sinks, self.size, self.theta, self.tokens = sinks, size, theta, 0
        self.k: Any = None
        self.v: Any = None

    def __call__(self, k: Any, v: Any) -> Any:
        import torch

        self.torch = torch
        if self.k is None:
            self.k, self.v = k[:, None][:, :0], v[:, None][:, :0]
        if self.full():
            self.k, self.v = self.moved(self.without(self.k)), self.values_without(self.v)
        place = self.place(self.k.shape[1])
        self.k = torch.cat([self.k, self.turn(k[:, None], torch.tensor([place]))], 1)
        self.v = torch.cat([self.v, v[:, None]], 1)
        self.tokens += 1
        return self.k, self.v

    def full(self) -> bool:
        return bool(self.k.shape[1] == self.sinks + self.size)

    def without(self, x: Any) -> Any:
        return self.torch.cat([x[:, : self.sinks], x[:, self.sinks + 1 :]], 1)

    def values_without(self, v: Any) -> Any:
        return self.without(v)

    def moved(self, k: Any) -> Any:
        late = self.turn(k[:, self.sinks :], self.shifts(k.shape[1])[self.sinks :])
        return self.torch.cat([k[:, : self.sinks], late], 1)

    def shifts(self, n: int) -> Any:
        return self.torch.full((n,), -1)

    def place(self, n: int) -> int:
        return n

    def turn(self, x: Any, positions: Any) -> Any:
        angle = positions[:, None] * self.theta
        c, s = angle.cos(), angle.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return self.torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)


class _PlaceInText(_Sinks):
    def place(self, n: int) -> int:
        return self.tokens


class _KeysNotMoved(_Sinks):
    def moved(self, k: Any) -> Any:
        return k


class _TruePositions(_Sinks):
    def moved(self, k: Any) -> Any:
        return k

    def place(self, n: int) -> int:
        return self.tokens


class _SinksMovedToo(_Sinks):
    def moved(self, k: Any) -> Any:
        return self.turn(k, self.shifts(k.shape[1]))


class _MovedForward(_Sinks):
    def shifts(self, n: int) -> Any:
        return self.torch.full((n,), 1)


class _TurnedAgain(_Sinks):
    def shifts(self, n: int) -> Any:
        return self.torch.arange(n)


class _NoSinks(_Sinks):
    def without(self, x: Any) -> Any:
        return x[:, 1:]

    def moved(self, k: Any) -> Any:
        return self.turn(k, self.shifts(k.shape[1]))


class _LatestEvicted(_Sinks):
    def without(self, x: Any) -> Any:
        return x[:, :-1]

    def moved(self, k: Any) -> Any:
        return k


class _OldestValueEvicted(_Sinks):
    def values_without(self, v: Any) -> Any:
        return v[:, 1:]


class _OneTooFew(_Sinks):
    def full(self) -> bool:
        return bool(self.k.shape[1] == self.sinks + self.size - 1)


class _OneTooMany(_Sinks):
    def full(self) -> bool:
        return bool(self.k.shape[1] == self.sinks + self.size + 1)


class _SinksNotCounted(_Sinks):
    def full(self) -> bool:
        return bool(self.k.shape[1] == max(self.size, self.sinks + 1))


class _HalfLayout(_Sinks):
    def turn(self, x: Any, positions: Any) -> Any:
        angle = positions[:, None] * self.theta
        c, s = angle.cos(), angle.sin()
        a, b = x.chunk(2, -1)
        return self.torch.cat([a * c - b * s, b * c + a * s], -1)


class _ValuesTurned(_Sinks):
    def __call__(self, k: Any, v: Any) -> Any:
        keys, values = super().__call__(k, v)
        return keys, self.turn(values, self.torch.arange(values.shape[1]))


class _KeptUnturned:
    """Unturned keys in lists; all are turned at each step."""

    def __init__(self, sinks: int, size: int, theta: Any) -> None:
        self.sinks, self.size, self.theta = sinks, size, theta
        self.pairs: list[Any] = []

    def __call__(self, k: Any, v: Any) -> Any:
        import torch

        self.pairs.append((k, v))
        if len(self.pairs) > self.sinks + self.size:
            del self.pairs[self.sinks]
        keys, values = (torch.stack(x, 1) for x in zip(*self.pairs, strict=True))
        z = torch.complex(keys[..., 0::2].contiguous(), keys[..., 1::2].contiguous())
        angle = torch.arange(len(self.pairs))[:, None] * self.theta
        return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2), values


class _Ring:
    """Room made once: the oldest of the late slots is overwritten, and slots are put in order when they are read."""

    def __init__(self, sinks: int, size: int, theta: Any) -> None:
        self.sinks, self.size, self.theta, self.t = sinks, size, theta, 0
        self.k: Any = None
        self.v: Any = None

    def __call__(self, k: Any, v: Any) -> Any:
        import torch

        room = self.sinks + self.size
        if self.k is None:
            self.k, self.v = (x.new_zeros(x.shape[0], room, x.shape[1]) for x in (k, v))
        at = self.t if self.t < self.sinks else self.sinks + (self.t - self.sinks) % self.size
        self.k[:, at], self.v[:, at] = k, v
        self.t += 1
        if self.t <= room:
            order = torch.arange(self.t)
        else:
            late = (torch.arange(self.size) + self.t - self.sinks) % self.size
            order = torch.cat([torch.arange(self.sinks), self.sinks + late])
        angle = torch.arange(len(order))[:, None] * self.theta
        pairs = self.k[:, order].reshape(k.shape[0], len(order), -1, 2)  # (heads, n, d/2, 2)
        c, s = angle.cos(), angle.sin()
        R = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)  # (n, d/2, 2, 2)
        return torch.einsum("ngij,hngj->hngi", R, pairs).flatten(2), self.v[:, order]


@st.composite
def _streams(draw: Any) -> Any:
    sinks, size, pairs, heads = draw(st.integers(1, 3)), draw(st.integers(2, 4)), 2, draw(sizes(1, 2))
    seq = draw(st.integers(1, sinks + size + 6))
    k, v = (draw(quarters(heads, seq, 2 * pairs)) for _ in "kv")
    return k, v, sinks, size, np.array([1.0, 0.25])


def _stream_edge(seq: int, sinks: int, size: int) -> Any:
    k, v = np.cos(np.arange(2.0 * 3 * seq * 4)).reshape(2, 3, seq, 4)
    return k, v, sinks, size, np.array([1.0, 0.01])


_SINKS = Exercise(
    id="cache.sinks",
    number="11.7",
    chapter="11_decoding_with_a_cache",
    title="A cache that forgets",
    minutes=25,
    difficulty=4,
    function="SinkCache",
    reference=_streamed,
    inputs=_streams(),
    edges={
        "two sinks, nine tokens": _stream_edge(9, 2, 3),
        "four sinks, a long text": _stream_edge(60, 4, 8),
        "a text that fits": _stream_edge(4, 2, 3),
        "one token more than fits": _stream_edge(6, 2, 3),
        "a window of one": _stream_edge(6, 2, 1),
    },
    properties=(
        Property(
            "the cache holds sinks + size tokens at most",
            lambda f, k, v, sinks, size, theta: (
                f(k, v, sinks, size, theta)[0].shape[1],
                min(k.shape[1], sinks + size),
            ),
        ),
        Property(
            "the first and the last value are those of the text",
            lambda f, k, v, *rest: (f(k, v, *rest)[1][:, [0, -1]], v[:, [0, -1]]),
        ),
        Property(
            "a text with the same keys everywhere has keys turned at 0, 1, 2, …",
            lambda f, k, v, sinks, size, theta: (
                f(np.repeat(k[:, :1], k.shape[1], 1), v, sinks, size, theta)[0],
                _turn(
                    np.repeat(k[:, :1], min(k.shape[1], sinks + size), 1),
                    np.arange(min(k.shape[1], sinks + size)),
                    theta,
                ),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _TruePositions,
            "All keys keep the positions of the text. That is a cache too, but here tokens are numbered within the "
            "cache.",
            "after nine tokens with room for five, which is the largest position?",
        ),
        Mistake(
            _PlaceInText,
            "The kept keys are moved, but the new one is turned at its number in the text, far outside of the cache.",
            "how many keys are in the cache when the new one comes?",
        ),
        Mistake(
            _KeysNotMoved,
            "A token is evicted, and the kept keys stay where they were turned, so that two tokens share a position.",
            "which position has the token behind the gap now, and which had it before?",
        ),
        Mistake(
            _SinksMovedToo,
            "The sinks are moved back as well. They stand before the gap and stay.",
            "print the positions of all kept tokens before and after the eviction.",
        ),
        Mistake(
            _MovedForward,
            "The keys behind the gap are turned by +1 position. They come one place nearer to the front.",
            "what is new − old?",
        ),
        Mistake(
            _TurnedAgain,
            "Turned keys are turned by their new positions once more. They end at old + new.",
            "move by the difference, or keep the keys unturned and turn them on the way out.",
        ),
        Mistake(
            _NoSinks,
            "The oldest token is evicted, sink or not. The first `sinks` tokens stay for ever.",
            "which index has the oldest token that is no sink?",
        ),
        Mistake(
            _LatestEvicted,
            "The newest of the kept tokens is evicted. The oldest that is no sink has to go.",
            "which index has the oldest token that is no sink?",
        ),
        Mistake(
            _OldestValueEvicted,
            "The keys are right. Of the values the first is dropped, so that keys and values belong to different "
            "tokens.",
            "drop the same index from both.",
        ),
        Mistake(
            _OneTooFew,
            "A token is evicted when there is still room for one.",
            "how many keys are there at most after a call? Asked for is sinks + size.",
        ),
        Mistake(
            _OneTooMany,
            "One key too many is kept.",
            "evict before you append, or test for more than sinks + size after it.",
        ),
        Mistake(
            _SinksNotCounted,
            "There is room for `size` tokens in all. The sinks come on top: sinks + size.",
            "with two sinks and size 3, how many keys stay?",
        ),
        Mistake(
            _HalfLayout,
            "Channels g and g + d/2 are taken for a pair. Asked for is the interleaved layout: 2g and 2g + 1.",
            "which channels belong to pair 0?",
        ),
        Mistake(
            _ValuesTurned,
            "The values are turned too. Position acts on queries and keys only.",
            "are the values that come out those that went in?",
        ),
    ),
    alternatives=(_KeptUnturned, _Ring),
    kinds=("torch", "cache"),
    use=_use_sinks,
    asks=("sinks", "size", "theta"),
)

EXERCISES = (_POSITIONS, _DECODE, _MOVE, _CORNER, _BYTES, _FIXED, _SINKS)
