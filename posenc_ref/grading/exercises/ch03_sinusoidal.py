"""Exercises of chapter 03: sinusoidal position vectors."""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.embedding.sinusoidal import sinusoidal
from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters, sizes

TITLE = "sinusoidal encoding"
BASE = 10000.0


def _frequencies(d: int) -> Any:
    return BASE ** (-np.arange(0, d, 2) / d)


def _interleaved(angles: Any) -> Any:
    """Angles (…, d/2) → (…, d): sine, cosine, sine, cosine, …"""
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(*angles.shape[:-1], -1)


def _widths(least: int) -> Any:
    """Strategy for all even widths from ``least`` to 64."""
    return st.integers(least // 2, 32).map(lambda pairs: 2 * pairs)


# --- 3.1 the table


def _table(positions: Any, d_model: int) -> Any:
    return sinusoidal(positions, d_model, layout="interleaved")


def _channel_number_as_i(positions: Any, d_model: int) -> Any:
    c = np.arange(d_model)
    angles = positions[:, None] * BASE ** (-2 * c / d_model)
    return np.where(c % 2 == 0, np.sin(angles), np.cos(angles))


def _a_frequency_for_each_channel(positions: Any, d_model: int) -> Any:
    c = np.arange(d_model)
    angles = positions[:, None] * BASE ** (-c / d_model)
    return np.where(c % 2 == 0, np.sin(angles), np.cos(angles))


def _whole_division(positions: Any, d_model: int) -> Any:
    exponents = 2 * np.arange(d_model // 2) // d_model  # all 0
    return _interleaved(positions[:, None] / BASE**exponents)


def _whole_division_of_a_negative(positions: Any, d_model: int) -> Any:
    exponents = -2 * np.arange(d_model // 2) // d_model  # 0, −1, −1, …
    return _interleaved(positions[:, None] * BASE**exponents)


def _doubled_twice(positions: Any, d_model: int) -> Any:
    return _interleaved(positions[:, None] * _frequencies(d_model) ** 2)


def _no_minus(positions: Any, d_model: int) -> Any:
    return _interleaved(positions[:, None] / _frequencies(d_model))


def _sines_first(positions: Any, d_model: int) -> Any:
    return sinusoidal(positions, d_model, layout="concatenated")


def _cosine_first(positions: Any, d_model: int) -> Any:
    angles = positions[:, None] * _frequencies(d_model)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(positions), d_model)


def _exponent_not_doubled(positions: Any, d_model: int) -> Any:
    return _interleaved(positions[:, None] * BASE ** (-np.arange(d_model // 2) / d_model))


def _tensor2tensor(positions: Any, d_model: int) -> Any:
    return sinusoidal(positions, d_model, layout="interleaved", exponent="tensor2tensor")


def _counted(positions: Any, d_model: int) -> Any:
    return _table(np.arange(len(positions)), d_model)


def _whole_positions(positions: Any, d_model: int) -> Any:
    return _table(positions.astype(np.int64), d_model)


def _turns(positions: Any, d_model: int) -> Any:
    return _interleaved(2 * np.pi * positions[:, None] * _frequencies(d_model))


def _float32_angles(positions: Any, d_model: int) -> Any:
    angles = positions[:, None] * _frequencies(d_model)
    return _interleaved(angles.astype(np.float32).astype(np.float64))


def _table_loops(positions: Any, d_model: int) -> Any:
    pe = np.zeros((len(positions), d_model))
    for row, p in enumerate(positions):
        for c in range(d_model):
            angle = p / BASE ** (2 * (c // 2) / d_model)
            pe[row, c] = np.cos(angle) if c % 2 else np.sin(angle)
    return pe


def _table_complex(positions: Any, d_model: int) -> Any:
    hands = np.exp(1j * positions[:, None] * _frequencies(d_model))  # the real part is the cosine
    return (1j * hands.conj()).copy().view(np.float64).reshape(len(positions), d_model)


def _table_one_wave(positions: Any, d_model: int) -> Any:
    # a cosine is a sine that is a quarter turn ahead
    return np.sin(positions[:, None] * np.repeat(_frequencies(d_model), 2) + np.tile([0, np.pi / 2], d_model // 2))


@st.composite
def _positions_and_width(draw: Any) -> Any:
    return draw(quarters(draw(sizes(1, 2, 5)), largest=12.0)), draw(sizes(2, 4, 6))


def _squared_lengths(table: Any, positions: Any, d_model: int) -> Any:
    pairs = table(positions, d_model).reshape(len(positions), -1, 2)
    return np.sum(pairs**2, axis=-1), np.ones((len(positions), d_model // 2))


def _mirrored(table: Any, positions: Any, d_model: int) -> Any:
    return table(-positions, d_model), table(positions, d_model) * np.tile([-1.0, 1.0], d_model // 2)


_TABLE = Exercise(
    id="sinusoidal.table",
    number="3.1",
    chapter="03_sinusoidal",
    title="The table, for any positions",
    minutes=8,
    difficulty=1,
    function="table",
    draw=True,
    reference=_table,
    inputs=_positions_and_width(),
    edges={
        "fractions and negative positions": (np.array([2.5, -2.5, 0.75]), 6),
        "a far position (131,071)": (np.array([131_071.0]), 6),
        "a wide table (64 channels)": (np.array([3.0, 40.0, 7.0]), 64),
    },
    properties=(
        Property("each sine and its cosine lie on one circle", _squared_lengths),
        Property("at −p the sines flip and the cosines stay", _mirrored),
    ),
    mistakes=(
        Mistake(
            _channel_number_as_i,
            "The channel's number stands where the pair's number i belongs: each sine has another frequency than its "
            "cosine.",
            "channels 0 and 1 are both pair i = 0. Which pair has channels 6 and 7?",
        ),
        Mistake(
            _a_frequency_for_each_channel,
            "The exponent is −channel/d_model: right for the sines, but each cosine needs the frequency of its sine.",
            "channel 1 is the cosine of pair i = 0. Which frequency has that pair?",
        ),
        Mistake(
            _whole_division,
            "Whole-number division makes every exponent 0, and every frequency 1.",
            "what is 2 // 8, and what is 2 / 8?",
        ),
        Mistake(
            _whole_division_of_a_negative,
            "Whole-number division rounds down: every exponent but the first is −1.",
            "what is −2 // 8, and what is −2 / 8?",
        ),
        Mistake(
            _doubled_twice,
            "The exponent is −4i/d_model where −2i/d_model is asked for. Perhaps your counter runs 0, 2, 4, … already.",
            "for d_model = 4 the second frequency is 1/100. What is yours?",
        ),
        Mistake(
            _no_minus,
            "The exponent lacks its minus sign: the frequencies grow from 1 to nearly 10000, where they should fall.",
            "print the last frequency for d_model = 6. A slow hand has a small one.",
        ),
        Mistake(
            _sines_first,
            "These are the right numbers in the concatenated layout, all sines first. This exercise asks for sine and "
            "cosine in turn.",
            "np.stack(…, axis=-1) and then reshape puts two arrays in turn.",
        ),
        Mistake(
            _cosine_first,
            "Sine and cosine are swapped: even channels hold the sine.",
            "position 0 should give 0, 1, 0, 1, … What is yours?",
        ),
        Mistake(
            _exponent_not_doubled,
            "The exponent is −i/d_model where −2i/d_model is asked for, so that all pairs but the first are too fast.",
            "for d_model = 4 the second frequency is 1/100. What is yours?",
        ),
        Mistake(
            _tensor2tensor,
            "The exponent is divided by d_model/2 − 1, as in tensor2tensor. The paper divides by d_model/2.",
            "only the first frequency is the same in both. Compare the second.",
        ),
        Mistake(
            _counted,
            "This counts positions 0, 1, 2, … and leaves the argument positions unused.",
            "think of one new token behind a cache of 100. Which position has it?",
        ),
        Mistake(
            _whole_positions,
            "Positions are cut to whole numbers. The formula answers for fractions too.",
            "keep positions as they come; angles are floats anyway.",
        ),
        Mistake(
            _turns,
            "There is a factor 2π too many: ω is in radians a token, not in turns a token.",
            "the first pair at position 1 is (sin 1, cos 1).",
        ),
        Mistake(
            _float32_angles,
            "The angles went through float32, which is not enough at far positions.",
            "compute angles in float64 and cast the finished table, if at all.",
        ),
    ),
    alternatives=(_table_loops, _table_complex, _table_one_wave),
)

# --- 3.2 a base for a wavelength


def _base_for(longest: float, d_model: int) -> float:
    return float((longest / (2 * np.pi)) ** (d_model / (d_model - 2)))


def _last_clock_left_out(longest: float, d_model: int) -> float:
    return longest / (2 * np.pi)


def _no_two_pi(longest: float, d_model: int) -> float:
    return float(longest ** (d_model / (d_model - 2)))


def _no_brackets(longest: float, d_model: int) -> float:
    return float((longest / 2 * np.pi) ** (d_model / (d_model - 2)))


def _exponent_upside_down(longest: float, d_model: int) -> float:
    return float((longest / (2 * np.pi)) ** ((d_model - 2) / d_model))


def _last_channel(longest: float, d_model: int) -> float:
    return float((longest / (2 * np.pi)) ** (d_model / (d_model - 1)))


def _half_exponent(longest: float, d_model: int) -> float:
    return float((longest / (2 * np.pi)) ** (2 * d_model / (d_model - 2)))


def _base_by_logarithms(longest: float, d_model: int) -> float:
    last = d_model // 2 - 1
    return float(np.exp(np.log(longest / (2 * np.pi)) * d_model / (2 * last)))


def _base_by_bisection(longest: float, d_model: int) -> float:
    low, high = 0.0, 200.0  # of ln base
    for _ in range(200):
        middle = (low + high) / 2
        too_long = 2 * np.pi * np.exp(middle * (d_model - 2) / d_model) > longest
        low, high = (low, middle) if too_long else (middle, high)
    return float(np.exp(low))


def _wavelength_reached(base_for: Any, longest: float, d_model: int) -> Any:
    return 2 * np.pi * base_for(longest, d_model) ** ((d_model - 2) / d_model), longest


_BASE_FOR = Exercise(
    id="sinusoidal.wavelengths_to_base",
    number="3.2",
    chapter="03_sinusoidal",
    title="A base for a wavelength",
    minutes=8,
    difficulty=2,
    function="base_for",
    reference=_base_for,
    inputs=st.tuples(st.integers(40, 16_000).map(lambda n: n / 4), _widths(4)),
    edges={"the paper's width, 100,000 tokens": (100_000.0, 512)},
    properties=(Property("with this base, the last clock has that wavelength", _wavelength_reached),),
    mistakes=(
        Mistake(
            _last_clock_left_out,
            "This takes base · 2π for the longest wavelength. No clock has it: the last one is i = d_model/2 − 1.",
            "write down i and 2i/d_model of the last clock for d_model = 4.",
        ),
        Mistake(
            _no_two_pi,
            "The factor 2π is missing: a frequency of 1 radian a token means a turn in 2π tokens, not in 1.",
            "solve λ = 2π · base^((d − 2)/d) for the base once more.",
        ),
        Mistake(
            _no_brackets,
            "This divides by 2 and then multiplies by π. The division should be by 2π.",
            "what is 1 / 2 * 4 in Python?",
        ),
        Mistake(
            _exponent_upside_down,
            "The exponent is upside down: (d − 2)/d leads from the base to the wavelength, and here you go back.",
            "what undoes the power 1/2?",
        ),
        Mistake(
            _last_channel,
            "This takes 2i = d − 1 for the last clock. Its i is d/2 − 1, so that 2i = d − 2.",
            "which i has the last cosine, channel d − 1?",
        ),
        Mistake(
            _half_exponent,
            "The exponent is i/d where 2i/d is asked for.",
            "for d = 4 the last clock has i = 1. What is base^(2i/d) then?",
        ),
    ),
    alternatives=(_base_by_logarithms, _base_by_bisection),
)

# --- 3.3 the matrix of a shift


def _order(d: int, layout: str) -> Any:
    """Where channels 0 … d−1 of the interleaved layout are found in ``layout``."""
    return np.arange(d) if layout == "interleaved" else np.r_[0:d:2, 1:d:2]


def _from_cos_sin(cos: Any, sin: Any, layout: str, sign: float = -1.0) -> Any:
    d = 2 * len(cos)
    M = np.zeros((d, d))
    for i, (c, s) in enumerate(zip(cos, sin, strict=True)):
        M[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[c, s], [sign * s, c]]
    order = _order(d, layout)
    return M[np.ix_(order, order)]


def _shift_matrix(k: float, d_model: int, layout: str) -> Any:
    # column j is where unit vector j goes: read it as clock hands, turn them
    hands = np.eye(d_model)[np.argsort(_order(d_model, layout))].reshape(-1, 2, d_model)
    z = (hands[:, 1] + 1j * hands[:, 0]) * np.exp(1j * k * _frequencies(d_model))[:, None]
    return np.stack([z.imag, z.real], axis=1).reshape(d_model, d_model)[_order(d_model, layout)]


def _backwards(k: float, d_model: int, layout: str) -> Any:
    return _shift_matrix(-k, d_model, layout)


def _layout_ignored(k: float, d_model: int, layout: str) -> Any:
    return _shift_matrix(k, d_model, "interleaved")


def _always_concatenated(k: float, d_model: int, layout: str) -> Any:
    return _shift_matrix(k, d_model, "concatenated")


def _rope_rotation(k: float, d_model: int, layout: str) -> Any:
    return _shift_matrix(-k, d_model, "interleaved")


def _both_plus(k: float, d_model: int, layout: str) -> Any:
    a = k * _frequencies(d_model)
    return _from_cos_sin(np.cos(a), np.sin(a), layout, sign=1.0)


def _one_clock(k: float, d_model: int, layout: str) -> Any:
    a = np.full(d_model // 2, k)
    return _from_cos_sin(np.cos(a), np.sin(a), layout)


def _slow_clocks_too_fast(k: float, d_model: int, layout: str) -> Any:
    a = k * BASE ** (-np.arange(d_model // 2) / d_model)
    return _from_cos_sin(np.cos(a), np.sin(a), layout)


def _no_sines(k: float, d_model: int, layout: str) -> Any:
    return np.diag(np.cos(k * _frequencies(d_model)).repeat(2)[_order(d_model, layout)])


def _sign_of_k_lost(k: float, d_model: int, layout: str) -> Any:
    return _shift_matrix(abs(k), d_model, layout)


def _shift_blocks(k: float, d_model: int, layout: str) -> Any:
    a = k * _frequencies(d_model)
    return _from_cos_sin(np.cos(a), np.sin(a), layout)


def _shift_quarters(k: float, d_model: int, layout: str) -> Any:
    C, S = np.diag(np.cos(k * _frequencies(d_model))), np.diag(np.sin(k * _frequencies(d_model)))
    M = np.block([[C, S], [-S, C]])  # concatenated
    if layout == "concatenated":
        return M
    back = np.argsort(_order(d_model, "concatenated"))
    return M[back][:, back]


@st.composite
def _steps(draw: Any) -> Any:
    k = draw(st.integers(-48, 48)) / 4
    return k, draw(_widths(2)), draw(st.sampled_from(["interleaved", "concatenated"]))


def _moves(shift_matrix: Any, k: float, d_model: int, layout: Any) -> Any:
    pe = sinusoidal(np.array([11.0, 11.0 + k]), d_model, layout=layout)
    return shift_matrix(k, d_model, layout) @ pe[0], pe[1]


def _adds_up(shift_matrix: Any, k: float, d_model: int, layout: str) -> Any:
    three = shift_matrix(3.0, d_model, layout)
    return three @ shift_matrix(k, d_model, layout), shift_matrix(k + 3.0, d_model, layout)


def _orthogonal(shift_matrix: Any, k: float, d_model: int, layout: str) -> Any:
    M = shift_matrix(k, d_model, layout)
    return M.T @ M, np.eye(d_model)


_SHIFT = Exercise(
    id="sinusoidal.shift_matrix",
    number="3.3",
    chapter="03_sinusoidal",
    title="The matrix of a shift, in both layouts",
    minutes=15,
    difficulty=3,
    function="shift_matrix",
    kinds=("derive",),
    draw=True,
    reference=_shift_matrix,
    inputs=_steps(),
    edges={
        "a long step (5,000)": (5000.0, 6, "interleaved"),
        "a wide vector (32 channels)": (-7.0, 32, "concatenated"),
    },
    properties=(
        Property("PE(11) is moved to PE(11 + k)", _moves),
        Property("a step of k and one of 3 make one of k + 3", _adds_up),
        Property("lengths are kept", _orthogonal),
    ),
    mistakes=(
        Mistake(
            _backwards,
            "This steps back: it is the matrix of −k. Its blocks suit row vectors, or pairs with the cosine first.",
            "at ωp = 0 the pair is (0, 1). After a small step its sine should be positive. Is it?",
        ),
        Mistake(
            _layout_ignored,
            "The blocks suit the interleaved layout, whatever layout says.",
            "where do sine and cosine of pair 0 stand when all sines come first?",
        ),
        Mistake(
            _always_concatenated,
            "The blocks suit the concatenated layout, whatever layout says.",
            "where do sine and cosine of pair 1 stand when the layout is interleaved?",
        ),
        Mistake(
            _rope_rotation,
            "Two things. The blocks turn counter-clockwise, which steps back, as the sine comes first here. And they "
            "suit the interleaved layout, whatever layout says.",
            'begin with the layout "interleaved", at ωp = 0: the sine should grow from 0. Does it?',
        ),
        Mistake(
            _both_plus,
            "Both sine entries of a block are positive. That is no rotation: lengths change.",
            "write down cos(a + b) once more, and look at its sign.",
        ),
        Mistake(
            _one_clock,
            "All clocks turn at the speed of the first. Clock i turns by k · ω_i.",
            "print ω_i for d_model = 6: three numbers are needed.",
        ),
        Mistake(
            _slow_clocks_too_fast,
            "The frequencies have the exponent −i/d_model where −2i/d_model is asked for.",
            "for d_model = 4 the second clock has ω = 1/100.",
        ),
        Mistake(
            _no_sines,
            "The sines are missing: each channel is scaled, and none learns from its partner.",
            "sin(a + b) needs cos a too. Which channel holds it?",
        ),
        Mistake(
            _sign_of_k_lost,
            "A step back gives the matrix of a step forward: the sign of k is lost.",
            "M(−k) should be the transpose of M(k).",
        ),
    ),
    alternatives=(_shift_blocks, _shift_quarters),
)

# --- 3.4 the offset-only part of a matrix


@cache
def _turns_of(clocks: int) -> Any:
    """Rotations by 0°, 90°, 180° and 270° of each clock, in all combinations, (4^clocks, d, d)."""
    hands = np.array(list(product([(1, 0), (0, 1), (-1, 0), (0, -1)], repeat=clocks)))  # cosine, sine
    return np.array([_from_cos_sin(hand[:, 0], hand[:, 1], "interleaved") for hand in hands])


def _offset_part(A: Any) -> Any:
    # Over many positions the hands take all combinations of angles equally often. Four angles a clock give the
    # same mean, as no entry of MᵀAM varies faster than twice an angle.
    turns = _turns_of(len(A) // 2)
    return np.mean(turns.swapaxes(1, 2) @ A @ turns, axis=0)


def _blocks(A: Any) -> Any:
    return A * np.kron(np.eye(len(A) // 2), np.ones((2, 2)))


def _blocks_kept(A: Any) -> Any:
    return _blocks(A)


def _diagonal(A: Any) -> Any:
    return np.diag(np.diagonal(A))


def _quarter_turns(d: int) -> Any:
    return np.kron(np.eye(d // 2), np.array([[0.0, 1.0], [-1.0, 0.0]]))


def _no_direction(A: Any) -> Any:
    return np.diag(((A[0::2, 0::2] + A[1::2, 1::2]) / 2).diagonal().repeat(2))


def _one_for_all_clocks(A: Any) -> Any:
    J = _quarter_turns(len(A))
    return (np.trace(A) * np.eye(len(A)) + np.sum(A * J) * J) / len(A)


def _turned_the_other_way(A: Any) -> Any:
    return _offset_part(A).T


def _not_halved(A: Any) -> Any:
    return 2 * _offset_part(A)


def _halves_paired(A: Any) -> Any:
    order = _order(len(A), "concatenated")
    back = np.argsort(order)
    return _offset_part(A[np.ix_(back, back)])[np.ix_(order, order)]


def _along_the_diagonals(A: Any) -> Any:
    d = len(A)
    return np.array([[np.diagonal(A, n - m).mean() for n in range(d)] for m in range(d)])


def _symmetric_part(A: Any) -> Any:
    return (A + A.T) / 2


def _across_clocks(A: Any) -> Any:
    J = _quarter_turns(len(A))
    return (A + J.T @ A @ J) / 2


def _offset_part_loops(A: Any) -> Any:
    B = np.zeros_like(A)
    for i in range(0, len(A), 2):
        same, cross = (A[i, i] + A[i + 1, i + 1]) / 2, (A[i, i + 1] - A[i + 1, i]) / 2
        B[i : i + 2, i : i + 2] = [[same, cross], [-cross, same]]
    return B


def _offset_part_quarter_turn(A: Any) -> Any:
    J = _quarter_turns(len(A))
    return (_blocks(A) + J.T @ _blocks(A) @ J) / 2


@st.composite
def _matrix(draw: Any) -> Any:
    d = draw(sizes(2, 4, 6))
    return (draw(quarters(d, d)),)


def _scores_after_a_shift(offset_part: Any, A: Any) -> Any:
    def scores(shift: float) -> Any:
        pe = sinusoidal(np.array([3.0, 8.0, 4.0]) + shift, len(A), layout="interleaved")
        return pe @ offset_part(A) @ pe.T

    return scores(0.0), scores(1000.0)


_OFFSET_PART = Exercise(
    id="sinusoidal.offset_part",
    number="3.4",
    chapter="03_sinusoidal",
    title="What a matrix knows about distance",
    minutes=25,
    difficulty=4,
    function="offset_part",
    reference=_offset_part,
    inputs=_matrix(),
    edges={
        "counting numbers": (np.arange(16.0).reshape(4, 4),),
        "numbers with many digits": (np.cos(np.arange(36.0)).reshape(6, 6),),
    },
    properties=(
        Property("scores stay the same when all positions grow by 1000", _scores_after_a_shift),
        Property("doing it twice changes nothing more", lambda f, A: (f(f(A)), f(A))),
    ),
    mistakes=(
        Mistake(
            _blocks_kept,
            "Only the blocks of single clocks are kept, which is right, but each as it was. Not every 2 × 2 matrix "
            "commutes with a rotation.",
            "which 2 × 2 matrices B satisfy RᵀBR = B for a quarter turn R?",
        ),
        Mistake(
            _diagonal,
            "This is the diagonal of A as it was. The two entries of one clock must be equal, and two more numbers "
            "survive off the diagonal.",
            "which 2 × 2 matrices B satisfy RᵀBR = B for a quarter turn R?",
        ),
        Mistake(
            _no_direction,
            "The multiple of the identity is right, but the quarter turn of each block is missing. Without it no score "
            "can tell before from after.",
            "try A = [[0, 1], [−1, 0]]: it commutes with every rotation, so it should stay.",
        ),
        Mistake(
            _one_for_all_clocks,
            "All clocks got the same two numbers. Each clock may have its own.",
            "try a diagonal A with entries 1, 1, 2, 2.",
        ),
        Mistake(
            _turned_the_other_way,
            "The quarter turns have the wrong sign: this is the transpose of the right answer.",
            "try A = [[0, 1], [−1, 0]]: it should stay as it is.",
        ),
        Mistake(
            _not_halved,
            "The numbers are sums where means are asked for: all are twice too large.",
            "try the identity: it should stay as it is.",
        ),
        Mistake(
            _halves_paired,
            "Channels i and i + d/2 are taken for a clock. Here the layout is interleaved: 2i and 2i + 1.",
            "for d = 4, which channels belong to clock 0?",
        ),
        Mistake(
            _along_the_diagonals,
            "The entries of A are averaged along its own diagonals. They are channels, not positions: it is the matrix "
            "of scores that should be constant along diagonals.",
            "compute PE @ A @ PE.T for a few positions, and look at that matrix.",
        ),
        Mistake(
            _symmetric_part,
            "This is the symmetric part of A. That is about swapping query and key, not about moving both.",
            "compare the score of positions 3 and 8 with that of 103 and 108.",
        ),
        Mistake(
            _across_clocks,
            "Each block is averaged over a quarter turn, which is right inside a clock, but blocks between two "
            "clocks remain. Clocks of different speeds drift apart, so that these average to zero.",
            "try an A that is zero but for the entry [0, 2].",
        ),
    ),
    alternatives=(_offset_part_loops, _offset_part_quarter_turn),
)

# --- 3.5 a table that is not learned, in PyTorch


def _stored(x: Any, rows: int, start: int) -> Any:
    table = sinusoidal(np.arange(start, start + len(x)), x.shape[1], layout="interleaved")
    return x + table.astype(np.float32), table, True, 0, 0


def _use_stored(answer: Any, x: Any, rows: Any, start: Any) -> Any:
    import torch

    layer = answer(rows, x.shape[1])
    layer(x, 0 * start)  # what one call leaves must not spoil the next
    y, saved, learned = layer(x, start), len(layer.state_dict()), sum(p.numel() for p in layer.parameters())
    low = layer.to(torch.bfloat16)(torch.zeros_like(x).to(torch.bfloat16), start)
    return y, low.double(), low.dtype == torch.bfloat16, saved, learned  # float16 would need the sandbox to show /proc


def _module(rows: int, dim: int, keep: Any, forward: Any, precision: str = "float64") -> Any:
    """A layer that ``keep(self, table)`` gives its table, with a forward pass of its own."""
    import torch

    dtype = getattr(torch, precision)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            keep(self, _torch_table(torch.arange(rows), dim, dtype).float())

        def forward(self, x: Any, start: int) -> Any:
            return forward(self, x, start)

    return Layer()


def _torch_table(positions: Any, dim: int, dtype: Any) -> Any:
    import torch

    frequencies = BASE ** (-torch.arange(0, dim, 2, dtype=dtype) / dim)
    angles = positions[:, None].to(dtype) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _as_buffer(layer: Any, table: Any) -> None:
    layer.register_buffer("table", table, persistent=False)


def _sum(layer: Any, x: Any, start: int) -> Any:
    return x + layer.table[start : start + len(x)].to(x.dtype)


def _buffered(rows: int, dim: int) -> Any:
    return _module(rows, dim, _as_buffer, lambda layer, x, start: x + layer.table[start : start + len(x)])


def _buffer_saved(rows: int, dim: int) -> Any:
    return _module(rows, dim, lambda layer, table: layer.register_buffer("table", table), _sum)


def _a_parameter(rows: int, dim: int) -> Any:
    import torch

    return _module(rows, dim, lambda layer, table: setattr(layer, "table", torch.nn.Parameter(table)), _sum)


def _plain_attribute(rows: int, dim: int) -> Any:
    forward = lambda layer, x, start: x + layer.table[start : start + len(x)]  # noqa: E731
    return _module(rows, dim, lambda layer, table: setattr(layer, "table", table), forward)


def _start_ignored(rows: int, dim: int) -> Any:
    return _module(rows, dim, _as_buffer, lambda layer, x, start: _sum(layer, x, 0))


def _last_rows(rows: int, dim: int) -> Any:
    return _module(rows, dim, _as_buffer, lambda layer, x, start: x + layer.table[-len(x) :])


def _angles_in_float32(rows: int, dim: int) -> Any:
    return _module(rows, dim, _as_buffer, _sum, "float32")


def _angles_in_the_dtype_of_x(rows: int, dim: int) -> Any:
    import torch

    def forward(layer: Any, x: Any, start: int) -> Any:
        return x + _torch_table(torch.arange(start, start + len(x)), dim, x.dtype)

    return _module(rows, dim, lambda layer, table: None, forward)


def _scaled_by_the_width(rows: int, dim: int) -> Any:
    return _module(rows, dim, _as_buffer, lambda layer, x, start: _sum(layer, x * dim**0.5, start))


def _vectors_alone(rows: int, dim: int) -> Any:
    return _module(rows, dim, _as_buffer, lambda layer, x, start: _sum(layer, 0 * x, start))


def _sines_before_cosines(rows: int, dim: int) -> Any:
    def keep(layer: Any, table: Any) -> None:
        _as_buffer(layer, table.unflatten(1, (-1, 2)).mT.flatten(1))

    return _module(rows, dim, keep, _sum)


def _computed_each_time(rows: int, dim: int) -> Any:
    import torch

    def forward(layer: Any, x: Any, start: int) -> Any:
        return x + _torch_table(torch.arange(start, start + len(x)), dim, torch.float64).to(x.dtype)

    return _module(rows, dim, lambda layer, table: None, forward)


def _kept_out_of_sight(rows: int, dim: int) -> Any:
    def forward(layer: Any, x: Any, start: int) -> Any:
        return x + layer.tables[0][start : start + len(x)].to(x)

    return _module(rows, dim, lambda layer, table: setattr(layer, "tables", [table]), forward)


@st.composite
def _sequences(draw: Any) -> Any:
    length, dim, start = draw(sizes(1, 2, 3)), draw(sizes(2, 4, 6)), draw(st.integers(0, 9))
    return draw(quarters(length, dim)).astype(np.float32), start + length + draw(st.integers(0, 3)), start


_STORED = Exercise(
    id="sinusoidal.layer",
    number="3.5",
    chapter="03_sinusoidal",
    title="A table that is stored and not saved",
    minutes=15,
    difficulty=2,
    function="Sinusoidal",
    reference=_stored,
    use=_use_stored,
    asks=("rows", "dim"),
    kinds=("torch", "cache"),
    inputs=_sequences(),
    edges={
        "three tokens behind a cache of 20,000": (np.ones((3, 8), np.float32), 20_010, 20_000),
        "a table as long as the text": (np.zeros((4, 4), np.float32), 4, 0),
    },
    tolerance={"float32": 1e-5, "float64": 0.004},  # bfloat16 comes back as float64; one rounding is 2⁻⁸
    mistakes=(
        Mistake(
            _buffer_saved,
            "The outputs are right, yet the table is saved with the model: state_dict holds it. A longer table would "
            "not load then, and it can be computed at any time.",
            "which argument of register_buffer keeps it out of state_dict?",
        ),
        Mistake(
            _a_parameter,
            "The table is a Parameter: an optimiser would change it. It is a constant of the model.",
            "print list(layer.named_parameters()).",
        ),
        Mistake(
            _plain_attribute,
            "The table is a plain attribute, which .to() does not see: it stays in float32 on the CPU, and "
            "the sum becomes float32.",
            "what does a module move besides its parameters?",
        ),
        Mistake(
            _start_ignored,
            "The first token always gets position 0. Behind a cache it stands at start.",
            "how far apart should your results for start = 0 and start = 5 be?",
        ),
        Mistake(
            _last_rows,
            "The last rows of the table are taken. The table may be longer than the text: the rows are start, start + "
            "1, and so on.",
            "make a table with one row more. Does your result change?",
        ),
        Mistake(
            _angles_in_the_dtype_of_x,
            "Angles are computed in the precision of x. Beyond 256, bfloat16 does not even hold every whole number.",
            "compute in float64, and convert sines and cosines.",
        ),
        Mistake(
            _angles_in_float32,
            "The angles are computed in float32: at position 20,000 they are off by about a thousandth. Compute them "
            "in float64, and convert the table.",
            "torch.arange(…, dtype=torch.float64).",
        ),
        Mistake(
            _scaled_by_the_width,
            "The input is multiplied by √dim. The original model does so with token vectors before this layer; here "
            "only the sum is asked for.",
            "what should come out for position 0 and an x of ones?",
        ),
        Mistake(_vectors_alone, "These are the position vectors alone. Add x."),
        Mistake(
            _sines_before_cosines,
            "All sines stand before all cosines. Here they are interleaved: sine and cosine of a frequency are "
            "neighbours.",
            "stack them on a new last axis, then flatten.",
        ),
    ),
    alternatives=(_buffered, _computed_each_time, _kept_out_of_sight),
)

EXERCISES = (_TABLE, _BASE_FOR, _SHIFT, _OFFSET_PART, _STORED)
