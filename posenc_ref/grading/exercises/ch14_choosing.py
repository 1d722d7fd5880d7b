"""Exercises of chapter 14: choosing an encoding."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters

TITLE = "choosing"
CHAPTER = "14_choosing"


# --- 14.1 what a configuration says about RoPE


def _pairs(head_dim: int, partial: float, base: float, context: int) -> Any:
    """By walking over the pairs."""
    rotary_dim = int(head_dim * partial)
    waves = [2 * math.pi * base ** (2 * g / rotary_dim) for g in range(rotary_dim // 2)]
    return rotary_dim, sum(wave > context for wave in waves), waves[-1]


def _pairs_of(rotary_dim: int, waves: Any, context: int) -> Any:
    return rotary_dim, int((waves > context).sum()), float(waves[-1])


def _waves(rotary_dim: int, base: float, over: int | None = None) -> Any:
    return 2 * np.pi * base ** (np.arange(0, rotary_dim, 2) / (over or rotary_dim))


def _not_partial(head_dim: int, partial: float, base: float, context: int) -> Any:
    return _pairs_of(head_dim, _waves(head_dim, base), context)


def _over_head_dim(head_dim: int, partial: float, base: float, context: int) -> Any:
    r = int(head_dim * partial)
    return _pairs_of(r, _waves(r, base, head_dim), context)


def _radians(head_dim: int, partial: float, base: float, context: int) -> Any:
    r = int(head_dim * partial)
    return _pairs_of(r, _waves(r, base) / (2 * np.pi), context)


def _turning(head_dim: int, partial: float, base: float, context: int) -> Any:
    r = int(head_dim * partial)
    waves = _waves(r, base)
    return r, int((waves <= context).sum()), float(waves[-1])


def _channels(head_dim: int, partial: float, base: float, context: int) -> Any:
    r, pairs, wave = _pairs(head_dim, partial, base, context)
    return r, 2 * pairs, wave


def _infinite_end(head_dim: int, partial: float, base: float, context: int) -> Any:
    r, pairs, _ = _pairs(head_dim, partial, base, context)
    return r, pairs, 2 * math.pi * base


def _shortest(head_dim: int, partial: float, base: float, context: int) -> Any:
    r, pairs, _ = _pairs(head_dim, partial, base, context)
    return r, pairs, 2 * math.pi


def _from_one(head_dim: int, partial: float, base: float, context: int) -> Any:
    r = int(head_dim * partial)
    return _pairs_of(r, 2 * np.pi * base ** (np.arange(2, r + 1, 2) / r), context)


def _pairs_array(head_dim: int, partial: float, base: float, context: int) -> Any:
    r = int(head_dim * partial)
    return _pairs_of(r, _waves(r, base), context)


def _pairs_by_logarithm(head_dim: int, partial: float, base: float, context: int) -> Any:
    r = int(head_dim * partial)
    g = np.arange(r // 2)
    ratio = math.exp(2 * math.log(base) / r)  # of neighbouring wavelengths
    turning = 2 * math.pi * ratio ** g.astype(float) <= context
    return r, int(r // 2 - turning.sum()), 2 * math.pi * ratio ** (r // 2 - 1)


_READ = Exercise(
    id="choosing.read",
    number="14.1",
    chapter=CHAPTER,
    title="Read a configuration",
    minutes=8,
    difficulty=2,
    function="rotary_facts",
    reference=_pairs,
    inputs=st.tuples(
        st.sampled_from([16, 32, 64, 80, 128]),
        st.sampled_from([0.25, 0.5, 1.0]),
        st.sampled_from([100.0, 10000.0, 500000.0]),
        st.sampled_from([64, 1000, 2048, 8192]),
    ),
    edges={
        "a partial rotation": (64, 0.5, 10000.0, 2048),
        "a raised base": (128, 1.0, 500000.0, 8192),
        "all pairs turn": (32, 0.25, 100.0, 4096),
    },
    properties=(
        Property(
            "a context longer than the longest wave lets all pairs turn",
            lambda f, d, part, base, n: (f(d, part, base, int(7 * base))[1], 0),
        ),
    ),
    mistakes=(
        Mistake(
            _not_partial,
            "You turn all channels. Only `partial` of the head's channels turn; the rest carry no position.",
            "how many channels of a head of 64 turn when partial is 0.5?",
        ),
        Mistake(
            _over_head_dim,
            "You divide the exponent by head_dim. It runs over the channels that turn: divide by rotary_dim.",
            "the last pair of a partial rotation must be as slow as that of a full one, nearly.",
        ),
        Mistake(
            _radians,
            "You compare base^(2g/d) with the context. That is tokens for one radian; a full turn is 2π radians.",
            "what is the wavelength of pair 0?",
        ),
        Mistake(
            _turning,
            "You count the pairs that do complete a turn. Asked for are those that do not.",
            "with an endless context your count must be 0.",
        ),
        Mistake(_channels, "You count channels. A pair has two.", "how many pairs are there in all?"),
        Mistake(
            _infinite_end,
            "You give 2π · base, where the wavelengths would end with one more pair. The last exponent is "
            "(rotary_dim − 2)/rotary_dim.",
            "write down the exponents for rotary_dim = 4.",
        ),
        Mistake(
            _shortest, "That is the shortest wavelength, of pair 0. Asked for is the longest.", "take the last pair."
        ),
        Mistake(
            _from_one,
            "Your pairs count from 1. They count from 0: the first one turns by a whole radian for each token.",
            "base to the power 0 is 1.",
        ),
    ),
    alternatives=(_pairs_array, _pairs_by_logarithm),
)


# --- 14.2 a factor that does not fit


def _unseen(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    """By the angles themselves: every angle of the longer text, against the arc that training covered."""
    found = []
    for old, new in zip(inv_freq, scaled, strict=True):
        arc = (original - 1) * old
        found.append(bool(arc < 2 * np.pi and (context - 1) * new > arc))
    return np.array(found)


def _unseen_any_pair(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    return (context - 1) * scaled > (original - 1) * inv_freq


def _unseen_slow(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    return (original - 1) * inv_freq < 2 * np.pi


def _unseen_unscaled(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    arc = (original - 1) * inv_freq
    return (arc < 2 * np.pi) & ((context - 1) * inv_freq > arc)


def _unseen_scaled_arc(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    arc = (original - 1) * scaled
    return (arc < 2 * np.pi) & ((context - 1) * scaled > arc)


def _unseen_half_turn(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    arc = (original - 1) * inv_freq
    return (arc < np.pi) & ((context - 1) * scaled > arc)


def _unseen_seen(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    return ~_unseen(inv_freq, scaled, original, context)


def _unseen_turns_later(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    return ((context - 1) * scaled < 2 * np.pi) & ((context - 1) * scaled > (original - 1) * inv_freq)


def _unseen_array(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    arc = (original - 1) * inv_freq
    return (arc < 2 * np.pi) & ((context - 1) * scaled > arc)


def _unseen_by_positions(inv_freq: Any, scaled: Any, original: int, context: int) -> Any:
    """In turns, by the last position alone."""
    old, new = (original - 1) * inv_freq / (2 * np.pi), (context - 1) * scaled / (2 * np.pi)
    return np.where(old >= 1, False, new > old)


@st.composite
def _stretched(draw: Any) -> tuple[Any, ...]:
    d = draw(st.sampled_from([8, 16]))
    base, original = draw(st.sampled_from([(100.0, 64), (10000.0, 512), (10000.0, 2048)]))
    inv_freq = base ** (-np.arange(0, d, 2) / d)
    factor = draw(st.sampled_from([2, 4, 8]))
    slow = inv_freq * original < draw(st.sampled_from([1.0, 6.0, 20.0]))
    return inv_freq, np.where(slow, inv_freq / factor, inv_freq), original, original * draw(st.sampled_from([2, 4, 16]))


def _llama31() -> tuple[Any, ...]:
    from posenc_ref.rotary import Llama3, inv_freq

    way = Llama3(factor=8.0, original_max_position=8192, low_freq_factor=1.0, high_freq_factor=4.0)
    return inv_freq(128, base=500000.0), way.inv_freq(128, base=500000.0)[0], 8192, 131072


_FACTOR = Exercise(
    id="choosing.factor",
    number="14.2",
    chapter=CHAPTER,
    title="Is this a bug? A factor that does not fit",
    minutes=14,
    difficulty=3,
    kinds=("bug",),
    function="unseen",
    reference=_unseen,
    inputs=_stretched(),
    edges={
        "factor 8, context 16 times": _llama31(),
        "factor 8, seven tokens too many": (*_llama31()[:3], 65536),
        "factor 8, just within": (*_llama31()[:3], 65529),
        "no scaling": (np.array([1.0, 0.1, 0.01, 0.001]), np.array([1.0, 0.1, 0.01, 0.001]), 512, 1024),
        "not even the old length": (np.array([1.0, 0.001]), np.array([1.0, 0.001]), 512, 300),
    },
    properties=(
        Property(
            "at the length of the training nothing is new",
            lambda f, old, new, n, m: (f(old, old, n, n).any(), False),
        ),
    ),
    mistakes=(
        Mistake(
            _unseen_any_pair,
            "You compare angles that grow without end. A pair that completed a turn in training has met them all.",
            "is there a new angle for a pair that turned ten times?",
        ),
        Mistake(
            _unseen_slow,
            "You mark every pair without a full turn in training. Scaling may keep it inside the arc that it knows.",
            "how far does the scaled pair turn in the long text?",
        ),
        Mistake(
            _unseen_unscaled,
            "You use the old frequencies in the long text. There the scaled ones turn.",
            "which array belongs to which length?",
        ),
        Mistake(
            _unseen_scaled_arc,
            "You use the scaled frequencies for the training, too. The model was trained with the old ones.",
            "which array belongs to which length?",
        ),
        Mistake(
            _unseen_half_turn,
            "Your full turn is π. It is 2π.",
            "half a turn is not all angles.",
        ),
        Mistake(
            _unseen_seen,
            "This is the opposite: True where all angles were met. Asked for is where new ones come.",
            "at the training length, unscaled, all must be False.",
        ),
        Mistake(
            _unseen_turns_later,
            "You ask whether the pair completes a turn in the long text. What counts is whether it did in training.",
            "a pair that never turned in training and turns now meets new angles all the way.",
        ),
    ),
    alternatives=(_unseen_array, _unseen_by_positions),
)


# --- 14.3 a bias as a row


def _row(bias: Any) -> Any:
    """Diagonal by diagonal, in float64; the queries are the last of the keys' positions."""
    heads, q, k = bias.shape
    row = np.zeros((heads, q + k - 1), dtype=np.float32)
    for h in range(heads):
        for c in range(q + k - 1):  # column minus row is c − (q − 1)
            row[h, c] = bias[h].astype(np.float64).diagonal(c - (q - 1)).mean()
    i, j = np.arange(q)[:, None], np.arange(k)
    fits = np.abs(row[:, j - i + q - 1] - bias).max() <= 1e-4
    return np.array(bool(fits)), row


