"""Exercises of chapter 08: rotary position embedding."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.grading.exercise import Exercise, Mistake, Property, integers, quarters, sizes
from posenc_ref.rotary import layouts, rope

TITLE = "rotary position embedding"
BASE = 10000.0

# --- 8.1 rotate queries or keys, interleaved


def _rotate(x: Any, positions: Any) -> Any:
    cos, sin = rope.cos_sin(positions, rope.inv_freq(x.shape[-1]))
    return rope.rotate(x, cos, sin, layout="interleaved")


def _angles(x: Any, positions: Any) -> Any:
    theta = BASE ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    return positions[:, None] * theta  # (seq, pairs)


def _interleaved(x: Any, angles: Any) -> Any:
    y = np.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
    y[..., 1::2] = x[..., 1::2] * np.cos(angles) + x[..., 0::2] * np.sin(angles)
    return y


def _clockwise(x: Any, positions: Any) -> Any:
    return _interleaved(x, -_angles(x, positions))


def _half_split(x: Any, positions: Any) -> Any:
    a, half = _angles(x, positions), x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    return np.concatenate([x1 * np.cos(a) - x2 * np.sin(a), x2 * np.cos(a) + x1 * np.sin(a)], axis=-1)


def _halves_put_together(x: Any, positions: Any) -> Any:
    a = _angles(x, positions)
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return np.concatenate([x1 * np.cos(a) - x2 * np.sin(a), x2 * np.cos(a) + x1 * np.sin(a)], axis=-1)


def _exponent_not_doubled(x: Any, positions: Any) -> Any:
    theta = BASE ** (-np.arange(x.shape[-1] // 2) / x.shape[-1])
    return _interleaved(x, positions[:, None] * theta)


def _exponent_without_minus(x: Any, positions: Any) -> Any:
    return _interleaved(x, positions[:, None] * BASE ** (np.arange(0, x.shape[-1], 2) / x.shape[-1]))


def _sin_for_cos(x: Any, positions: Any) -> Any:
    return _interleaved(x, np.pi / 2 - _angles(x, positions))


def _counted_positions(x: Any, positions: Any) -> Any:
    return _rotate(x, np.arange(len(positions)))


def _overwritten(x: Any, positions: Any) -> Any:
    a, y = _angles(x, positions), x.copy()
    y[..., 0::2] = y[..., 0::2] * np.cos(a) - y[..., 1::2] * np.sin(a)
    y[..., 1::2] = y[..., 1::2] * np.cos(a) + y[..., 0::2] * np.sin(a)
    return y


def _one_frequency(x: Any, positions: Any) -> Any:
    return _interleaved(x, np.broadcast_to(positions[:, None], (len(positions), x.shape[-1] // 2)))


def _same_sign(x: Any, positions: Any) -> Any:
    a, y = _angles(x, positions), np.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * np.cos(a) + x[..., 1::2] * np.sin(a)
    y[..., 1::2] = x[..., 1::2] * np.cos(a) + x[..., 0::2] * np.sin(a)
    return y


def _float32_angles(x: Any, positions: Any) -> Any:
    return _interleaved(x, _angles(x, positions).astype(np.float32).astype(np.float64))


def _loops(x: Any, positions: Any) -> Any:
    y = np.zeros(x.shape)
    for t, p in enumerate(positions):
        for g in range(x.shape[-1] // 2):
            angle = p * BASE ** (-2 * g / x.shape[-1])
            a, b = x[:, t, 2 * g], x[:, t, 2 * g + 1]
            y[:, t, 2 * g] = a * np.cos(angle) - b * np.sin(angle)
            y[:, t, 2 * g + 1] = b * np.cos(angle) + a * np.sin(angle)
    return y


def _complex(x: Any, positions: Any) -> Any:
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * _angles(x, positions))
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


def _blocks(x: Any, positions: Any) -> Any:
    c, s = np.cos(_angles(x, positions)), np.sin(_angles(x, positions))
    blocks = np.array([[c, -s], [s, c]])  # (2, 2, seq, pairs)
    return np.einsum("ijtg,htgj->htgi", blocks, x.reshape(*x.shape[:-1], -1, 2)).reshape(x.shape)


@st.composite
def _heads_and_positions(draw: Any) -> Any:
    heads, seq, pairs = draw(sizes(1, 3)), draw(sizes(1, 2, 4)), draw(sizes(1, 2, 3))
    return draw(quarters(heads, seq, 2 * pairs)), draw(integers(seq))


def _shifted(rotate: Any, x: Any, positions: Any) -> Any:
    def logits(shift: int) -> Any:
        return rotate(x, positions + shift) @ rotate(np.flip(x, -1), positions + shift).swapaxes(-1, -2)

    return logits(0), logits(5)


_ROTATE = Exercise(
    id="rope.rotate",
    number="8.1",
    chapter="08_rope",
    title="Rotate queries by their positions",
    minutes=10,
    difficulty=2,
    function="rotate",
    reference=_rotate,
    inputs=_heads_and_positions(),
    edges={
        "a far position (131,071)": (np.array([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]]), np.array([131_071])),
        "a wide head (64 channels)": (np.arange(3 * 2 * 64.0).reshape(3, 2, 64) % 7 - 3, np.array([9, 4])),
        "numbers with many digits": (np.cos(np.arange(3 * 2 * 4.0)).reshape(3, 2, 4), np.array([7, 3])),
    },
    properties=(
        Property(
            "each pair keeps its length",
            lambda rotate, x, p: (
                np.linalg.norm(rotate(x, p).reshape(*x.shape[:-1], -1, 2), axis=-1),
                np.linalg.norm(x.reshape(*x.shape[:-1], -1, 2), axis=-1),
            ),
        ),
        Property("logits stay the same when all positions grow by 5", _shifted),
        Property("position 0 changes nothing", lambda rotate, x, p: (rotate(x, 0 * p), x)),
    ),
    mistakes=(
        Mistake(
            _clockwise,
            "This turns clockwise: the sign of the sine terms is flipped.",
            "where should the pair (1, 0) go for a small positive angle?",
        ),
        Mistake(
            _half_split,
            "These are the right numbers in the half-split layout, pairs (g, g + d/2). "
            "This exercise asks for interleaved pairs, (2g, 2g + 1).",
            "which channel is the partner of channel 0?",
        ),
        Mistake(
            _halves_put_together,
            "The pairs are turned rightly, but put back as two halves: all first components, then all second ones.",
            "y[..., 0::2] = … and y[..., 1::2] = … put each component where it came from.",
        ),
        Mistake(
            _exponent_not_doubled,
            "The exponent is −g/d where −2g/d is asked for, so that all pairs but the first turn too fast.",
            "the last of d/2 pairs should have a frequency near 1/10000. What is yours?",
        ),
        Mistake(
            _exponent_without_minus,
            "The minus sign of the exponent −2g/d is missing: later pairs turn faster instead of slower.",
            "for d = 4, the two frequencies should be 1 and 1/100.",
        ),
        Mistake(
            _sin_for_cos,
            "Sine and cosine are exchanged.",
            "at position 0 nothing should turn. What are cos 0 and sin 0?",
        ),
        Mistake(
            _counted_positions,
            "This counts positions 0, 1, 2, … and leaves the argument positions unused.",
            "think of one new query behind a cache of 100 keys. Which position has it?",
        ),
        Mistake(
            _overwritten,
            "The second component is computed from the first one after that was overwritten.",
            "keep x[..., 0::2] in a variable before you write to it.",
        ),
        Mistake(
            _one_frequency,
            "All pairs turn at the speed of the first. Pair g turns by position · θ_g.",
            "print θ_g for d = 6: three numbers are needed.",
        ),
        Mistake(
            _same_sign,
            "Both sine terms have a plus sign. That is no rotation: lengths change.",
            "multiply out [[cos, −sin], [sin, cos]] by (x₁, x₂).",
        ),
        Mistake(
            _float32_angles,
            "The angles went through float32, which is not enough at far positions.",
            "compute position · θ_g in float64, and cast the result if you must.",
        ),
    ),
    alternatives=(_loops, _complex, _blocks),
)

# --- 8.2 frequencies, with partial rotary


def _inv_freq(head_dim: int, rotary_dim: int, base: float) -> Any:
    return rope.inv_freq(rotary_dim, base=base)


def _minus_lost(head_dim: int, rotary_dim: int, base: float) -> Any:
    return base ** (np.arange(0, rotary_dim, 2) / rotary_dim)


def _counted_from_one(head_dim: int, rotary_dim: int, base: float) -> Any:
    return base ** (-np.arange(1, rotary_dim + 1, 2) / rotary_dim)


def _not_doubled(head_dim: int, rotary_dim: int, base: float) -> Any:
    return base ** (-np.arange(rotary_dim // 2) / rotary_dim)


def _doubled_twice(head_dim: int, rotary_dim: int, base: float) -> Any:
    return base ** (-2 * np.arange(0, rotary_dim, 2) / rotary_dim)


def _over_head_dim(head_dim: int, rotary_dim: int, base: float) -> Any:
    return base ** (-np.arange(0, rotary_dim, 2) / head_dim)


def _all_of_head_dim(head_dim: int, rotary_dim: int, base: float) -> Any:
    return base ** (-np.arange(0, head_dim, 2) / head_dim)


def _ends_at_base(head_dim: int, rotary_dim: int, base: float) -> Any:
    return base ** (-np.arange(rotary_dim // 2) / max(rotary_dim // 2 - 1, 1))


def _base_ignored(head_dim: int, rotary_dim: int, base: float) -> Any:
    return _inv_freq(head_dim, rotary_dim, BASE)


def _one_a_channel(head_dim: int, rotary_dim: int, base: float) -> Any:
    return np.repeat(_inv_freq(head_dim, rotary_dim, base), 2)


def _wavelengths(head_dim: int, rotary_dim: int, base: float) -> Any:
    return 2 * np.pi / _inv_freq(head_dim, rotary_dim, base)


def _whole_division(head_dim: int, rotary_dim: int, base: float) -> Any:
    return base ** -(np.arange(0, rotary_dim, 2) // rotary_dim * 1.0)


def _inv_freq_loop(head_dim: int, rotary_dim: int, base: float) -> Any:
    return np.array([base ** (-2 * g / rotary_dim) for g in range(rotary_dim // 2)])


def _inv_freq_exp(head_dim: int, rotary_dim: int, base: float) -> Any:
    return np.exp(-np.log(base) * np.arange(0, rotary_dim, 2) / rotary_dim)


@st.composite
def _dimensions(draw: Any) -> Any:
    rotary_dim = 2 * draw(st.integers(1, 32))
    return rotary_dim + 2 * draw(st.integers(0, 16)), rotary_dim, float(draw(st.integers(100, 1_000_000)))


_INV_FREQ = Exercise(
    id="rope.inv_freq",
    number="8.2",
    chapter="08_rope",
    title="Frequencies when part of a head turns",
    minutes=5,
    difficulty=1,
    function="inv_freq",
    reference=_inv_freq,
    inputs=_dimensions(),
    edges={"64 of 256 channels": (256, 64, 10000.0), "a whole head of 128": (128, 128, 500000.0)},
    properties=(
        Property("the fastest pair turns by 1 radian a token", lambda f, *sizes: (f(*sizes)[0], 1.0)),
        Property(
            "each frequency is the one before times base^(−2/rotary_dim)",
            lambda f, head_dim, rotary_dim, base: (
                f(head_dim, rotary_dim, base)[1:],
                f(head_dim, rotary_dim, base)[:-1] * base ** (-2 / rotary_dim),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _minus_lost,
            "The minus sign of the exponent is lost: these frequencies grow from 1, they should fall.",
            "what is the last frequency for rotary_dim = 8 and base 10000? It should be 0.001.",
        ),
        Mistake(
            _counted_from_one,
            "The exponent counts from 1: −(2g + 1)/rotary_dim. With g from 0, the first frequency is base⁰ = 1.",
            "which value does the first g have?",
        ),
        Mistake(
            _not_doubled,
            "The exponent is −g/rotary_dim; the 2 is missing. The slowest pair should come close to 1/base.",
            "how many pairs are there, and what is 2g/rotary_dim for the last of them?",
        ),
        Mistake(
            _doubled_twice,
            "The exponent is −4g/rotary_dim: the 2 is in it twice. np.arange(0, rotary_dim, 2) is 2g already.",
            "the last exponent should be a little above −1.",
        ),
        Mistake(
            _over_head_dim,
            "The exponent divides by head_dim. With partial rotary it divides by rotary_dim: "
            "the channels that turn have the whole range of frequencies.",
            "in which of the two numbers does the slowest pair come close to 1/base?",
        ),
        Mistake(
            _all_of_head_dim,
            "These are the frequencies of a head that turns as a whole; rotary_dim is not used. "
            "Only rotary_dim channels turn, so there are rotary_dim/2 frequencies.",
            "how many pairs do rotary_dim channels make?",
        ),
        Mistake(
            _ends_at_base,
            "This divides g by the number of pairs less 1, so that the last frequency is exactly 1/base. Some code for "
            "sinusoidal vectors does so; RoPE divides 2g by rotary_dim.",
            "compute the last exponent by hand for rotary_dim = 4.",
        ),
        Mistake(
            _base_ignored,
            "The base is fixed at 10000; the argument base is not used.",
            "is there a 10000 in your code?",
        ),
        Mistake(
            _one_a_channel,
            "The right frequencies, each twice: one for each channel. Asked for is one for each pair.",
            "what shape should the result have for rotary_dim = 8?",
        ),
        Mistake(
            _wavelengths,
            "These are wavelengths, 2π/θ, in tokens. Asked for are the frequencies θ, in radians a token.",
            "which of the two has no π in it?",
        ),
        Mistake(
            _whole_division,
            "Whole-number division makes every exponent 0, and every frequency 1.",
            "what is 2 // 8, and what is 2 / 8?",
        ),
    ),
    alternatives=(_inv_freq_loop, _inv_freq_exp),
)

# --- 8.3 the matrix that depends on the offset


def _matrix(p: int, d: int) -> Any:
    cos, sin = rope.cos_sin(np.full(d, p), rope.inv_freq(d))
    return rope.rotate(np.eye(d), cos, sin, layout="interleaved").T  # column j: where unit vector j goes


def _relative_matrix(m: int, n: int, d: int) -> Any:
    return _matrix(m, d).T @ _matrix(n, d)


def _blocks_at(angles: Any) -> Any:
    d = 2 * len(angles)
    out = np.zeros((d, d))
    for g, angle in enumerate(angles):
        c, s = np.cos(angle), np.sin(angle)
        out[2 * g : 2 * g + 2, 2 * g : 2 * g + 2] = [[c, -s], [s, c]]
    return out


def _thetas(d: int) -> Any:
    return BASE ** (-np.arange(0, d, 2) / d)


def _offset_turned_round(m: int, n: int, d: int) -> Any:
    return _blocks_at((m - n) * _thetas(d))


def _sum_of_positions(m: int, n: int, d: int) -> Any:
    return _blocks_at((m + n) * _thetas(d))


def _distance_only(m: int, n: int, d: int) -> Any:
    return _blocks_at(abs(n - m) * _thetas(d))


def _key_only(m: int, n: int, d: int) -> Any:
    return _blocks_at(n * _thetas(d))


def _entry_by_entry(m: int, n: int, d: int) -> Any:
    return _matrix(m, d).T * _matrix(n, d)


def _half_split_matrix(m: int, n: int, d: int) -> Any:
    c, s = np.diag(np.cos((n - m) * _thetas(d))), np.diag(np.sin((n - m) * _thetas(d)))
    return np.block([[c, -s], [s, c]])


def _one_angle(m: int, n: int, d: int) -> Any:
    return _blocks_at(np.full(d // 2, float(n - m)))


def _slow_exponent(m: int, n: int, d: int) -> Any:
    return _blocks_at((n - m) * BASE ** (-np.arange(d // 2) / d))


def _matrix_by_blocks(m: int, n: int, d: int) -> Any:
    return _blocks_at((n - m) * _thetas(d))


def _matrix_by_complex(m: int, n: int, d: int) -> Any:
    out, g = np.zeros((d, d)), np.arange(d // 2)
    z = np.exp(1j * (n - m) * _thetas(d))
    out[2 * g, 2 * g] = out[2 * g + 1, 2 * g + 1] = z.real
    out[2 * g + 1, 2 * g], out[2 * g, 2 * g + 1] = z.imag, -z.imag
    return out


_RELATIVE = Exercise(
    id="rope.relative_matrix",
    number="8.3",
    chapter="08_rope",
    title="The matrix between query and key",
    minutes=10,
    difficulty=2,
    function="relative_matrix",
    reference=_relative_matrix,
    inputs=st.tuples(st.sampled_from(range(13)), st.sampled_from(range(13)), sizes(2, 4, 6)),
    edges={"positions near 131,071": (131_071, 131_068, 6), "a head of 32 channels": (3, 11, 32)},
    properties=(
        Property("the same matrix when both positions grow by 7", lambda f, m, n, d: (f(m, n, d), f(m + 7, n + 7, d))),
        Property("exchanging the positions transposes it", lambda f, m, n, d: (f(m, n, d).T, f(n, m, d))),
        Property("it keeps lengths", lambda f, m, n, d: (f(m, n, d) @ f(m, n, d).T, np.eye(d))),
    ),
    mistakes=(
        Mistake(
            _offset_turned_round,
            "This is the transpose, R at m − n. For column vectors the score is qᵀ R(n − m) k: "
            "R_mᵀ turns back by m, R_n turns on by n.",
            "with m = 0, the matrix should be R_n itself.",
        ),
        Mistake(
            _sum_of_positions,
            "This turns by m + n: R_m R_n, without the transpose of the first. It still knows absolute positions.",
            "what should come out if m = n?",
        ),
        Mistake(
            _distance_only,
            "This uses the distance |n − m|, so that past and future look the same.",
            "compare (m, n) = (3, 1) and (1, 3): the two matrices should be transposes of each other.",
        ),
        Mistake(
            _key_only,
            "This is R_n: the position of the query is not in it.",
            "what should come out if m = n?",
        ),
        Mistake(
            _entry_by_entry,
            "The two matrices are multiplied entry by entry (*). The matrix product is @.",
            "the product should keep lengths; does yours?",
        ),
        Mistake(
            _half_split_matrix,
            "These are the right numbers in the half-split layout, pairs (g, g + d/2). "
            "Here neighbours are pairs, so there are 2 × 2 blocks along the diagonal.",
            "which channels does row 0 of the matrix mix?",
        ),
        Mistake(
            _one_angle,
            "All pairs turn by the same angle n − m. Pair g should turn by (n − m)·θ_g.",
            "look at the last block: it should be close to the identity for small offsets.",
        ),
        Mistake(
            _slow_exponent,
            "The exponent is −g/d; asked for is θ_g = 10000^(−2g/d).",
            "what are the two frequencies for d = 4? They should be 1 and 0.01.",
        ),
    ),
    alternatives=(_matrix_by_blocks, _matrix_by_complex),
)

# --- 8.4 convert the projections of a model


def _convert(w_q: Any, w_k: Any, head_dim: int) -> Any:
    q, k = (layouts.convert_projection(w, head_dim=head_dim, source="interleaved", target="half") for w in (w_q, w_k))
    return q, k


def _heads_permuted(w: Any, order: Any) -> Any:
    return w.reshape(-1, len(order), w.shape[-1])[:, order].reshape(w.shape)


def _to_half(head_dim: int) -> Any:
    return np.r_[0:head_dim:2, 1:head_dim:2]


def _heads_ignored(w_q: Any, w_k: Any, head_dim: int) -> Any:
    return w_q[_to_half(len(w_q))], w_k[_to_half(len(w_k))]


def _other_way(w_q: Any, w_k: Any, head_dim: int) -> Any:
    back = np.argsort(_to_half(head_dim))
    return _heads_permuted(w_q, back), _heads_permuted(w_k, back)


def _heads_of_q(w_q: Any, w_k: Any, head_dim: int) -> Any:
    heads = len(w_q) // head_dim
    return tuple(w.reshape(heads, -1, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape) for w in (w_q, w_k))


def _width_left_to_reshape(w_q: Any, w_k: Any, head_dim: int) -> Any:
    heads = len(w_q) // head_dim
    q, k = (w.reshape(heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(w.shape) for w in (w_q, w_k))
    return q, k


def _queries_only(w_q: Any, w_k: Any, head_dim: int) -> Any:
    return _convert(w_q, w_k, head_dim)[0], w_k


def _second_first(w_q: Any, w_k: Any, head_dim: int) -> Any:
    order = np.roll(_to_half(head_dim), head_dim // 2)
    return _heads_permuted(w_q, order), _heads_permuted(w_k, order)


def _reversed(w_q: Any, w_k: Any, head_dim: int) -> Any:
    order = np.arange(head_dim).reshape(2, -1)[::-1].ravel()
    return _heads_permuted(w_q, order), _heads_permuted(w_k, order)


def _not_converted(w_q: Any, w_k: Any, head_dim: int) -> Any:
    return w_q, w_k


def _convert_reshaped(w_q: Any, w_k: Any, head_dim: int) -> Any:
    q, k = (w.reshape(-1, head_dim // 2, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape) for w in (w_q, w_k))
    return q, k


def _convert_loops(w_q: Any, w_k: Any, head_dim: int) -> Any:
    out = np.zeros_like(w_q), np.zeros_like(w_k)
    for new, old in zip(out, (w_q, w_k), strict=True):
        for row in range(len(old)):
            head, channel = divmod(row, head_dim)
            new[head * head_dim + channel % 2 * (head_dim // 2) + channel // 2] = old[row]
    return out


@st.composite
def _projections(draw: Any) -> Any:
    head_dim, kv_heads, group, d_model = draw(sizes(4, 6, 8)), draw(sizes(1, 2)), draw(sizes(3, 1)), draw(sizes(1, 2))
    return draw(quarters(group * kv_heads * head_dim, d_model)), draw(quarters(kv_heads * head_dim, d_model)), head_dim


def _same_logits(convert: Any, w_q: Any, w_k: Any, head_dim: int) -> Any:
    x = 1.0 / (1.0 + np.arange(2 * w_q.shape[-1]).reshape(2, -1))  # two tokens, unlike each other
    cos, sin = rope.cos_sin(np.array([3, 8]), rope.inv_freq(head_dim))

    def logits(weights: Any, layout: layouts.Layout) -> Any:
        q, k = ((x @ w.T).reshape(2, -1, head_dim).swapaxes(0, 1) for w in weights)
        k = np.repeat(k, len(q) // len(k), axis=0)
        return rope.rotate(q, cos, sin, layout=layout) @ rope.rotate(k, cos, sin, layout=layout).swapaxes(1, 2)

    return logits((w_q, w_k), "interleaved"), logits(convert(w_q, w_k, head_dim), "half")


def _numbered(heads: int, head_dim: int) -> Any:
    return np.arange(1.0, heads * head_dim + 1)[:, None]


_CONVERT = Exercise(
    id="rope.convert_weights",
    number="8.4",
    chapter="08_rope",
    title="Move a model to the other layout",
    minutes=15,
    difficulty=3,
    function="convert_weights",
    reference=_convert,
    inputs=_projections(),
    edges={
        "6 query heads, 2 key heads, d = 8": (_numbered(6, 8), _numbered(2, 8), 8),
        "3 query heads, 1 key head, d = 6": (_numbered(3, 6), _numbered(1, 6), 6),
        "one head, d = 4": (_numbered(1, 4), -_numbered(1, 4), 4),
    },
    properties=(Property("the logits of the model stay the same", _same_logits),),
    mistakes=(
        Mistake(
            _heads_ignored,
            "All rows were reordered at once, across heads. The permutation belongs inside each head of head_dim rows.",
            "in the result, do the first head_dim rows still come from the first head?",
        ),
        Mistake(
            _other_way,
            "This is the inverse, from half-split to interleaved. Asked for is from interleaved to half-split.",
            "for one head of 4 rows, the result should have rows 0, 2, 1, 3; for 8 rows 0, 2, 4, 6, 1, 3, 5, 7.",
        ),
        Mistake(
            _heads_of_q,
            "The weight w_k was cut into as many heads as w_q has. With grouped-query attention it has fewer; "
            "what both share is head_dim.",
            "get the number of heads of each weight from its own shape: rows // head_dim.",
        ),
        Mistake(
            _width_left_to_reshape,
            "This fails or goes wrong where w_k has fewer rows than w_q, as with grouped-query attention. Each weight "
            "has a number of heads of its own; what both share is head_dim.",
            "leave the number of heads to reshape: w.reshape(-1, head_dim, d_model).",
        ),
        Mistake(
            _queries_only,
            "Only w_q was converted. A dot product stays the same only if both sides are permuted.",
            "which vectors meet in the dot product?",
        ),
        Mistake(
            _second_first,
            "The odd rows of each head come first. The first half should hold the first component of each pair.",
            "where should row 0 of a head end up?",
        ),
        Mistake(
            _reversed,
            "The two halves of each head were exchanged. The rows of a pair are neighbours and must be parted: "
            "even rows first, then odd ones.",
            "write down which rows are pair 0 before, and which after.",
        ),
        Mistake(
            _not_converted,
            "The weights come back as they were. Each head's even rows should come first, then its odd rows.",
            "which rows of a head of 4 change places?",
        ),
    ),
    alternatives=(_convert_reshaped, _convert_loops),
)

# --- 8.5 decode with a cache of turned keys


def _turned(x: Any, positions: Any) -> Any:
    cos, sin = rope.cos_sin(positions, rope.inv_freq(x.shape[-1]))
    return rope.rotate(x, cos, sin, layout="half")


def _decoded(q: Any, k: Any, k_cache: Any, q_at: Any, k_at: Any, turn: Any = _turned) -> Any:
    keys = np.concatenate([k_cache, turn(k, k_at)], axis=1)
    return turn(q, q_at) @ keys.swapaxes(1, 2) / np.sqrt(q.shape[-1]), keys


def _new(q: Any, k_cache: Any) -> Any:
    return k_cache.shape[1] + np.arange(q.shape[1])


def _decode(q: Any, k: Any, k_cache: Any) -> Any:
    return _decoded(q, k, k_cache, _new(q, k_cache), _new(q, k_cache))


def _from_zero(q: Any, k: Any, k_cache: Any) -> Any:
    at = np.arange(q.shape[1])
    return _decoded(q, k, k_cache, at, at)


def _query_from_zero(q: Any, k: Any, k_cache: Any) -> Any:
    return _decoded(q, k, k_cache, np.arange(q.shape[1]), _new(q, k_cache))


def _query_not_turned(q: Any, k: Any, k_cache: Any) -> Any:
    return _decoded(q, k, k_cache, 0 * np.arange(q.shape[1]), _new(q, k_cache))


def _key_not_turned(q: Any, k: Any, k_cache: Any) -> Any:
    return _decoded(q, k, k_cache, _new(q, k_cache), 0 * np.arange(q.shape[1]))


def _turned_twice(q: Any, k: Any, k_cache: Any) -> Any:
    at = np.arange(k_cache.shape[1] + k.shape[1])
    keys = _turned(np.concatenate([k_cache, k], axis=1), at)
    return _turned(q, _new(q, k_cache)) @ keys.swapaxes(1, 2) / np.sqrt(q.shape[-1]), keys


def _one_late(q: Any, k: Any, k_cache: Any) -> Any:
    return _decoded(q, k, k_cache, _new(q, k_cache) + 1, _new(q, k_cache) + 1)


def _length_after(q: Any, k: Any, k_cache: Any) -> Any:
    at = _new(q, k_cache) + q.shape[1]
    return _decoded(q, k, k_cache, at, at)


def _all_at_one_place(q: Any, k: Any, k_cache: Any) -> Any:
    at = np.full(q.shape[1], k_cache.shape[1])
    return _decoded(q, k, k_cache, at, at)


def _decode_interleaved(q: Any, k: Any, k_cache: Any) -> Any:
    return _decoded(q, k, k_cache, _new(q, k_cache), _new(q, k_cache), _rotate)


def _decode_clockwise(q: Any, k: Any, k_cache: Any) -> Any:
    return _decoded(q, k, k_cache, -_new(q, k_cache), -_new(q, k_cache))


def _decode_unscaled(q: Any, k: Any, k_cache: Any) -> Any:
    scores, keys = _decode(q, k, k_cache)
    return scores * np.sqrt(q.shape[-1]), keys


def _decode_masked(q: Any, k: Any, k_cache: Any) -> Any:
    scores, keys = _decode(q, k, k_cache)
    seen = np.arange(keys.shape[1])[None, :] <= _new(q, k_cache)[:, None]
    return np.where(seen, scores, -np.inf), keys


def _decode_slow(q: Any, k: Any, k_cache: Any) -> Any:
    def turn(x: Any, positions: Any) -> Any:
        cos, sin = rope.cos_sin(positions, BASE ** (-np.arange(x.shape[-1] // 2) / x.shape[-1]))
        return rope.rotate(x, cos, sin, layout="half")

    return _decoded(q, k, k_cache, _new(q, k_cache), _new(q, k_cache), turn)


def _decode_loops(q: Any, k: Any, k_cache: Any) -> Any:
    keys = k_cache
    rows = []
    for t in range(q.shape[1]):
        at = np.array([k_cache.shape[1] + t])
        keys = np.concatenate([keys, _half_split(k[:, t : t + 1], at)], axis=1)
        rows.append(_half_split(q[:, t : t + 1], at))
    return np.concatenate(rows, axis=1) @ keys.swapaxes(1, 2) / q.shape[-1] ** 0.5, keys


def _decode_complex(q: Any, k: Any, k_cache: Any) -> Any:
    def turn(x: Any) -> Any:
        x1, x2 = np.split(x, 2, axis=-1)
        z = (x1 + 1j * x2) * np.exp(1j * _angles(x, _new(q, k_cache)))
        return np.concatenate([z.real, z.imag], axis=-1)

    keys = np.concatenate([k_cache, turn(k)], axis=1)
    return np.einsum("hmd,hnd->hmn", turn(q), keys) / np.sqrt(q.shape[-1]), keys


@st.composite
def _step(draw: Any) -> Any:
    heads, past, new, pairs = draw(sizes(1, 3)), draw(sizes(1, 0, 3)), draw(sizes(1, 2)), draw(sizes(1, 2, 3))
    q, k = draw(quarters(heads, new, 2 * pairs)), draw(quarters(heads, new, 2 * pairs))
    return q, k, draw(quarters(heads, past, 2 * pairs))


def _one_by_one(decode: Any, q: Any, k: Any, k_cache: Any) -> Any:
    whole, keys = decode(q, k, k_cache)
    for t in range(q.shape[1]):
        row, k_cache = decode(q[:, t : t + 1], k[:, t : t + 1], k_cache)
    return (whole[:, -1:], keys), (row, k_cache)


_DECODE = Exercise(
    id="rope.decode_scores",
    number="8.5",
    chapter="08_rope",
    title="Scores of new tokens against a cache",
    minutes=15,
    difficulty=3,
    kinds=("cache",),
    function="decode_scores",
    reference=_decode,
    inputs=_step(),
    edges={
        "three new tokens behind 900": (
            np.cos(np.arange(2 * 3 * 4.0)).reshape(2, 3, 4),
            np.sin(np.arange(2 * 3 * 4.0)).reshape(2, 3, 4),
            np.cos(np.arange(2 * 900 * 4.0) ** 2).reshape(2, 900, 4),
        ),
    },
    properties=(
        Property("the last token has the same scores when tokens come one by one", _one_by_one),
        Property(
            "keys in the cache stay as they are",
            lambda decode, q, k, k_cache: (decode(q, k, k_cache)[1][:, : k_cache.shape[1]], k_cache),
        ),
    ),
    mistakes=(
        Mistake(
            _from_zero,
            "The new tokens are counted from 0. Behind a cache of P keys, they stand at P, P + 1 and so on.",
            "how many tokens come before the first new one?",
        ),
        Mistake(
            _query_from_zero,
            "The new keys stand at their right positions, but the new queries are counted from 0.",
            "turn q by the same positions as k.",
        ),
        Mistake(
            _query_not_turned,
            "The new queries are not turned at all, as if each stood at position 0.",
            "which of q, k and k_cache come to you turned, and which do not?",
        ),
        Mistake(
            _key_not_turned,
            "The new keys are stored without being turned. The cache holds keys turned by their positions.",
            "what has to happen to k before it joins the cache?",
        ),
        Mistake(
            _turned_twice,
            "The keys in the cache are turned a second time. They were turned when they were stored.",
            "which rows of the result should equal k_cache exactly?",
        ),
        Mistake(
            _one_late,
            "All new tokens stand one position too far. Behind P cached keys, the first new token is at P, not P + 1.",
            "what is the position of the very first token, when the cache is empty?",
        ),
        Mistake(
            _length_after,
            "The positions start at the length of the cache with the new keys. They start at its length without them.",
            "read the length of k_cache, not of the keys you return.",
        ),
        Mistake(
            _all_at_one_place,
            "All new tokens stand at one position, P. The second one stands at P + 1, and so on.",
            "check an input with two new tokens.",
        ),
        Mistake(
            _decode_interleaved,
            "The new tokens are turned in the interleaved layout, pairs (2g, 2g + 1). "
            "This cache is half-split: (g, g + d/2).",
            "which channel is the partner of channel 0 for d = 4?",
        ),
        Mistake(
            _decode_clockwise,
            "The new tokens are turned clockwise. The keys in the cache were turned counter-clockwise.",
            "check the signs of the two sine terms.",
        ),
        Mistake(
            _decode_unscaled,
            "The scores are not divided by √d.",
            "which d is it: the head dimension, or the number of pairs?",
        ),
        Mistake(
            _decode_masked,
            "Scores of later tokens are −inf: a causal mask. It is right in a model, but here no mask is asked for.",
            "return the scores before the mask.",
        ),
        Mistake(
            _decode_slow,
            "The exponent is −g/d; asked for is θ_g = 10000^(−2g/d).",
            "what are the two frequencies for d = 4? They should be 1 and 0.01.",
        ),
    ),
    alternatives=(_decode_loops, _decode_complex),
)

# --- 8.6 a cache that stops growing


def _evict(k_cache: Any, sinks: int, window: int) -> Any:
    seq = k_cache.shape[1]
    if seq <= sinks + window:
        return k_cache
    kept = np.r_[0:sinks, seq - window : seq]
    return _turned(k_cache[:, kept], np.arange(sinks + window) - kept)


def _kept(k_cache: Any, sinks: int, window: int, move_sinks: Any, move_recent: Any, turn: Any = _turned) -> Any:
    seq = k_cache.shape[1]
    if seq <= sinks + window:
        return k_cache
    move = np.r_[np.broadcast_to(move_sinks, sinks), np.broadcast_to(move_recent, window)]
    return turn(k_cache[:, np.r_[0:sinks, seq - window : seq]], move)


def _gap(k_cache: Any, sinks: int, window: int) -> int:
    return int(k_cache.shape[1] - sinks - window)


def _not_moved(k_cache: Any, sinks: int, window: int) -> Any:
    return _kept(k_cache, sinks, window, 0, 0)


def _moved_ahead(k_cache: Any, sinks: int, window: int) -> Any:
    return _kept(k_cache, sinks, window, 0, _gap(k_cache, sinks, window))


def _all_moved(k_cache: Any, sinks: int, window: int) -> Any:
    gap = _gap(k_cache, sinks, window)
    return _kept(k_cache, sinks, window, -gap, -gap)


def _moved_onto_sinks(k_cache: Any, sinks: int, window: int) -> Any:
    return _kept(k_cache, sinks, window, 0, window - k_cache.shape[1])


def _turned_to_new(k_cache: Any, sinks: int, window: int) -> Any:
    return _kept(k_cache, sinks, window, np.arange(sinks), sinks + np.arange(window))


def _turned_back_only(k_cache: Any, sinks: int, window: int) -> Any:
    seq = k_cache.shape[1]
    return _kept(k_cache, sinks, window, -np.arange(sinks), -np.arange(seq - window, seq))


def _one_short(k_cache: Any, sinks: int, window: int) -> Any:
    return _kept(k_cache, sinks, window, 0, 1 - _gap(k_cache, sinks, window))


def _evict_interleaved(k_cache: Any, sinks: int, window: int) -> Any:
    return _kept(k_cache, sinks, window, 0, -_gap(k_cache, sinks, window), _rotate)


def _oldest_kept(k_cache: Any, sinks: int, window: int) -> Any:
    return k_cache[:, : sinks + window]


def _no_guard(k_cache: Any, sinks: int, window: int) -> Any:
    seq = k_cache.shape[1]
    recent = _turned(k_cache[:, max(seq - window, 0) :], np.array([sinks + window - seq]))
    return np.concatenate([k_cache[:, :sinks], recent], axis=1)


def _evict_slow(k_cache: Any, sinks: int, window: int) -> Any:
    def turn(x: Any, positions: Any) -> Any:
        cos, sin = rope.cos_sin(positions, BASE ** (-np.arange(x.shape[-1] // 2) / x.shape[-1]))
        return rope.rotate(x, cos, sin, layout="half")

    return _kept(k_cache, sinks, window, 0, -_gap(k_cache, sinks, window), turn)


def _evict_in_two_steps(k_cache: Any, sinks: int, window: int) -> Any:
    seq = k_cache.shape[1]
    if seq <= sinks + window:
        return k_cache.copy()
    recent = _half_split(k_cache[:, seq - window :], -np.arange(seq - window, seq))  # back to position 0
    recent = _half_split(recent, np.arange(sinks, sinks + window))
    return np.concatenate([k_cache[:, :sinks], recent], axis=1)


def _evict_complex(k_cache: Any, sinks: int, window: int) -> Any:
    gap, half = max(_gap(k_cache, sinks, window), 0), k_cache.shape[-1] // 2
    z = k_cache[..., :half] + 1j * k_cache[..., half:]
    theta = BASE ** (-np.arange(0, 2 * half, 2) / (2 * half))
    recent = z[:, sinks + gap :] * np.exp(-1j * gap * theta)
    z = np.concatenate([z[:, :sinks], recent], axis=1)
    return np.concatenate([z.real, z.imag], axis=-1)


@st.composite
def _caches(draw: Any) -> Any:
    heads, seq, pairs = draw(sizes(1, 3)), draw(sizes(2, 4, 5, 7)), draw(sizes(1, 2, 3))
    return draw(quarters(heads, seq, 2 * pairs)), draw(sizes(1, 0, 2)), draw(sizes(1, 2, 3))


def _same_view(evict: Any, k_cache: Any, sinks: int, window: int) -> Any:
    """Scores of the window for the next query, before and after."""
    after, q = evict(k_cache, sinks, window), 1.0 + np.arange(k_cache.shape[-1])[None]
    recent = min(window, k_cache.shape[1])
    scores = [_turned(q, np.array([c.shape[1]])) @ c[:, c.shape[1] - recent :].swapaxes(1, 2) for c in (k_cache, after)]
    return scores[0], scores[1]


_RING = np.cos(np.arange(3 * 40 * 6.0) ** 2).reshape(3, 40, 6)

_RE_ROTATE = Exercise(
    id="rope.rerotate",
    number="8.6",
    chapter="08_rope",
    title="A cache that stops growing",
    minutes=20,
    difficulty=4,
    kinds=("cache",),
    function="evict",
    reference=_evict,
    inputs=_caches(),
    edges={"40 keys, 4 and 8 kept": (_RING, 4, 8), "a cache with room left": (_RING, 30, 30)},
    properties=(
        Property("the next query scores the window as before", _same_view),
        Property(
            "the first keys stay as they are",
            lambda evict, k_cache, sinks, window: (evict(k_cache, sinks, window)[:, :sinks], k_cache[:, :sinks]),
        ),
        Property(
            "evicting twice is evicting once",
            lambda evict, k_cache, sinks, window: (
                evict(evict(k_cache, sinks, window), sinks, window),
                evict(k_cache, sinks, window),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _not_moved,
            "The right keys are kept, but they still carry the angles of their old positions.",
            "by how many positions does the oldest key of the window move?",
        ),
        Mistake(
            _moved_ahead,
            "The window is turned ahead instead of back. A key that moves from 9 to 6 is turned by −3.",
            "new position minus old position: which sign has it?",
        ),
        Mistake(
            _all_moved,
            "The first keys are turned too. They stay at positions 0, 1, …; only the window moves.",
            "what are the old and the new position of key 0?",
        ),
        Mistake(
            _moved_onto_sinks,
            "The window was moved to position 0, where the first keys stand already. It starts at position `sinks`.",
            "write down all new positions; each should appear once.",
        ),
        Mistake(
            _turned_to_new,
            "The kept keys are turned by their new positions on top of the old ones. Turns add up: "
            "a stored key needs only the difference.",
            "R_a R_b = R_(a+b): which a takes a key from b = 9 to 6?",
        ),
        Mistake(
            _turned_back_only,
            "The kept keys are turned back to position 0 and left there. They must go on to their new positions.",
            "a turn by −old takes a key to 0; which turn takes it from there to its new place?",
        ),
        Mistake(
            _one_short,
            "The window is moved by one position too few.",
            "count the dropped keys: their number is the length minus sinks minus window.",
        ),
        Mistake(
            _evict_interleaved,
            "The window is turned in the interleaved layout, pairs (2g, 2g + 1). "
            "This cache is half-split: (g, g + d/2).",
            "which channel is the partner of channel 0 for d = 4?",
        ),
        Mistake(
            _oldest_kept,
            "These are the oldest keys. Asked for are the first `sinks` and the last `window` ones.",
            "which key should be the last one in the result?",
        ),
        Mistake(
            _no_guard,
            "A cache that has room left is changed as well. Up to sinks + window keys, nothing is dropped or moved.",
            "what should come out of a cache with one key?",
        ),
        Mistake(
            _evict_slow,
            "The exponent is −g/d; asked for is θ_g = 10000^(−2g/d).",
            "what are the two frequencies for d = 4? They should be 1 and 0.01.",
        ),
    ),
    alternatives=(_evict_in_two_steps, _evict_complex),
)

# --- 8.7 where a pair looks: derive, then check


def _peak(q: Any, k: Any, theta: float) -> Any:
    h = complex(q[0], -q[1]) * complex(*k)  # the score at offset Δ is Re(h e^{iΔθ})
    return float(-np.angle(h) / theta), abs(h)


def _directions(q: Any, k: Any) -> Any:
    return np.arctan2(q[1], q[0]), np.arctan2(k[1], k[0])


def _folded(angle: Any) -> Any:
    """The same angle in (−π, π]."""
    return np.pi - (np.pi - angle) % (2 * np.pi)


def _lengths(q: Any, k: Any) -> float:
    return float(np.linalg.norm(q) * np.linalg.norm(k))


def _key_minus_query(q: Any, k: Any, theta: float) -> Any:
    at, score = _peak(q, k, theta)
    return -at, score


def _not_folded(q: Any, k: Any, theta: float) -> Any:
    to, start = _directions(q, k)
    return float((to - start) / theta), _lengths(q, k)


def _angle_for_offset(q: Any, k: Any, theta: float) -> Any:
    at, score = _peak(q, k, theta)
    return at * theta, score


def _times_theta(q: Any, k: Any, theta: float) -> Any:
    at, score = _peak(q, k, theta)
    return at * theta**2, score


def _half_plane_lost(q: Any, k: Any, theta: float) -> Any:
    tangent = (k[0] * q[1] - k[1] * q[0]) / (q @ k)
    return float(np.arctan(tangent) / theta), _lengths(q, k)


def _score_at_zero(q: Any, k: Any, theta: float) -> Any:
    return _peak(q, k, theta)[0], float(q @ k)


def _offset_unsigned(q: Any, k: Any, theta: float) -> Any:
    at, score = _peak(q, k, theta)
    return abs(at), score


def _next_one_ahead(q: Any, k: Any, theta: float) -> Any:
    to, start = _directions(q, k)
    return float((to - start) % (2 * np.pi) / theta), _lengths(q, k)


def _whole_tokens(q: Any, k: Any, theta: float) -> Any:
    at, score = _peak(q, k, theta)
    return float(np.round(at)), score


def _lowest(q: Any, k: Any, theta: float) -> Any:
    at, score = _peak(q, k, theta)
    return float(_folded(at * theta + np.pi) / theta), -score


def _sum_of_directions(q: Any, k: Any, theta: float) -> Any:
    to, start = _directions(q, k)
    return float(_folded(to + start) / theta), _lengths(q, k)


def _no_turn(q: Any, k: Any, theta: float) -> Any:
    return 0.0, float(q @ k)


def _peak_from_directions(q: Any, k: Any, theta: float) -> Any:
    to, start = _directions(q, k)
    return _folded(to - start) / theta, _lengths(q, k)


def _peak_from_two_scores(q: Any, k: Any, theta: float) -> Any:
    here, quarter = q @ k, q[1] * k[0] - q[0] * k[1]  # the score at Δθ = 0 and at a quarter turn
    return math.atan2(quarter, here) / theta, math.hypot(here, quarter)


def _peak_by_bisection(q: Any, k: Any, theta: float) -> Any:
    def score(angle: float) -> Any:
        c, s = math.cos(angle), math.sin(angle)
        return q[0] * (c * k[0] - s * k[1]) + q[1] * (s * k[0] + c * k[1])

    start = max(np.arange(-4, 5) * np.pi / 4, key=score)  # at most an eighth of a turn away
    low, high = start - np.pi / 4, start + np.pi / 4
    for _ in range(80):  # the slope is the score a quarter turn on
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle + np.pi / 2) > 0 else (low, middle)
    return float(_folded(low) / theta), float(score(low))


def _one_peak(inputs: Any) -> bool:
    q, k, _ = inputs
    across, along = q[0] * k[1] - q[1] * k[0], q @ k
    return bool(across != 0 or along > 0)  # else a vector is 0, or two offsets are equally near


def _score_there(peak: Any, q: Any, k: Any, theta: float) -> Any:
    at, score = peak(q, k, theta)
    return float(q @ _blocks_at([at * theta]) @ k), score


def _nothing_higher(peak: Any, q: Any, k: Any, theta: float) -> Any:
    score = peak(q, k, theta)[1]
    return all(q @ _blocks_at([angle]) @ k <= score + 1e-9 for angle in np.linspace(-3, 3, 25)), True


_PEAK = Exercise(
    id="rope.peak",
    number="8.7",
    chapter="08_rope",
    title="Where a pair looks",
    minutes=15,
    difficulty=3,
    function="peak",
    reference=_peak,
    inputs=st.tuples(quarters(2), quarters(2), st.sampled_from([1.0, 0.5, 0.1, 0.01])).filter(_one_peak),
    edges={
        "a key that must turn ahead by 2.5 radians": (
            np.array([np.cos(2.0), np.sin(2.0)]),
            np.array([3 * np.cos(-0.5), 3 * np.sin(-0.5)]),
            1.0,
        ),
        "directions on both sides of the cut at π": (np.array([-1.0, 0.25]), np.array([-1.0, -0.5]), 0.1),
    },
    properties=(
        Property("the score at that offset is the score returned", _score_there),
        Property("no other offset scores higher", _nothing_higher),
        Property(
            "exchanging query and key turns the offset round",
            lambda peak, q, k, theta: (peak(q, k, theta)[0], -peak(k, q, theta)[0]),
        ),
    ),
    mistakes=(
        Mistake(
            _key_minus_query,
            "The offset has the wrong sign. Asked for is n − m, which turns the key ahead: "
            "φ_k + (n − m)·θ must reach φ_q.",
            "take q = (0, 1) and k = (1, 0). Must the key turn counter-clockwise or clockwise?",
        ),
        Mistake(
            _not_folded,
            "This is one of the offsets with the largest score, but not always the one nearest 0: the angle can lie "
            "beyond half a turn.",
            "fold φ_q − φ_k into −π … π before you divide by θ.",
        ),
        Mistake(
            _angle_for_offset,
            "This is the angle in radians. The offset is a number of tokens: each token turns the pair by θ.",
            "how many tokens does it take to turn by 1 radian, if θ is 0.1?",
        ),
        Mistake(
            _times_theta,
            "The angle is multiplied by θ. A slow pair needs more tokens for the same angle, not fewer: divide.",
            "how many tokens does it take to turn by 1 radian, if θ is 0.1?",
        ),
        Mistake(
            _half_plane_lost,
            "The arctan of a quotient cannot tell a direction from its opposite: both signs cancel in the quotient.",
            "np.arctan2(y, x) takes the two numbers apart.",
        ),
        Mistake(
            _score_at_zero,
            "The offset is right. The second number is q·k, the score at offset 0; asked for is the score at the peak.",
            "what is |q|·|k|·cos 0?",
        ),
        Mistake(
            _offset_unsigned,
            "The sign of the offset is lost. A pair that looks back and one that looks ahead are not the same.",
            "exchange q and k: the offset should change its sign.",
        ),
        Mistake(
            _next_one_ahead,
            "This is the nearest such offset that is not negative. Asked for is the nearest one on either side.",
            "what is the offset if the key is a little ahead of the query?",
        ),
        Mistake(
            _whole_tokens,
            "The offset is rounded to whole tokens. Asked for is the real number where the cosine is largest.",
            "leave out the rounding.",
        ),
        Mistake(
            _lowest,
            "This is where the score is lowest, half a turn away.",
            "which angle between two arrows makes their dot product largest?",
        ),
        Mistake(
            _sum_of_directions,
            "The two directions are added. The score depends on the angle *between* query and key, a difference.",
            "what should come out for k = q?",
        ),
        Mistake(
            _no_turn,
            "This is offset 0 and its score q·k. The score changes with the offset, and is larger elsewhere "
            "unless q and k point the same way.",
            "print |q|·|k| beside q·k.",
        ),
    ),
    alternatives=(_peak_from_directions, _peak_from_two_scores, _peak_by_bisection),
    kinds=("derive",),
)

# --- 8.8 a layer that survives half precision, in PyTorch


def _rotary(x: Any, positions: Any, rotary_dim: int, base: float) -> Any:
    cos, sin = (np.expand_dims(t, -3) for t in rope.cos_sin(positions, rope.inv_freq(rotary_dim, base=base)))
    y = rope.rotate(x, cos, sin, layout="half")
    return y, y.astype(np.float32), True, 0, x[:, :, :1]  # the last: position 0 turns nothing


def _use_rotary(answer: "Any", x: "Any", positions: "Any", rotary_dim: int, base: float) -> "Any":
    import torch

    layer = answer(rotary_dim, base)
    first = layer(x[:, :, :1], 0 * positions[..., :1])  # one token at position 0
    layer(x, 0 * positions)  # what one call leaves must not spoil the next
    y = layer(x, positions)
    single = layer(x.float(), positions)
    same = single.dtype == torch.float32 and bool((single - y.float()).abs().max() < 4e-6)
    layer = layer.to(torch.bfloat16)
    half = layer(x.to(torch.bfloat16), positions)
    return y, half.float(), half.dtype == torch.bfloat16 and same, len(layer.state_dict()), first


def _layer(rotary_dim: int, base: float, forward: Any, **buffers: Any) -> Any:
    import torch

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = _torch_theta(rotary_dim, base)
            for name, tensor in buffers.items():
                self.register_buffer(name, tensor.clone(), persistent=name == "kept")

        def forward(self, x: Any, positions: Any) -> Any:
            return forward(self, x, positions)

    return Layer()


def _torch_theta(rotary_dim: int, base: float) -> Any:
    import torch

    return base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)


def _torch_tables(theta: Any, positions: Any) -> Any:
    angles = positions[..., None] * theta
    return angles.cos().unsqueeze(-3), angles.sin().unsqueeze(-3)


def _torch_half_split(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    half = cos.shape[-1]
    x1, x2, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin, rest], dim=-1)


def _cast_last(x: Any, cos: Any, sin: Any, turn: Any = _torch_half_split) -> Any:
    return turn(x.double(), cos.double(), sin.double()).to(x.dtype)


def _each_call(rotary_dim: int, base: float) -> Any:
    return _layer(rotary_dim, base, lambda layer, x, p: _cast_last(x, *_torch_tables(layer.theta, p)))


def _theta_in_a_buffer(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        return _cast_last(x, *_torch_tables(layer.frequencies.double(), p))

    return _layer(rotary_dim, base, forward, frequencies=_torch_theta(rotary_dim, base))


def _tables_in_buffers(rotary_dim: int, base: float) -> Any:
    import torch

    def forward(layer: Any, x: Any, p: Any) -> Any:
        return _cast_last(x, layer.cos[p].unsqueeze(-3), layer.sin[p].unsqueeze(-3))

    cos, sin = (t[0] for t in _torch_tables(_torch_theta(rotary_dim, base), torch.arange(5000)))
    return _layer(rotary_dim, base, forward, cos=cos, sin=sin)


def _stored_with_the_weights(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        return _cast_last(x, *_torch_tables(layer.theta, p))

    return _layer(rotary_dim, base, forward, kept=_torch_theta(rotary_dim, base))


def _positions_cast_first(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        return _cast_last(x, *_torch_tables(layer.theta, p.to(x.dtype).double()))

    return _layer(rotary_dim, base, forward)


def _tables_cast_first(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        return _torch_half_split(x, *(t.to(x.dtype) for t in _torch_tables(layer.theta, p)))

    return _layer(rotary_dim, base, forward)


def _not_cast_back(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        return _torch_half_split(x, *_torch_tables(layer.theta, p))

    return _layer(rotary_dim, base, forward)


def _float32_throughout(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        return _torch_half_split(x.float(), *_torch_tables(layer.theta.float(), p)).to(x.dtype)

    return _layer(rotary_dim, base, forward)


def _one_row_for_all(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        return _cast_last(x, *_torch_tables(layer.theta, p if p.ndim == 1 else p[0]))

    return _layer(rotary_dim, base, forward)


def _no_axis_for_heads(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        return _cast_last(x, *(t.squeeze(-3) for t in _torch_tables(layer.theta, p)))

    return _layer(rotary_dim, base, forward)


def _table_of_the_first_call(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        if not hasattr(layer, "tables"):
            layer.tables = _torch_tables(layer.theta, p)
        return _cast_last(x, *layer.tables)

    return _layer(rotary_dim, base, forward)


def _over_all_channels(rotary_dim: int, base: float) -> Any:
    def forward(layer: Any, x: Any, p: Any) -> Any:
        theta = _torch_theta(x.shape[-1], base)[: rotary_dim // 2]
        return _cast_last(x, *_torch_tables(theta, p))

    return _layer(rotary_dim, base, forward)


def _neighbours_are_pairs(rotary_dim: int, base: float) -> Any:
    def turn(x: Any, cos: Any, sin: Any) -> Any:
        y, x1, x2 = x.clone(), x[..., 0:rotary_dim:2], x[..., 1:rotary_dim:2]
        y[..., 0:rotary_dim:2], y[..., 1:rotary_dim:2] = x1 * cos - x2 * sin, x2 * cos + x1 * sin
        return y

    def forward(layer: Any, x: Any, p: Any) -> Any:
        cos, sin = _torch_tables(layer.theta, p)
        return _cast_last(x, cos, sin, turn)

    return _layer(rotary_dim, base, forward)


def _tables_as_attributes(rotary_dim: int, base: float) -> Any:
    import torch

    tables = _torch_tables(_torch_theta(rotary_dim, base), torch.arange(5000))
    cos, sin = (t[0] for t in tables)

    def forward(layer: Any, x: Any, p: Any) -> Any:
        wide = torch.promote_types(x.dtype, torch.float32)
        c, s = (t[p].unsqueeze(-3).to(wide) for t in (cos, sin))
        return _torch_half_split(x.to(wide), c, s).to(x.dtype)

    return _layer(rotary_dim, base, forward)


def _layer_of_complex_numbers(rotary_dim: int, base: float) -> Any:
    import torch

    def forward(layer: Any, x: Any, p: Any) -> Any:
        angles = (p[..., None] * layer.theta).unsqueeze(-3)
        x1, x2, rest = x.double().split([rotary_dim // 2, rotary_dim // 2, x.shape[-1] - rotary_dim], dim=-1)
        z = torch.complex(x1, x2) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([z.real, z.imag, rest], dim=-1).to(x.dtype)

    return _layer(rotary_dim, base, forward)


@st.composite
def _layer_inputs(draw: Any) -> Any:
    batch, heads, seq = draw(sizes(2, 1)), draw(sizes(3, 2)), draw(sizes(2, 4))
    pairs, rest = draw(sizes(2, 3)), draw(sizes(2, 0))
    positions = draw(integers(*((batch, seq) if draw(st.booleans()) else (seq,)), high=2000))
    base = draw(st.sampled_from([10000.0, 500000.0]))
    return draw(quarters(batch, heads, seq, 2 * pairs + rest)), positions, 2 * pairs, base


_SURVIVES = Exercise(
    id="rope.rotary_layer",
    number="8.8",
    chapter="08_rope",
    title="A layer that survives half precision",
    minutes=25,
    difficulty=4,
    function="Rotary",
    reference=_rotary,
    inputs=_layer_inputs(),
    edges={
        "4 of 6 channels, positions near 4000": (
            np.round(8 * np.cos(np.arange(2 * 3 * 2 * 6.0) ** 2)).reshape(2, 3, 2, 6) / 4,
            np.array([[3999, 4001], [7, 257]]),
            4,
            10000.0,
        ),
    },
    properties=(
        Property(
            "the layer keeps nothing with the weights",
            lambda rotary, x, p, rotary_dim, base: (rotary(x, p, rotary_dim, base)[3], 0),
        ),
        Property(
            "lengths are kept",
            lambda rotary, x, p, rotary_dim, base: (
                np.linalg.norm(rotary(x, p, rotary_dim, base)[0], axis=-1),
                np.linalg.norm(x, axis=-1),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _theta_in_a_buffer,
            "The frequencies are a buffer, and .to(torch.bfloat16) has rounded them: "
            "far positions turn by other angles.",
            "print your frequencies before and after layer.to(torch.bfloat16).",
        ),
        Mistake(
            _tables_in_buffers,
            "The tables of cosines and sines are buffers, and .to(torch.bfloat16) has rounded them. "
            "So the result is rounded twice.",
            "which attributes of a module does .to() convert, and which does it leave alone?",
        ),
        Mistake(
            _stored_with_the_weights,
            "The numbers are right, but a buffer goes into state_dict: files of weights would have to hold it.",
            "print(layer.state_dict()) should show nothing.",
        ),
        Mistake(
            _positions_cast_first,
            "The positions were cast to the dtype of x. bfloat16 knows no 257, so tokens change places.",
            "print(torch.tensor([257]).bfloat16()).",
        ),
        Mistake(
            _tables_cast_first,
            "Cosine and sine were cast to the dtype of x before the multiplication, which then rounds each product. "
            "Cast the result instead, once.",
            "in which dtype are x1 * cos and the difference computed?",
        ),
        Mistake(
            _not_cast_back,
            "The result does not have the dtype of x: the tables are wider, and PyTorch takes the wider one.",
            "what is (torch.ones(1).bfloat16() * torch.ones(1)).dtype?",
        ),
        Mistake(
            _float32_throughout,
            "Everything went through float32. Then a float64 model loses half of its digits, and far angles are off. "
            "Compute angles in float64, and turn in float32 or the dtype of x, whichever is wider.",
            "torch.promote_types(x.dtype, torch.float32) names that dtype.",
        ),
        Mistake(
            _one_row_for_all,
            "All sequences of the batch get the positions of the first one. Positions may be (batch, seq).",
            "check an input whose two sequences start at different positions.",
        ),
        Mistake(
            _no_axis_for_heads,
            "Positions of shape (batch, seq) give angles (batch, seq, pairs), and the batch falls on the heads of x. "
            "The angles need an axis of length 1 for the heads.",
            "print the shapes of cos and x; unsqueeze(-3) adds the axis.",
        ),
        Mistake(
            _table_of_the_first_call,
            "The layer keeps the cosines of its first call. Later calls come with other positions.",
            "keep a table by position, and look up the rows that a call asks for.",
        ),
        Mistake(
            _over_all_channels,
            "The exponent divides by the width of the head. It divides by rotary_dim: −2g/rotary_dim.",
            "which of the two is known in __init__?",
        ),
        Mistake(
            _neighbours_are_pairs,
            "These are interleaved pairs, (2g, 2g + 1). This layer is half-split: (g, g + rotary_dim/2).",
            "which channel is the partner of channel 0?",
        ),
    ),
    alternatives=(_each_call, _tables_as_attributes, _layer_of_complex_numbers),
    tolerance={"float64": 1e-9, "float32": 0.004},  # bfloat16 comes back as float32; one rounding is 2⁻⁸
    kinds=("torch",),
    use=_use_rotary,
    asks=("rotary_dim", "base"),
)

# --- 8.9 a whole checkpoint, in PyTorch


def _checkpoint(qkv: Any, bias: Any, q_norm: Any, k_norm: Any, out: Any, heads: int, kv_heads: int) -> Any:
    d = q_norm.shape[-1]
    turned = (heads + kv_heads) * d

    def half(w: Any) -> Any:
        return layouts.convert_projection(w, head_dim=d, source="interleaved", target="half")

    def moved(w: Any, rows: int) -> Any:  # one matrix a layer
        return np.stack([np.concatenate([half(m[:rows]), m[rows:]]) for m in w])

    norms = (moved(w[..., None], d)[..., 0] for w in (q_norm, k_norm))
    return moved(qkv, turned), moved(bias[..., None], turned)[..., 0], *norms, out, True


def _use_checkpoint(
    answer: "Any", qkv: "Any", bias: "Any", q_norm: "Any", k_norm: "Any", out: "Any", heads: int, kv_heads: int
) -> "Any":
    import torch

    names = ("qkv.weight", "qkv.bias", "q_norm.weight", "k_norm.weight", "out.weight")
    layers = range(len(qkv))
    stacked = dict(zip(names, (qkv, bias, q_norm, k_norm, out), strict=True))
    state = {f"layers.{i}.{name}": w[i] for i in layers for name, w in stacked.items()}
    given = dict(state)
    new = answer(state, heads, kv_heads, q_norm.shape[-1])
    if lost := [name for name in given if name not in new]:
        raise KeyError(f"the dictionary that is returned lacks {lost[0]}")
    kept = sorted(new) == sorted(given) and all(state.get(name) is given[name] for name in given)
    return *(torch.stack([new[f"layers.{i}.{name}"] for i in layers]) for name in names), kept


def _order(head_dim: int) -> Any:
    import torch

    return torch.arange(head_dim).reshape(-1, 2).T.flatten()


def _in_heads(w: Any, head_dim: int) -> Any:
    return w.reshape(-1, head_dim, *w.shape[1:])[:, _order(head_dim)].reshape(w.shape)


def _mapped(state: Any, change: Any) -> Any:
    """The same names, each with ``change(short name, tensor)``."""
    return {name: change(name.split(".", 2)[2], w) for name, w in state.items()}


def _front(w: Any, rows: int, change: Any) -> Any:
    import torch

    return torch.cat([change(w[:rows]), w[rows:]])


def _state_by_parts(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    def change(name: str, w: Any) -> Any:
        if name.startswith("qkv"):
            return _front(w, (heads + kv_heads) * head_dim, lambda x: _in_heads(x, head_dim))
        return _in_heads(w, head_dim) if "norm" in name else w

    return _mapped(state, change)


def _values_too(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    return _mapped(state, lambda name, w: w if name.startswith("out") else _in_heads(w, head_dim))


def _bias_forgotten(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    new = _state_by_parts(state, heads, kv_heads, head_dim)
    return {name: state[name] if name.endswith("bias") else w for name, w in new.items()}


def _norms_forgotten(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    new = _state_by_parts(state, heads, kv_heads, head_dim)
    return {name: state[name] if "norm" in name else w for name, w in new.items()}


def _weights_only(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    new = _state_by_parts(state, heads, kv_heads, head_dim)
    return {name: w if name.endswith("qkv.weight") else state[name] for name, w in new.items()}


def _keys_forgotten(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    new = _state_by_parts(state, heads, 0, head_dim)
    return {name: state[name] if "k_norm" in name else w for name, w in new.items()}


def _equal_thirds(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    import torch

    def change(name: str, w: Any) -> Any:
        if name.startswith("qkv"):
            q, k, v = w.chunk(3)
            return torch.cat([_in_heads(q, head_dim), _in_heads(k, head_dim), v])
        return _in_heads(w, head_dim) if "norm" in name else w

    return _mapped(state, change)


def _first_layer_only(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    new = _state_by_parts(state, heads, kv_heads, head_dim)
    return {name: w if name.startswith("layers.0.") else state[name] for name, w in new.items()}


def _other_direction(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    back = _order(head_dim).argsort()

    def in_heads(w: Any) -> Any:
        return w.reshape(-1, head_dim, *w.shape[1:])[:, back].reshape(w.shape)

    def change(name: str, w: Any) -> Any:
        rows = (heads + kv_heads) * head_dim if name.startswith("qkv") else head_dim
        return w if name.startswith("out") else _front(w, rows, in_heads)

    return _mapped(state, change)


def _across_heads(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    import torch

    def change(name: str, w: Any) -> Any:
        if name.startswith("qkv"):
            q, k, v = w.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
            return torch.cat([q[_order(len(q))], k[_order(len(k))], v])
        return _in_heads(w, head_dim) if "norm" in name else w

    return _mapped(state, change)


def _output_too(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    new = _state_by_parts(state, heads, kv_heads, head_dim)
    return {name: _in_heads(w.T, head_dim).T if "out" in name else w for name, w in new.items()}


def _state_by_swapping_axes(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    import torch

    def half(w: Any) -> Any:
        return w.reshape(-1, head_dim // 2, 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape)

    new = dict(state)
    for name, w in state.items():
        if "qkv" in name:
            q, k, v = w.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
            new[name] = torch.cat([half(q), half(k), v])
        elif "norm" in name:
            new[name] = half(w)
    return new


def _state_row_by_row(state: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    new = {name: w.clone() for name, w in state.items()}
    for name, w in state.items():
        rows = 0 if "out" in name else (heads + kv_heads) * head_dim if "qkv" in name else head_dim
        for row in range(rows):
            head, channel = divmod(row, head_dim)
            new[name][head * head_dim + channel % 2 * (head_dim // 2) + channel // 2] = w[row]
    return new


@st.composite
def _checkpoints(draw: Any) -> Any:
    d, kv_heads, group, width = draw(sizes(4, 6)), draw(sizes(1, 2)), draw(sizes(3, 4)), draw(sizes(1, 2))
    heads = group * kv_heads
    rows = (heads + 2 * kv_heads) * d
    norms = [draw(quarters(2, d)) for _ in range(2)]
    return (
        draw(quarters(2, rows, width)), draw(quarters(2, rows)), *norms, draw(quarters(2, width, heads * d)),
        heads, kv_heads,
    )  # fmt: skip


def _model_logits(weights: Any, heads: int, kv_heads: int, layout: layouts.Layout) -> Any:
    """Logits of two tokens in both layers; queries and keys are normed, scaled and turned."""
    qkv, bias, q_norm, k_norm, *_ = weights
    d = q_norm.shape[-1]
    x = 1.0 / (1.0 + np.arange(2 * qkv.shape[-1]).reshape(2, -1))
    cos, sin = rope.cos_sin(np.array([3, 8]), rope.inv_freq(d))
    y = np.einsum("td,lrd->ltr", x, qkv) + bias[:, None]
    y = y[..., : (heads + kv_heads) * d].reshape(2, 2, -1, d).swapaxes(1, 2)  # (layers, heads, tokens, d)
    y = y / np.sqrt(np.mean(y**2, axis=-1, keepdims=True) + 1e-6)
    scales = [np.repeat(w[:, None, None], n, axis=1) for w, n in ((q_norm, heads), (k_norm, kv_heads))]
    y = y * np.concatenate(scales, axis=1)
    y = rope.rotate(y, cos, sin, layout=layout)
    return y[:, :heads] @ np.repeat(y[:, heads:], heads // kv_heads, axis=1).swapaxes(-1, -2)


def _same_model(convert: Any, *inputs: Any) -> Any:
    *weights, heads, kv_heads = inputs
    before = _model_logits(weights, heads, kv_heads, "interleaved")
    return before, _model_logits(convert(*inputs), heads, kv_heads, "half")


def _values_stay(convert: Any, *inputs: Any) -> Any:
    qkv, heads, kv_heads, d = inputs[0], inputs[-2], inputs[-1], inputs[2].shape[-1]
    return qkv[:, (heads + kv_heads) * d :], convert(*inputs)[0][:, (heads + kv_heads) * d :]


_STATE = Exercise(
    id="rope.convert_checkpoint",
    number="8.9",
    chapter="08_rope",
    title="Move a whole checkpoint",
    minutes=25,
    difficulty=4,
    function="convert_checkpoint",
    reference=_checkpoint,
    inputs=_checkpoints(),
    edges={
        "numbered rows, 3 query heads, 1 key head": (
            np.arange(1.0, 41.0).reshape(2, 20, 1),
            -np.arange(1.0, 41.0).reshape(2, 20),
            np.arange(1.0, 9.0).reshape(2, 4),
            np.arange(9.0, 17.0).reshape(2, 4),
            np.arange(1.0, 25.0).reshape(2, 1, 12),
            3,
            1,
        ),
    },
    properties=(
        Property("the logits of the model stay the same", _same_model),
        Property("the rows of the values stay where they are", _values_stay),
    ),
    mistakes=(
        Mistake(
            _values_too,
            "The rows of the values were reordered too. Values are never turned, and the output projection expects "
            "their channels where they were.",
            "which rows of qkv.weight make queries, which keys, which values?",
        ),
        Mistake(
            _weights_only,
            "Only qkv.weight was converted. What lies on the channels of q and k before the rotation moves as well: "
            "the bias, and the scales of both norms.",
            "go through the five names: which of them have an entry for each channel of a query?",
        ),
        Mistake(
            _bias_forgotten,
            "The bias is as it was. It is added to the channels of q and k, so its entries move with the rows.",
            "how do you reorder a vector with the function that reorders rows?",
        ),
        Mistake(
            _norms_forgotten,
            "The scales q_norm and k_norm are as they were. They multiply single channels before the rotation, "
            "so they must move with them.",
            "the norm itself does not care about the order of channels; its scale does.",
        ),
        Mistake(
            _keys_forgotten,
            "Only the queries were converted. A dot product stays the same only if both sides are permuted.",
            "which vectors meet in the dot product?",
        ),
        Mistake(
            _equal_thirds,
            "The rows were cut into three equal parts. With grouped-query attention the queries have more rows: "
            "heads · head_dim of them, then kv_heads · head_dim for the keys, and as many for the values.",
            "for heads = 3, kv_heads = 1 and head_dim = 4: in which row do the keys begin, and in which the values?",
        ),
        Mistake(
            _first_layer_only,
            "Only layer 0 was converted. The dictionary holds several layers.",
            "loop over the names in state.",
        ),
        Mistake(
            _other_direction,
            "This is the inverse, from half-split to interleaved. Asked for is from interleaved to half-split.",
            "for one head of 4 rows, the result should have rows 0, 2, 1, 3; for 6 rows 0, 2, 4, 1, 3, 5.",
        ),
        Mistake(
            _across_heads,
            "Rows were reordered across heads. The permutation belongs inside each head of head_dim rows.",
            "in the result, do the first head_dim rows still come from the first head?",
        ),
        Mistake(
            _output_too,
            "The output projection was changed. It reads the values, which stay as they are.",
            "which of the five tensors never meet a query or a key?",
        ),
    ),
    alternatives=(_state_by_parts, _state_by_swapping_axes, _state_row_by_row),
    kinds=("torch",),
    use=_use_checkpoint,
    asks=("state", "heads", "kv_heads", "head_dim"),
)

EXERCISES = (_ROTATE, _INV_FREQ, _RELATIVE, _CONVERT, _DECODE, _RE_ROTATE, _PEAK, _SURVIVES, _STATE)
