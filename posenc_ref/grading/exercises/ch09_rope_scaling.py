"""Exercises of chapter 09: stretching RoPE."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters, sizes
from posenc_ref.rotary import scaling
from posenc_ref.rotary.rope import inv_freq

TITLE = "stretching RoPE"


# --- 9.1 hands that never come round


def _theta(rotary_dim: int, base: float) -> Any:
    return inv_freq(rotary_dim, base=base)


def _turns(theta: Any, length: float) -> Any:
    return length * theta / (2 * np.pi)


def _unfinished(rotary_dim: int, base: float, length: int) -> int:
    return int(np.sum(_turns(_theta(rotary_dim, base), length) < 1))


def _finished(rotary_dim: int, base: float, length: int) -> int:
    return rotary_dim // 2 - _unfinished(rotary_dim, base, length)


def _one_radian(rotary_dim: int, base: float, length: int) -> int:
    return int(np.sum(length * _theta(rotary_dim, base) < 1))


def _half_a_turn(rotary_dim: int, base: float, length: int) -> int:
    return int(np.sum(_turns(_theta(rotary_dim, base), length) < 0.5))


def _half_exponent(rotary_dim: int, base: float, length: int) -> int:
    theta = base ** (-np.arange(rotary_dim // 2) / rotary_dim)
    return int(np.sum(_turns(theta, length) < 1))


def _channels(rotary_dim: int, base: float, length: int) -> int:
    return 2 * _unfinished(rotary_dim, base, length)


def _one_for_each_channel(rotary_dim: int, base: float, length: int) -> int:
    theta = base ** (-np.arange(rotary_dim) / rotary_dim)
    return int(np.sum(_turns(theta, length) < 1))


def _usual_base(rotary_dim: int, base: float, length: int) -> int:
    return _unfinished(rotary_dim, 10000.0, length)


def _from_one(rotary_dim: int, base: float, length: int) -> int:
    theta = base ** (-2 * np.arange(1, rotary_dim // 2 + 1) / rotary_dim)
    return int(np.sum(_turns(theta, length) < 1))


def _shorter_than_text(rotary_dim: int, base: float, length: int) -> int:
    return int(np.sum(1 / _theta(rotary_dim, base) < length))


def _unfinished_by_logarithm(rotary_dim: int, base: float, length: int) -> int:
    border = rotary_dim / 2 * math.log(length / (2 * math.pi)) / math.log(base)  # pair of exactly one turn
    return rotary_dim // 2 - min(max(math.floor(border) + 1, 0), rotary_dim // 2)


def _unfinished_loop(rotary_dim: int, base: float, length: int) -> int:
    count, wavelength = 0, 2 * math.pi
    for _ in range(rotary_dim // 2):
        count += wavelength > length
        wavelength *= base ** (2 / rotary_dim)
    return count


_BASES = (10000.0, 100.0, 1000.0, 500000.0)


@st.composite
def _heads(draw: Any) -> Any:
    return draw(sizes(8, 4, 16, 64, 128)), draw(st.sampled_from(_BASES)), draw(sizes(64, 1, 7, 100, 1000, 4096, 30000))


_UNFINISHED = Exercise(
    id="scaling.unfinished",
    number="9.1",
    chapter="09_rope_scaling",
    title="Hands that never come round",
    minutes=6,
    difficulty=1,
    function="unfinished",
    reference=_unfinished,
    inputs=_heads(),
    edges={
        "the chapter's head": (128, 10000.0, 4096),
        "a larger base": (128, 500000.0, 8192),
        "a text of one token": (8, 10000.0, 1),
    },
    properties=(
        Property(
            "a longer text never has more of them",
            lambda unfinished, d, base, n: (
                max(unfinished(d, base, n), unfinished(d, base, 10 * n)),
                unfinished(d, base, n),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _finished,
            "These are the pairs that do complete a turn. Asked for are those that do not.",
            "in a text of one token, how many pairs complete a turn?",
        ),
        Mistake(
            _one_radian,
            "This counts pairs that turn by less than one radian. A full turn has 2π radians.",
            "how many tokens does the first pair, of 1 radian a token, need for a turn?",
        ),
        Mistake(
            _half_a_turn,
            "This counts pairs that make less than half a turn. Asked for is a whole one, 2π radians.",
            "compare with 2π, not π.",
        ),
        Mistake(
            _half_exponent,
            "The exponent is −g/d; the frequencies are base^(−2g/d).",
            "for d = 4 and base 10000 the two frequencies are 1 and 0.01.",
        ),
        Mistake(
            _channels,
            "This is twice the right number: channels are counted. Two channels make one pair.",
            "how many pairs has a head of 8 channels?",
        ),
        Mistake(
            _one_for_each_channel,
            "There is one frequency for each channel here, in finer steps. A head of d channels has d/2 pairs.",
            "how many frequencies has your list, and how many pairs are there?",
        ),
        Mistake(
            _usual_base,
            "The base is taken as 10000 whatever was given.",
            "where does your function use the argument `base`?",
        ),
        Mistake(
            _from_one,
            "The pairs are counted from 1. The first pair is g = 0, with a frequency of 1.",
            "what is the largest frequency in your list?",
        ),
        Mistake(
            _shorter_than_text,
            "The comparison is the wrong way round, and 1/θ is a wavelength only up to a factor of 2π.",
            "a pair is unfinished if its wavelength, 2π/θ, is longer than the text.",
        ),
    ),
    alternatives=(_unfinished_by_logarithm, _unfinished_loop),
)


# --- 9.2 the base that slows the last pair by s


def _ntk(rotary_dim: int, base: float, factor: float) -> float:
    return scaling.ntk_base(rotary_dim, factor=factor, base=base)


def _base_times(exponent: Any) -> Any:
    def wrong(rotary_dim: int, base: float, factor: float) -> float:
        return float(base * factor ** exponent(rotary_dim))

    return wrong


_no_exponent = _base_times(lambda d: 1)
_upside_down = _base_times(lambda d: (d - 2) / d)
_in_pairs = _base_times(lambda d: d / (d - 4))
_one_channel = _base_times(lambda d: d / (d - 1))
_smaller = _base_times(lambda d: -d / (d - 2))
_half = _base_times(lambda d: 2 / (d - 2))


def _all_to_the_power(rotary_dim: int, base: float, factor: float) -> float:
    return float((base * factor) ** (rotary_dim / (rotary_dim - 2)))


def _ntk_from_last_pair(rotary_dim: int, base: float, factor: float) -> float:
    power = (rotary_dim - 2) / rotary_dim
    last = base**-power / factor
    return float(last ** (-1 / power))


def _ntk_by_logarithms(rotary_dim: int, base: float, factor: float) -> float:
    return math.exp(math.log(base) + math.log(factor) / (1 - 2 / rotary_dim))


@st.composite
def _stretches(draw: Any) -> Any:
    return (
        draw(sizes(8, 6, 12, 16, 64, 128)),
        draw(st.sampled_from(_BASES)),
        draw(st.sampled_from([2.0, 1.0, 4.0, 1.5])),
    )


_NTK = Exercise(
    id="scaling.ntk_base",
    number="9.2",
    chapter="09_rope_scaling",
    title="A base that slows the last pair by s",
    minutes=8,
    difficulty=2,
    function="ntk_base",
    kinds=("derive",),
    reference=_ntk,
    inputs=_stretches(),
    edges={"a wide head": (128, 10000.0, 8.0), "forty times": (64, 10000.0, 40.0)},
    properties=(
        Property(
            "the last frequency is divided by the factor",
            lambda ntk_base, d, base, s: (
                float(ntk_base(d, base, s) ** (2 / d - 1) * s * base ** (1 - 2 / d)),
                1.0,
            ),
        ),
        Property("a factor of 1 leaves the base", lambda ntk_base, d, base, s: (ntk_base(d, base, 1.0), base)),
    ),
    mistakes=(
        Mistake(
            _no_exponent,
            "The base is multiplied by s itself. Then the last pair is slowed by less than s.",
            "the last pair has g = d/2 − 1. What is base^(−2g/d) divided by there?",
        ),
        Mistake(
            _upside_down,
            "The exponent is upside down: this is s^((d−2)/d); asked for is s^(d/(d−2)).",
            "solve b^(−(d−2)/d) = base^(−(d−2)/d)/s for b: what undoes the power (d−2)/d?",
        ),
        Mistake(
            _in_pairs,
            "The exponent is d/(d−4), as if the last pair were d/2 − 2.",
            "pairs are counted from 0 to d/2 − 1. What is 2g for the last one?",
        ),
        Mistake(
            _one_channel,
            "The exponent is d/(d−1). The last pair has the exponent 2g/d = (d−2)/d.",
            "two channels make a pair: what is 2g for g = d/2 − 1?",
        ),
        Mistake(
            _smaller,
            "The base becomes smaller, so the pairs turn faster. To slow them it must grow.",
            "is base^(−2g/d) larger or smaller for a larger base?",
        ),
        Mistake(
            _half,
            "The exponent is 2/(d−2): that is how much one pair differs from the next, not the exponent of the base.",
            "put your base into base^(−2g/d) for the last pair. By what was it divided?",
        ),
        Mistake(
            _all_to_the_power,
            "The old base is raised to the power d/(d−2) as well. Only s is.",
            "what should come out for a factor of 1?",
        ),
    ),
    alternatives=(_ntk_from_last_pair, _ntk_by_logarithms),
)


# --- 9.3 the ramp with all its conventions


def _parts(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    return scaling.by_parts(rotary_dim, factor=factor, original_max_position=original, base=base)[0]


def _pair(turns: float, rotary_dim: int, base: float, original: float) -> float:
    return rotary_dim / 2 * math.log(original / (2 * math.pi * turns)) / math.log(base)


def _borders(rotary_dim: int, base: float, original: float) -> tuple[float, float]:
    return _pair(32, rotary_dim, base, original), _pair(1, rotary_dim, base, original)


def _mix(stay: Any, rotary_dim: int, base: float, factor: float) -> Any:
    theta = _theta(rotary_dim, base)
    return theta * stay + theta / factor * (1 - stay)


def _ramp(low: float, high: float, rotary_dim: int) -> Any:
    """1 for fast pairs, 0 for slow ones."""
    return 1 - np.clip((np.arange(rotary_dim // 2) - low) / (high - low), 0, 1)


def _rounded_borders(rotary_dim: int, base: float, original: float) -> tuple[float, float]:
    low, high = _borders(rotary_dim, base, original)
    return max(math.floor(low), 0), min(math.ceil(high), rotary_dim - 1)


def _inverted(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    stay = 1 - _ramp(*_rounded_borders(rotary_dim, base, original), rotary_dim)
    return _mix(stay, rotary_dim, base, factor)


def _ends_swapped(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    high, low = _borders(rotary_dim, base, original)
    low, high = max(math.floor(low), 0), min(math.ceil(high), rotary_dim - 1)
    return _mix(_ramp(low, high if high != low else low + 0.001, rotary_dim), rotary_dim, base, factor)


def _not_rounded(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    low, high = _borders(rotary_dim, base, original)
    return _mix(_ramp(max(low, 0), min(high, rotary_dim - 1), rotary_dim), rotary_dim, base, factor)


def _nearest(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    low, high = (round(x) for x in _borders(rotary_dim, base, original))
    low, high = max(low, 0), min(high, rotary_dim - 1)
    return _mix(_ramp(low, max(high, low + 0.001), rotary_dim), rotary_dim, base, factor)


def _in_turns(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    return scaling.by_parts(
        rotary_dim, factor=factor, original_max_position=original, base=base, ramp="rotations"
    )[0]  # fmt: skip


def _ends_with_pairs(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    low, high = _borders(rotary_dim, base, original)
    low, high = max(math.floor(low), 0), min(math.ceil(high), rotary_dim // 2 - 1)
    return _mix(_ramp(low, max(high, low + 0.001), rotary_dim), rotary_dim, base, factor)


def _end_runs_on(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    low, high = _borders(rotary_dim, base, original)
    return _mix(_ramp(max(math.floor(low), 0), math.ceil(high), rotary_dim), rotary_dim, base, factor)


def _below_zero(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    low, high = _borders(rotary_dim, base, original)
    return _mix(_ramp(math.floor(low), min(math.ceil(high), rotary_dim - 1), rotary_dim), rotary_dim, base, factor)


def _in_the_power(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    stay = _ramp(*_rounded_borders(rotary_dim, base, original), rotary_dim)
    return _theta(rotary_dim, base) * factor ** (stay - 1)


def _without_two_pi(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    low, high = _rounded_borders(rotary_dim, base, original * 2 * math.pi)
    return _mix(_ramp(low, high, rotary_dim), rotary_dim, base, factor)


def _not_clipped(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    low, high = _rounded_borders(rotary_dim, base, original)
    return _mix(1 - (np.arange(rotary_dim // 2) - low) / (high - low), rotary_dim, base, factor)


def _parts_loop(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    low = max(math.floor(_pair(32, rotary_dim, base, original)), 0)
    high = min(math.ceil(_pair(1, rotary_dim, base, original)), rotary_dim - 1)
    frequencies = []
    for g in range(rotary_dim // 2):
        theta = base ** (-2 * g / rotary_dim)
        if g <= low:
            frequencies.append(theta)
        elif g >= high:
            frequencies.append(theta / factor)
        else:
            slowed = (g - low) / (high - low)
            frequencies.append((1 - slowed) * theta + slowed * theta / factor)
    return np.array(frequencies)


def _parts_interpolated(rotary_dim: int, base: float, original: int, factor: float) -> Any:
    low, high = _rounded_borders(rotary_dim, base, original)
    share = np.interp(np.arange(rotary_dim // 2), [low, high], [1.0, 1 / factor])
    return share * base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)


@st.composite
def _texts(draw: Any) -> Any:
    factor = draw(st.sampled_from([4.0, 2.0, 8.0, 32.0]))
    return draw(sizes(8, 16, 32)), draw(st.sampled_from(_BASES)), draw(sizes(2048, 64, 256, 8192)), factor


def _many(theta: Any, turns: Any) -> Any:
    return np.where(turns >= 32, theta, 0.0)


def _few(theta: Any, turns: Any) -> Any:
    return np.where(turns <= 1, theta, 0.0)


_PARTS = Exercise(
    id="scaling.by_parts",
    number="9.3",
    chapter="09_rope_scaling",
    title="The ramp with all its conventions",
    minutes=15,
    difficulty=3,
    function="by_parts",
    reference=_parts,
    inputs=_texts(),
    edges={
        "a head of 128": (128, 10000.0, 4096, 16.0),
        "a text so long that every hand turns": (16, 10000.0, 2**20, 4.0),
        "a text so short that none turns 32 times": (16, 10000.0, 64, 4.0),
        "a base so small that g(1) is beyond d − 1": (16, 10.0, 1000, 4.0),
    },
    properties=(
        Property(
            "hands of 32 turns and more stay as they are",
            lambda by_parts, d, base, n, s: (
                _many(by_parts(d, base, n, s), _turns(_theta(d, base), n)),
                _many(_theta(d, base), _turns(_theta(d, base), n)),
            ),
        ),
        Property(
            "hands of one turn and less are divided by the factor",
            lambda by_parts, d, base, n, s: (
                _few(by_parts(d, base, n, s), _turns(_theta(d, base), n)),
                _few(_theta(d, base) / s, _turns(_theta(d, base), n)),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _inverted,
            "The ramp is inverted: fast pairs are slowed, and slow ones stay as they are.",
            "which end needs help in a longer text?",
        ),
        Mistake(
            _ends_swapped,
            "The two ends of the ramp are exchanged: 32 turns belong to the start, and one turn to the end.",
            "which pair has the smaller number, one of 32 turns or one of a single turn?",
        ),
        Mistake(
            _not_rounded,
            "The ends of the ramp are not rounded. The convention takes the floor of one and the ceiling of the other.",
            "print g_lo and g_hi; both should be whole numbers.",
        ),
        Mistake(
            _nearest,
            "Both ends of the ramp are rounded to the nearest number. They are rounded outwards: floor and ceiling.",
            "is your g_lo ever above g(32)?",
        ),
        Mistake(
            _in_turns,
            "This ramp is linear in the turns, as in the paper's text. Asked for is the one of the code: linear in g.",
            "by how much does your γ change from one pair of the ramp to the next? It should be the same each time.",
        ),
        Mistake(
            _ends_with_pairs,
            "The end g_hi is kept at d/2 − 1, the last pair. The convention keeps it at d − 1: it may lie outside.",
            "check an original length of a million tokens.",
        ),
        Mistake(
            _end_runs_on,
            "The end g_hi runs beyond d − 1. The convention keeps it there, although the pairs end at d/2 − 1.",
            "print g_hi for this input, and compare it with d.",
        ),
        Mistake(
            _below_zero,
            "The start g_lo falls below 0 for short texts. It is kept at 0, so that the first pair always stays.",
            "what is g(32) for a text of 64 tokens?",
        ),
        Mistake(
            _in_the_power,
            "The factor is raised to the ramp: that mixes the logarithms. Asked for is a mix of θ and θ/s themselves.",
            "halfway up the ramp the result should be the mean of θ and θ/s.",
        ),
        Mistake(
            _without_two_pi,
            "The borders are taken at 32 and 1 radians. They are turns, of 2π radians each.",
            "put your g(1) into length · θ: it should be 2π.",
        ),
        Mistake(
            _not_clipped,
            "The ramp goes on beyond its ends, below 0 and above 1.",
            "what should γ be for the first and for the last pair?",
        ),
    ),
    alternatives=(_parts_loop, _parts_interpolated),
)


# --- 9.4 YaRN's temperature when part of a head turns


def _c(factor: float) -> float:
    return 0.1 * math.log(factor) + 1


def _logits(q: Any, k: Any, turning: Any, passing: Any, rotary_dim: int) -> Any:
    """Logits whose two parts are multiplied by two numbers."""
    r = rotary_dim
    return (turning * (q[:, :r] @ k[:, :r].T) + passing * (q[:, r:] @ k[:, r:].T)) / math.sqrt(q.shape[1])


def _yarn(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    c = scaling.yarn(8, factor=factor, original_max_position=2048)[1]
    return _logits(q, k, c * c, 1, rotary_dim)


def _c_once(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    return _logits(q, k, _c(factor), 1, rotary_dim)


def _c_four_times(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    return _logits(q, k, _c(factor) ** 4, 1, rotary_dim)


def _all_channels(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    return _logits(q, k, _c(factor) ** 2, _c(factor) ** 2, rotary_dim)


def _flatter(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    return _logits(q, k, _c(factor) ** -2, 1, rotary_dim)


def _decimal(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    return _logits(q, k, (0.1 * math.log10(factor) + 1) ** 2, 1, rotary_dim)


def _no_tenth(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    return _logits(q, k, (math.log(factor) + 1) ** 2, 1, rotary_dim)


def _turning_width(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    return _yarn(q, k, rotary_dim, factor) * math.sqrt(q.shape[1] / rotary_dim)


def _not_divided(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    return _yarn(q, k, rotary_dim, factor) * math.sqrt(q.shape[1])


def _yarn_vectors(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    scale = np.where(np.arange(q.shape[1]) < rotary_dim, 0.1 * np.log(factor) + 1, 1.0)
    return (scale * q) @ (scale * k).T / np.sqrt(q.shape[1])


def _yarn_loops(q: Any, k: Any, rotary_dim: int, factor: float) -> Any:
    c = 1 + math.log(factor) / 10
    logits = np.zeros((len(q), len(k)))
    for m in range(len(q)):
        for n in range(len(k)):
            for j in range(q.shape[1]):
                logits[m, n] += q[m, j] * k[n, j] * (c**2 if j < rotary_dim else 1)
    return logits / q.shape[1] ** 0.5


@st.composite
def _partial(draw: Any) -> Any:
    turning, passing = draw(sizes(2, 4, 6)), draw(sizes(2, 0, 1, 3))
    q, k = (draw(quarters(draw(sizes(1, 2, 3)), turning + passing)) for _ in range(2))
    return q, k, turning, draw(st.sampled_from([4.0, 1.0, 16.0, 2.5]))


def _zero_turning(q: Any, rotary_dim: int) -> Any:
    return np.where(np.arange(q.shape[1]) < rotary_dim, 0.0, q)


_TEMPERATURE = Exercise(
    id="scaling.yarn_logits",
    number="9.4",
    chapter="09_rope_scaling",
    title="YaRN's temperature when part of a head turns",
    minutes=10,
    difficulty=2,
    function="yarn_logits",
    reference=_yarn,
    inputs=_partial(),
    edges={
        "64 of 96 channels": (
            np.cos(np.arange(2 * 96.0)).reshape(2, 96),
            np.sin(np.arange(3 * 96.0)).reshape(3, 96),
            64,
            8.0,
        ),
    },
    properties=(
        Property(
            "a factor of 1 changes nothing",
            lambda yarn_logits, q, k, r, s: (yarn_logits(q, k, r, 1.0), q @ k.T / np.sqrt(q.shape[1])),
        ),
        Property(
            "channels that pass unturned are not scaled",
            lambda yarn_logits, q, k, r, s: (
                yarn_logits(_zero_turning(q, r), k, r, s),
                _zero_turning(q, r) @ k.T / np.sqrt(q.shape[1]),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _c_once,
            "The logits are multiplied by c once. Both queries and keys are made c times as long, so it is c².",
            "which vectors are turned with the tables that hold c·cos and c·sin?",
        ),
        Mistake(
            _c_four_times,
            "The logits are multiplied by c⁴: the square is applied to queries and to keys.",
            "each of the two vectors gets c once.",
        ),
        Mistake(
            _all_channels,
            "All channels are scaled. c stands in the tables of cos and sin, which only the turning channels meet.",
            "which factor do the last d − r channels of q meet on their way?",
        ),
        Mistake(
            _flatter,
            "The logits are divided by c². YaRN's temperature t is below 1, and dividing by t = 1/c² multiplies by c².",
            "should attention become sharper or flatter?",
        ),
        Mistake(
            _decimal,
            "The logarithm is taken to base 10. It is the natural one.",
            "for s = 16, c should be about 1.277.",
        ),
        Mistake(
            _no_tenth,
            "The factor 0.1 before the logarithm is missing.",
            "for s = 16, c should be about 1.277.",
        ),
        Mistake(
            _turning_width,
            "The logits are divided by the square root of rotary_dim. It is that of the whole head.",
            "how many products does one dot product add up?",
        ),
        Mistake(
            _not_divided,
            "The logits are not divided by √d.",
            "what are the logits of plain attention?",
        ),
    ),
    alternatives=(_yarn_vectors, _yarn_loops),
)


# --- 9.5 which cached keys are stale


def _stale(stored_at: Any, length: int, original: int) -> Any:
    def angles(position: int, n: int) -> Any:
        theta, _ = scaling.dynamic_ntk(8, factor=1, original_max_position=original, length=n)
        return position * theta

    pairs = [(angles(p, int(n)), angles(p, length)) for p, n in enumerate(stored_at)]
    return np.array([bool((before != now).any()) for before, now in pairs])


def _at(stored_at: Any) -> Any:
    return np.arange(len(stored_at))


def _any_other_length(stored_at: Any, length: int, original: int) -> Any:
    return (stored_at != length) & (_at(stored_at) > 0)


def _first_key_too(stored_at: Any, length: int, original: int) -> Any:
    return np.maximum(stored_at, original) != max(length, original)


def _late_keys_only(stored_at: Any, length: int, original: int) -> Any:
    return (stored_at > original) & (stored_at != length) & (_at(stored_at) > 0)


def _early_keys_only(stored_at: Any, length: int, original: int) -> Any:
    return (stored_at <= original) & (length > original) & (_at(stored_at) > 0)


def _by_own_position(stored_at: Any, length: int, original: int) -> Any:
    return _stale(_at(stored_at) + 1, length, original)


def _far_positions(stored_at: Any, length: int, original: int) -> Any:
    return (_at(stored_at) >= original) & (stored_at != length)


def _border_is_beyond(stored_at: Any, length: int, original: int) -> Any:
    return _stale(stored_at, length, original - 1)


def _still_good(stored_at: Any, length: int, original: int) -> Any:
    return ~_stale(stored_at, length, original)


def _stale_by_factor(stored_at: Any, length: int, original: int) -> Any:
    now = max(1.0, length / original)
    return np.array([p > 0 and max(1.0, n / original) != now for p, n in enumerate(stored_at.tolist())])


def _stale_at_once(stored_at: Any, length: int, original: int) -> Any:
    stale = np.clip(stored_at, original, None) < length
    stale[:1] = False
    return stale if length > original else np.zeros(len(stored_at), dtype=bool)


@st.composite
def _caches(draw: Any) -> Any:
    prompt, written = draw(sizes(2, 1, 3, 4, 6)), draw(sizes(0, 1, 2, 3, 5))
    stored_at = np.r_[np.full(prompt, prompt), prompt + 1 + np.arange(written)].astype(np.int64)
    return stored_at, len(stored_at) + draw(sizes(1, 0, 4)), draw(sizes(4, 2, 3, 5, 7, 9))


_STALE = Exercise(
    id="scaling.stale_keys",
    number="9.5",
    chapter="09_rope_scaling",
    title="Cached keys that went stale",
    minutes=12,
    difficulty=3,
    function="stale_keys",
    kinds=("cache",),
    reference=_stale,
    inputs=_caches(),
    edges={
        "a prompt beyond the border, then three tokens": (np.array([6, 6, 6, 6, 6, 6, 7, 8, 9]), 9, 4),
        "a prompt beyond the border, nothing written yet": (np.array([6, 6, 6, 6, 6, 6]), 6, 4),
        "just as long as trained": (np.array([3, 3, 3, 4]), 4, 4),
        "one token beyond": (np.array([3, 3, 3, 4, 5]), 5, 4),
    },
    properties=(
        Property(
            "within the trained length no key is stale",
            lambda stale_keys, stored_at, n, original: (
                stale_keys(stored_at, n, n + original),
                np.zeros(len(stored_at), dtype=bool),
            ),
        ),
        Property(
            "the key at position 0 never is",
            lambda stale_keys, stored_at, n, original: (bool(stale_keys(stored_at, n, original)[0]), False),
        ),
    ),
    mistakes=(
        Mistake(
            _any_other_length,
            "Keys count as stale whenever the text has grown. Up to the trained length, the frequencies do not change.",
            "which factor has a text of 3 tokens, and one of 4, if 8 were trained?",
        ),
        Mistake(
            _first_key_too,
            "The key at position 0 counts as stale. It is turned by 0 at any frequency.",
            "by which angle is the first key turned?",
        ),
        Mistake(
            _late_keys_only,
            "Only keys stored beyond the trained length count as stale. Those stored before it had the old base, "
            "and it is wrong for them too.",
            "at which base was the first half of the text stored, and which base has the query now?",
        ),
        Mistake(
            _early_keys_only,
            "Only keys stored within the trained length count as stale. Beyond it, the base changes at every token.",
            "is the base for 9 tokens the one for 10?",
        ),
        Mistake(
            _by_own_position,
            "Each key is taken to be stored when it was the last token. The keys of a prompt are stored together, "
            "at the length of the prompt.",
            "where does your function read `stored_at`?",
        ),
        Mistake(
            _far_positions,
            "Keys are judged by their position. What matters is the length of the text when they were stored.",
            "a key at position 1, stored in a text of 3 tokens: which angle should it have in one of 20?",
        ),
        Mistake(
            _border_is_beyond,
            "The trained length itself counts as beyond the border. At exactly the trained length the factor is 1.",
            "what is max(1, length/original) when both are 4?",
        ),
        Mistake(
            _still_good,
            "These are the keys that are still good. Asked for is True where a key is stale.",
            "what should come out for a text within the trained length?",
        ),
    ),
    alternatives=(_stale_by_factor, _stale_at_once),
)


# --- 9.6 a bug report to decide


def _promises(theta: Any, base: float, original: int, factor: float) -> Any:
    plain = _theta(2 * len(theta), base)
    turns = _turns(plain, original)
    kept = [abs(t / p - 1) < 1e-5 for t, p, r in zip(theta, plain, turns, strict=True) if r >= 32]
    slowed = [abs(t * factor / p - 1) < 1e-5 for t, p, r in zip(theta, plain, turns, strict=True) if r <= 1]
    return all(kept), all(slowed)


def _judged(theta: Any, base: float, original: int, factor: float) -> Any:
    """Ratios to the plain frequencies, and the turns."""
    plain = _theta(2 * len(theta), base)
    return plain / theta, _turns(plain, original), factor


def _to_the_last_bit(theta: Any, base: float, original: int, factor: float) -> Any:
    plain = _theta(2 * len(theta), base)
    turns = _turns(plain, original)
    return bool((theta == plain)[turns >= 32].all()), bool((theta == plain / factor)[turns <= 1].all())


def _absolute(theta: Any, base: float, original: int, factor: float) -> Any:
    plain = _theta(2 * len(theta), base)
    turns = _turns(plain, original)
    off = np.abs(theta - plain) < 1e-5, np.abs(theta - plain / factor) < 1e-5
    return bool(off[0][turns >= 32].all()), bool(off[1][turns <= 1].all())


def _numpy_default(theta: Any, base: float, original: int, factor: float) -> Any:
    plain = _theta(2 * len(theta), base)
    turns = _turns(plain, original)
    fast, slow = turns >= 32, turns <= 1
    return np.allclose(theta[fast], plain[fast]), np.allclose(theta[slow], plain[slow] / factor)


def _swapped(theta: Any, base: float, original: int, factor: float) -> Any:
    return _promises(theta, base, original, factor)[::-1]


def _too_wide(theta: Any, base: float, original: int, factor: float) -> Any:
    ratio, turns, _ = _judged(theta, base, original, factor)
    fast, slow = ratio[turns >= 32], ratio[turns <= 1]
    return bool((np.abs(fast - 1) < 1e-3).all()), bool((np.abs(slow / factor - 1) < 1e-3).all())


def _on_average(theta: Any, base: float, original: int, factor: float) -> Any:
    ratio, turns, _ = _judged(theta, base, original, factor)
    fast, slow = ratio[turns >= 32], ratio[turns <= 1]
    return not len(fast) or bool(abs(fast.mean() - 1) < 1e-5), not len(slow) or bool(
        abs(slow.mean() / factor - 1) < 1e-5
    )


def _ends_only(theta: Any, base: float, original: int, factor: float) -> Any:
    ratio, _, _ = _judged(theta, base, original, factor)
    return bool(abs(ratio[0] - 1) < 1e-5), bool(abs(ratio[-1] / factor - 1) < 1e-5)


def _some(theta: Any, base: float, original: int, factor: float) -> Any:
    ratio, turns, _ = _judged(theta, base, original, factor)
    fast, slow = ratio[turns >= 32], ratio[turns <= 1]
    return (
        not len(fast) or bool((np.abs(fast - 1) < 1e-5).any()),
        not len(slow) or bool((np.abs(slow / factor - 1) < 1e-5).any()),
    )


def _slower_at_all(theta: Any, base: float, original: int, factor: float) -> Any:
    ratio, turns, _ = _judged(theta, base, original, factor)
    return _promises(theta, base, original, factor)[0], bool((ratio[turns <= 1] > 1 + 1e-5).all())


def _in_radians(theta: Any, base: float, original: int, factor: float) -> Any:
    ratio, turns, _ = _judged(theta, base, original, factor)
    radians = turns * 2 * np.pi
    kept, slowed = np.abs(ratio - 1) < 1e-5, np.abs(ratio / factor - 1) < 1e-5
    return bool(kept[radians >= 32].all()), bool(slowed[radians <= 1].all())


def _by_scaled_turns(theta: Any, base: float, original: int, factor: float) -> Any:
    ratio, _, _ = _judged(theta, base, original, factor)
    turns = _turns(theta, original)
    kept, slowed = np.abs(ratio - 1) < 1e-5, np.abs(ratio / factor - 1) < 1e-5
    return bool(kept[turns >= 32].all()), bool(slowed[turns <= 1].all())


def _promises_arrays(theta: Any, base: float, original: int, factor: float) -> Any:
    plain = base ** (-np.arange(len(theta)) / len(theta))
    wavelength = 2 * np.pi / plain
    fast, slow = wavelength <= original / 32, wavelength >= original
    same = np.allclose(theta[fast], plain[fast], rtol=1e-5, atol=0)
    return same, np.allclose(theta[slow] * factor, plain[slow], rtol=1e-5, atol=0)


def _promises_by_expectation(theta: Any, base: float, original: int, factor: float) -> Any:
    plain = _theta(2 * len(theta), base)
    turns = _turns(plain, original)
    # compare with what the promise says, where it says something, and with itself elsewhere
    fast = np.where(turns >= 32, plain, theta)
    slow = np.where(turns <= 1, plain / factor, theta)
    return bool(np.max(np.abs(np.log(theta / fast))) < 1e-5), bool(np.max(np.abs(np.log(theta / slow))) < 1e-5)


def _candidate(name: str, rotary_dim: int, base: float, original: int, factor: float) -> Any:
    same: dict[str, Any] = {"factor": factor, "base": base}
    arguments = rotary_dim, base, original, factor
    if name == "last pair off":
        return _parts(*arguments) * np.append(np.ones(rotary_dim // 2 - 1), 1.0001)
    if name == "all pairs off":  # up and down, so that neither a mean nor a difference with its sign will do
        return _parts(*arguments) * np.where(np.arange(rotary_dim // 2) % 2, 1.0001, 0.9999)
    made: dict[str, Any] = {
        "code": lambda: _parts(*arguments),
        "inverted": lambda: _inverted(*arguments),
        "paper": lambda: _in_turns(*arguments),
        "pi": lambda: scaling.position_interpolation(rotary_dim, **same)[0],
        "ntk": lambda: scaling.ntk_aware(rotary_dim, **same)[0],
        "plain": lambda: _theta(rotary_dim, base),
        "faster": lambda: _theta(rotary_dim, base) * factor ** (np.arange(0, rotary_dim, 2) / rotary_dim),
    }
    return made[name]()


_CANDIDATES = ("code", "inverted", "paper", "pi", "ntk", "plain", "faster", "last pair off", "all pairs off")


@st.composite
def _reports(draw: Any) -> Any:
    d, original = draw(sizes(8, 16, 32)), draw(sizes(2048, 256, 512, 8192))
    base, factor = draw(st.sampled_from(_BASES)), draw(st.sampled_from([4.0, 2.0, 8.0]))
    theta = _candidate(draw(st.sampled_from(_CANDIDATES)), d, base, original, factor)
    if draw(st.booleans()):
        theta = theta.astype(np.float32).astype(np.float64)  # most libraries compute in float32
    return theta, base, original, factor


def _edge(name: str, rotary_dim: int = 32, base: float = 10000.0, original: int = 2048, factor: float = 4.0) -> Any:
    theta = _candidate(name, rotary_dim, base, original, factor).astype(np.float32).astype(np.float64)
    return theta, base, original, factor


def _one_pair_off(original: int) -> Any:
    """Plain frequencies, the first pair 0.01 % off: a test of how many turns are fast."""
    return _theta(8, 10000.0) * np.array([1.0001, 1.0, 1.0, 1.0]), 10000.0, original, 4.0


_BUG = Exercise(
    id="scaling.promises",
    number="9.6",
    chapter="09_rope_scaling",
    title="A bug report to decide",
    minutes=15,
    difficulty=3,
    function="promises",
    kinds=("bug",),
    reference=_promises,
    inputs=_reports(),
    edges={
        "last pair 0.01 % off": _edge("last pair off"),
        "last pair 0.01 % off, base 500,000": _edge("last pair off", 128, base=500000.0),
        "all pairs 0.01 % off": _edge("all pairs off", 64),
        "an inverted ramp": _edge("inverted"),
        "NTK-aware": _edge("ntk"),
        "position interpolation": _edge("pi"),
        "plain RoPE": _edge("plain"),
        "both promises kept, in float32": _edge("code", 64),
        "a pair of 32.5 turns off": _one_pair_off(204),
        "a pair of 31.5 turns off": _one_pair_off(198),
        "slow pairs divided by 2s": (_theta(8, 10000.0) / np.array([1.0, 1.0, 8.0, 8.0]), 10000.0, 256, 4.0),
    },
    properties=(
        Property(
            "plain RoPE keeps the fast pairs, position interpolation slows the slow ones",
            lambda promises, theta, base, n, s: (
                (
                    promises(_theta(2 * len(theta), base), base, n, s)[0],
                    promises(_theta(2 * len(theta), base) / s, base, n, s)[1],
                ),
                (True, True),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _to_the_last_bit,
            "Frequencies are compared to the last bit. A library that computes in float32 is then always wrong.",
            "allow a relative difference of 1e-5.",
        ),
        Mistake(
            _absolute,
            "Differences are compared with 1e-5 as they are. Slow frequencies are small, so that large errors pass.",
            "compare the ratio of the two frequencies with 1.",
        ),
        Mistake(
            _numpy_default,
            "With its defaults, np.allclose allows an absolute difference of 1e-8 on top of the relative one. "
            "Against slow frequencies that is much.",
            "set atol=0, or compare ratios with 1.",
        ),
        Mistake(
            _swapped,
            "The two results are in the other order: first the fast pairs, then the slow ones.",
            "what should come out for plain RoPE?",
        ),
        Mistake(
            _too_wide,
            "The tolerance is too wide: a pair that is 0.01 % off passes.",
            "allow a relative difference of 1e-5.",
        ),
        Mistake(
            _on_average,
            "The promise is tested on average, so that errors up and down cancel. Each pair must keep it.",
            "one list holds the ratios 1.0001 and 0.9999. Does it pass?",
        ),
        Mistake(
            _ends_only,
            "Only the first and the last pair are looked at. NTK-aware scaling would pass.",
            "how many turns does pair 1 make? Does the promise cover it?",
        ),
        Mistake(
            _some,
            "One pair that keeps the promise is taken as enough. All of them must.",
            "`any` or `all`?",
        ),
        Mistake(
            _slower_at_all,
            "Slow pairs pass if they are slowed at all. They must be divided by the factor.",
            "what does NTK-aware scaling do to a pair of half a turn?",
        ),
        Mistake(
            _in_radians,
            "The borders are taken at 32 and 1 radians. They are turns, of 2π radians each.",
            "how many turns does the first pair make in 2048 tokens?",
        ),
        Mistake(
            _by_scaled_turns,
            "Turns are counted with the frequencies under test. A pair is fast or slow by the *original* frequencies.",
            "which pairs would be fast if all of them were divided by 1000?",
        ),
    ),
    alternatives=(_promises_arrays, _promises_by_expectation),
)

EXERCISES = (_UNFINISHED, _NTK, _PARTS, _TEMPERATURE, _STALE, _BUG)