def _diagonals(bias: Any, reverse: bool = False, first: bool = False) -> Any:
    import torch

    _, q, k = bias.shape
    rows = []
    for c in range(-(q - 1), k):
        d = bias.diagonal(c, 1, 2)
        rows.append(d[:, 0] if first else d.mean(-1))
    row = torch.stack(rows, -1)
    at = torch.arange(k) - torch.arange(q)[:, None] + q - 1
    fits = (row[:, at] - bias).abs().max() <= 1e-4
    return fits, row.flip(-1) if reverse else row


def _row_reversed(bias: Any) -> Any:
    return _diagonals(bias, reverse=True)


def _row_last_query(bias: Any) -> Any:
    import torch

    fits, row = _diagonals(bias)
    _, q, _ = bias.shape
    return fits, torch.cat([bias[:, -1], torch.zeros_like(row[:, : q - 1])], -1)


def _row_first_entries(bias: Any) -> Any:
    return _diagonals(bias, first=True)


def _row_always(bias: Any) -> Any:
    import torch

    return torch.tensor(True), _diagonals(bias)[1]


def _row_exact(bias: Any) -> Any:
    import torch

    _, row = _diagonals(bias)
    _, q, k = bias.shape
    at = torch.arange(k) - torch.arange(q)[:, None] + q - 1
    return (row[:, at] == bias).all(), row


def _row_first_head(bias: Any) -> Any:
    fits, _ = _diagonals(bias[:1])
    return fits, _diagonals(bias)[1]


def _row_anti(bias: Any) -> Any:
    return _diagonals(bias.flip(-1))


def _row_scatter(bias: Any) -> Any:
    import torch

    heads, q, k = bias.shape
    at = (torch.arange(k) - torch.arange(q)[:, None] + q - 1).flatten()
    total = torch.zeros(heads, q + k - 1).index_add_(1, at, bias.flatten(1))
    row = total / torch.bincount(at)
    return (row[:, at] - bias.flatten(1)).abs().max() <= 1e-4, row


def _row_by_diagonals(bias: Any) -> Any:
    return _diagonals(bias)


@st.composite
def _biases(draw: Any) -> tuple[Any]:
    heads, q, k = draw(st.integers(1, 3)), draw(st.integers(2, 4)), draw(st.integers(3, 6))
    if draw(st.booleans()):
        row = draw(quarters(heads, q + k - 1)).astype(np.float32)
        return (row[:, np.arange(k) - np.arange(q)[:, None] + q - 1].copy(),)
    return (draw(quarters(heads, q, k)).astype(np.float32),)


def _bias_edges() -> dict[str, tuple[Any]]:
    rng = np.random.default_rng(0)
    i, j = np.arange(3)[:, None] + 2, np.arange(5)  # the last 3 of 5 tokens
    slopes = np.array([0.5, 0.25])[:, None, None]
    alibi = (-slopes * np.abs(i - j)).astype(np.float32)
    nearly = alibi.copy()
    nearly[1, 2, 0] += 0.01
    nearly[1, 1, 1] -= 0.01
    one_high = np.zeros((1, 4, 4), dtype=np.float32)
    one_high[0, range(4), range(4)] = np.float32(6e-5) * np.array([-1, -1, -1, 3])  # mean 0, the largest error is high
    within, rising = np.zeros((1, 3, 3), dtype=np.float32), np.zeros((1, 5, 5), dtype=np.float32)
    within[0, range(3), range(3)] = [-9e-5, 0, 9e-5]
    rising[0, range(5), range(5)] = 9e-5 * np.arange(5)
    return {
        "ALiBi behind a cache": (alibi,),
        "errors of 0.00009": (within,),
        "a diagonal that rises in small steps": (rising,),
        "one entry too high by 0.00018": (one_high,),
        "errors of 0.00011": (one_high * np.float32(0.11 / 0.18),),
        "one head is off by 0.01 in two places": (nearly,),
        "rounding in the last digits": ((alibi * (1 + 1e-6 * rng.random(alibi.shape))).astype(np.float32),),
        "anything": (rng.normal(size=(2, 3, 4)).astype(np.float32),),
    }


_SQUEEZE = Exercise(
    id="choosing.squeeze",
    number="14.3",
    chapter=CHAPTER,
    title="Squeeze a bias into a row",
    minutes=12,
    difficulty=3,
    kinds=("torch",),
    function="squeeze",
    reference=_row,
    inputs=_biases(),
    edges=_bias_edges(),
    mistakes=(
        Mistake(
            _row_reversed,
            "Your rows run backwards. They begin with the bottom left corner and end with the top right.",
            "key minus query grows from left to right.",
        ),
        Mistake(
            _row_last_query,
            "You take the last query's row and fill up with zeros. The diagonals above it have numbers, too.",
            "which entry of the bias is the top right corner?",
        ),
        Mistake(
            _row_first_entries,
            "You take the first entry of each diagonal. Asked for is its mean, which fits the diagonal best.",
            "try a bias whose diagonals are not constant.",
        ),
        Mistake(
            _row_always,
            "You say that every bias fits. Spread the row over the diagonals again and compare: the largest absolute "
            "difference counts. The mean difference is 0 for every bias.",
            "a random bias must give False.",
        ),
        Mistake(
            _row_exact,
            "You compare with ==. A mean of equal float32 numbers can differ from them in the last digit: allow 1e-4.",
            "print the largest difference.",
        ),
        Mistake(
            _row_first_head,
            "You look at the first head alone. One head that does not fit is enough for False.",
            "take the largest difference over all heads.",
        ),
        Mistake(
            _row_anti,
            "You follow the other diagonals, those with constant m + n. Distance is constant where n − m is.",
            "the main diagonal runs from the top left.",
        ),
    ),
    alternatives=(_row_scatter, _row_by_diagonals),
)

EXERCISES = (_READ, _FACTOR, _SQUEEZE)
