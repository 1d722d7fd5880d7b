"""Exercises of chapter 04: a path that is integrated, and position vectors that multiply."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.embedding.floater import oscillators, trajectory
from posenc_ref.embedding.sinusoidal import sinusoidal
from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters, sizes

TITLE = "a flow and a product"
BASE = 10000.0

# --- 4.1 an integrator


def _rk4_path(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return trajectory(steps + 1, start, lambda t, p: A @ p + t * b, delta=step, substeps=1, method="rk4")


def _walk(A: Any, b: Any, start: Any, steps: int, step: float, method: Any) -> Any:
    path = [start]
    for n in range(steps):
        path.append(method(lambda t, p: A @ p + t * b, n * step, path[-1], step))
    return np.array(path)


def _euler(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _walk(A, b, start, steps, step, lambda h, t, p, e: p + e * h(t, p))


def _midpoint(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _walk(A, b, start, steps, step, lambda h, t, p, e: p + e * h(t + e / 2, p + e / 2 * h(t, p)))


def _general(weights: Any, last: float = 1.0, clock: float = 1.0) -> Any:
    """RK4 with other weights, another last step, or a clock that runs at another speed inside a step."""

    def step_once(h: Any, t: float, p: Any, e: float) -> Any:
        k1 = h(t, p)
        k2 = h(t + clock * e / 2, p + e / 2 * k1)
        k3 = h(t + clock * e / 2, p + e / 2 * k2)
        k4 = h(t + clock * e, p + last * e * k3)
        return p + e * (weights[0] * k1 + weights[1] * k2 + weights[2] * k3 + weights[3] * k4)

    return step_once


def _equal_weights(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _walk(A, b, start, steps, step, _general((1 / 4, 1 / 4, 1 / 4, 1 / 4)))


def _last_half_step(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _walk(A, b, start, steps, step, _general((1 / 6, 1 / 3, 1 / 3, 1 / 6), last=0.5))


def _time_stands_still(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _walk(A, b, start, steps, step, _general((1 / 6, 1 / 3, 1 / 3, 1 / 6), clock=0.0))


def _no_time(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _rk4_path(A, 0 * b, start, steps, step)


def _time_in_steps(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    path = [start]
    for n in range(steps):
        path.append(_general((1 / 6, 1 / 3, 1 / 3, 1 / 6))(lambda t, p: A @ p + t * b, float(n), path[-1], step))
    return np.array(path)


def _row_vectors(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _rk4_path(A.T, b, start, steps, step)


def _start_left_out(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _rk4_path(A, b, start, steps, step)[1:]


def _one_too_few(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _rk4_path(A, b, start, steps, step)[:-1]


def _path_loops(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    return _walk(A, b, start, steps, step, _general((1 / 6, 1 / 3, 1 / 3, 1 / 6)))


def _path_taylor(A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    # with t as one more channel, and a constant one, the field is linear, and RK4 is its series up to the fourth power
    d = len(start)
    B = np.zeros((d + 2, d + 2))
    B[:d, :d], B[:d, d], B[d, d + 1] = A, b, 1.0
    eB = step * B
    R = np.eye(d + 2) + eB @ (np.eye(d + 2) + eB / 2 @ (np.eye(d + 2) + eB / 3 @ (np.eye(d + 2) + eB / 4)))
    state, path = np.concatenate([start, [0.0, 1.0]]), [start]
    for _ in range(steps):
        state = R @ state
        path.append(state[:d])
    return np.array(path)


@st.composite
def _fields(draw: Any) -> Any:
    d = draw(sizes(1, 2, 3))
    return draw(quarters(d, d)), draw(quarters(d)), draw(quarters(d)), draw(sizes(1, 2, 4)), draw(sizes(4, 2, 1)) / 4


def _cubic(rk4_path: Any, A: Any, b: Any, start: Any, steps: int, step: float) -> Any:
    # p' = tb has the solution p(0) + t²b/2, which RK4 gives exactly
    t = step * np.arange(steps + 1)[:, None]
    return rk4_path(np.zeros_like(A), b, start, steps, step), start + t**2 / 2 * b


_PATH = Exercise(
    id="other_absolute.path",
    number="4.1",
    chapter="04_other_absolute",
    title="Walk along a field",
    minutes=10,
    difficulty=2,
    function="rk4_path",
    reference=_rk4_path,
    inputs=_fields(),
    edges={
        "a clock, a third of a radian a step": (
            np.array([[0.0, 1.0], [-1.0, 0.0]]), np.zeros(2), np.array([0.0, 1.0]), 6, 1 / 3,
        ),
        "a field with time in it": (
            np.array([[0.5, 1.0], [-1.0, 0.25]]), np.array([1.0, -0.5]), np.array([0.0, 1.0]), 5, 0.5,
        ),
    },
    properties=(Property("p′ = t·b leads to p(0) + t²b/2", _cubic),),
    mistakes=(
        Mistake(
            _euler,
            "These are Euler steps: one call of the field a step, at its start.",
            "k₂ looks at the velocity half a step ahead. Where does k₃ look?",
        ),
        Mistake(
            _midpoint,
            "This is the midpoint method: it stops after k₂. Two more looks and the weights 1, 2, 2, 1 are missing.",
            "k₃ starts again from p, with k₂ in the place of k₁.",
        ),
        Mistake(
            _equal_weights,
            "The four velocities have equal weights. The two in the middle count double: (k₁ + 2k₂ + 2k₃ + k₄)/6.",
            "take a field that depends on t only: Simpson's rule should come out.",
        ),
        Mistake(
            _last_half_step,
            "The last velocity, k₄, is taken from p + ε/2 · k₃. It belongs to the end of the step: p + ε k₃.",
            "which of the four k are taken in the middle?",
        ),
        Mistake(
            _time_stands_still,
            "All four calls get the time at the start of the step. k₂ and k₃ belong to t + ε/2, and k₄ to t + ε.",
            "set A = 0: then only the time moves.",
        ),
        Mistake(
            _no_time,
            "The part t·b of the field is missing.",
            "take A = 0 and b = 1: the path should bend upwards.",
        ),
        Mistake(
            _time_in_steps,
            "The time is counted in steps. After n steps of length ε it is nε.",
            "print t and p for step = 0.5.",
        ),
        Mistake(
            _row_vectors,
            "The matrix is transposed: the field is A p with p a column, which is A @ p, not p @ A.",
            "take A = [[0, 1], [0, 0]] and start (0, 1): the first channel should grow.",
        ),
        Mistake(
            _start_left_out,
            "The start is missing. The path has steps + 1 points, and the first is the start.",
            "which vector does the first token get?",
        ),
        Mistake(
            _one_too_few,
            "The last point is missing: `steps` steps lead to steps + 1 points.",
            "how many points has one step?",
        ),
    ),
    alternatives=(_path_loops, _path_taylor),
)  # fmt: skip

# --- 4.2 the matrix whose flow is the sinusoidal table


def _generator(d_model: int, delta: float, layout: Any) -> Any:
    return oscillators(d_model, layout=layout, delta=delta)


def _omega(d_model: int) -> Any:
    return BASE ** (-np.arange(0, d_model, 2) / d_model)


def _blocks(upper: Any, lower: Any, layout: str) -> Any:
    """``upper`` at (sine, cosine) and ``lower`` at (cosine, sine) of each pair."""
    half = len(upper)
    A = np.zeros((2 * half, 2 * half))
    for i in range(half):
        s, c = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + half)
        A[s, c], A[c, s] = upper[i], lower[i]
    return A


def _turned_back(d_model: int, delta: float, layout: Any) -> Any:
    return -_generator(d_model, delta, layout)


def _both_positive(d_model: int, delta: float, layout: str) -> Any:
    w = _omega(d_model) / delta
    return _blocks(w, w, layout)


def _delta_multiplied(d_model: int, delta: float, layout: str) -> Any:
    w = _omega(d_model) * delta
    return _blocks(w, -w, layout)


def _delta_ignored(d_model: int, delta: float, layout: Any) -> Any:
    return _generator(d_model, 1.0, layout)


def _one_speed(d_model: int, delta: float, layout: str) -> Any:
    w = np.full(d_model // 2, 1 / delta)
    return _blocks(w, -w, layout)


def _layout_ignored(d_model: int, delta: float, layout: str) -> Any:
    return _generator(d_model, delta, "interleaved")


def _shift_matrix(d_model: int, delta: float, layout: str) -> Any:
    w = _omega(d_model)
    A = _blocks(np.sin(w), -np.sin(w), layout)
    half = d_model // 2
    cosines = np.repeat(np.cos(w), 2) if layout == "interleaved" else np.tile(np.cos(w), 2)
    return A + np.diag(cosines) if half else A


def _difference(d_model: int, delta: float, layout: str) -> Any:
    return (_shift_matrix(d_model, delta, layout) - np.eye(d_model)) / delta


def _generator_loops(d_model: int, delta: float, layout: str) -> Any:
    w = _omega(d_model) / delta
    return _blocks(w, -w, layout)


def _generator_kron(d_model: int, delta: float, layout: str) -> Any:
    W, J = np.diag(_omega(d_model) / delta), np.array([[0.0, 1.0], [-1.0, 0.0]])
    return np.kron(W, J) if layout == "interleaved" else np.kron(J, W)


def _exp(X: Any) -> Any:
    """Exponential of a small matrix: a long series of X/1024, squared ten times."""
    X = X / 1024
    term, total = np.eye(len(X)), np.eye(len(X))
    for n in range(1, 20):
        term = term @ X / n
        total = total + term
    for _ in range(10):
        total = total @ total
    return total


def _moves_on(generator: Any, d_model: int, delta: float, layout: Any) -> Any:
    pe = sinusoidal(np.array([11.0, 12.0]), d_model, layout=layout)
    return _exp(delta * generator(d_model, delta, layout)) @ pe[0], pe[1]


def _keeps_lengths(generator: Any, d_model: int, delta: float, layout: str) -> Any:
    A = generator(d_model, delta, layout)
    return A.T, -A


_GENERATOR = Exercise(
    id="other_absolute.generator",
    number="4.2",
    chapter="04_other_absolute",
    title="The matrix whose path is the sinusoidal table",
    minutes=12,
    difficulty=3,
    function="generator",
    kinds=("derive",),
    reference=_generator,
    inputs=st.tuples(
        sizes(2, 4, 6, 8, 10, 12),
        st.integers(1, 16).map(lambda n: n / 8),
        st.sampled_from(["interleaved", "concatenated"]),
    ),
    edges={"the authors' Δ (0.01)": (4, 0.01, "interleaved"), "a wide vector (32 channels)": (32, 0.5, "concatenated")},
    properties=(
        Property("exp(ΔA) moves PE(11) to PE(12)", _moves_on),
        Property("A is antisymmetric, so that lengths are kept", _keeps_lengths),
    ),
    mistakes=(
        Mistake(
            _turned_back,
            "All signs are flipped: this path runs backwards, from PE(0) to PE(−1).",
            "at p = (0, 1) the sine should grow. Multiply your A by that vector.",
        ),
        Mistake(
            _both_positive,
            "Both entries of a block are positive. The derivative of the cosine is minus ω times the sine.",
            "what happens to the length of p along p′ = A p if A is symmetric?",
        ),
        Mistake(
            _delta_multiplied,
            "The speeds are multiplied by Δ. One token takes the time Δ and must turn by ω, so that the speed is ω/Δ.",
            "with Δ = 0.5, is there more or less time for the same turn?",
        ),
        Mistake(
            _delta_ignored,
            "This is right for Δ = 1 only. Position 1 belongs to the time Δ.",
            "with Δ = 0.5, is there more or less time for the same turn?",
        ),
        Mistake(
            _one_speed,
            "All pairs have the speed of the first.",
            "for d = 4 the second frequency is 1/100.",
        ),
        Mistake(
            _layout_ignored,
            "The blocks suit the interleaved layout, whatever layout says.",
            "where do sine and cosine of pair 0 stand when all sines come first?",
        ),
        Mistake(
            _shift_matrix,
            "This is the matrix M₁ that moves a vector one token on. Asked for is the A with exp(ΔA) = M₁.",
            "A times a position is a velocity: differentiate sin(ωt/Δ) and cos(ωt/Δ).",
        ),
        Mistake(
            _difference,
            "This is (M₁ − I)/Δ, the average velocity over one token. Asked for is the velocity at each moment.",
            "differentiate sin(ωt/Δ) and cos(ωt/Δ), and write the result by means of the two.",
        ),
    ),
    alternatives=(_generator_loops, _generator_kron),
)

# --- 4.3 two parts of a product


def _pairs(x: Any, y: Any) -> Any:
    return x[0::2] * y[0::2], x[1::2] * y[1::2]


def _two_parts(x: Any, y: Any, m: int, n: int) -> Any:
    # Turn both hands of each clock by the same angle: the part that knows the distance stays. The mean over a
    # quarter turn is that part, as the other one changes its sign.
    w = _omega(len(x))

    def score(turn: float) -> Any:
        u, v = _pairs(x, y)
        return np.sum(u * np.sin(w * m + turn) * np.sin(w * n + turn) + v * np.cos(w * m + turn) * np.cos(w * n + turn))

    here, quarter = score(0.0), score(np.pi / 2)
    return float((here + quarter) / 2), float((here - quarter) / 2)


def _formula(near: Any, far: Any) -> Any:
    def parts(x: Any, y: Any, m: int, n: int) -> Any:
        w, (u, v) = _omega(len(x)), _pairs(x, y)
        return float(np.sum(near(u, v) * np.cos(w * (n - m)))), float(np.sum(far(u, v) * np.cos(w * (n + m))))

    return parts


def _signs_swapped(x: Any, y: Any, m: int, n: int) -> Any:
    return tuple(_formula(lambda u, v: (u + v) / 2, lambda u, v: (u - v) / 2)(x, y, m, n))


def _not_halved(x: Any, y: Any, m: int, n: int) -> Any:
    return tuple(_formula(lambda u, v: u + v, lambda u, v: v - u)(x, y, m, n))


def _parts_swapped(x: Any, y: Any, m: int, n: int) -> Any:
    return _two_parts(x, y, m, n)[::-1]


def _sines_and_cosines(x: Any, y: Any, m: int, n: int) -> Any:
    w, (u, v) = _omega(len(x)), _pairs(x, y)
    return float(np.sum(u * np.sin(w * m) * np.sin(w * n))), float(np.sum(v * np.cos(w * m) * np.cos(w * n)))


def _as_if_words_were_twins(x: Any, y: Any, m: int, n: int) -> Any:
    return _sum_of(x, y, m, n), 0.0


def _sum_of(x: Any, y: Any, m: int, n: int) -> float:
    p, q = sinusoidal(np.array([float(m), float(n)]), len(x), layout="interleaved")
    return float((x * p) @ (y * q))


def _halves(x: Any, y: Any, m: int, n: int) -> Any:
    half, w = len(x) // 2, _omega(len(x))
    u, v = x[:half] * y[:half], x[half:] * y[half:]
    return float(np.sum((u + v) / 2 * np.cos(w * (n - m)))), float(np.sum((v - u) / 2 * np.cos(w * (n + m))))


def _rope(x: Any, y: Any, m: int, n: int) -> Any:
    w, (u, v) = _omega(len(x)), _pairs(x, y)
    cross = x[0::2] * y[1::2] - x[1::2] * y[0::2]
    near = np.sum((u + v) * np.cos(w * (n - m)) - cross * np.sin(w * (n - m)))
    return float(near), 0.0


def _parts_formula(x: Any, y: Any, m: int, n: int) -> Any:
    return tuple(_formula(lambda u, v: (u + v) / 2, lambda u, v: (v - u) / 2)(x, y, m, n))


def _parts_loops(x: Any, y: Any, m: int, n: int) -> Any:
    near = far = 0.0
    for c in range(len(x)):
        w = BASE ** (-(c - c % 2) / len(x))
        near += x[c] * y[c] / 2 * np.cos(w * (m - n))
        far += (1 if c % 2 else -1) * x[c] * y[c] / 2 * np.cos(w * (m + n))
    return float(near), float(far)


@st.composite
def _words_and_places(draw: Any) -> Any:
    d = draw(sizes(2, 4, 6))
    return draw(quarters(d)), draw(quarters(d)), draw(st.integers(0, 12)), draw(st.integers(0, 12))


def _add_up(parts: Any, x: Any, y: Any, m: int, n: int) -> Any:
    near, far = parts(x, y, m, n)
    return near + far, _sum_of(x, y, m, n)


def _near_stays(parts: Any, x: Any, y: Any, m: int, n: int) -> Any:
    return parts(x, y, m + 9, n + 9)[0], parts(x, y, m, n)[0]


_PARTS = Exercise(
    id="other_absolute.two_parts",
    number="4.3",
    chapter="04_other_absolute",
    title="What a product knows about distance",
    minutes=12,
    difficulty=3,
    function="two_parts",
    reference=_two_parts,
    inputs=_words_and_places(),
    edges={"far positions": (np.array([1.0, 2.0, -1.0, 0.5]), np.array([0.5, -1.0, 2.0, 1.0]), 1000, 1003)},
    properties=(
        Property("the two parts add up to (x ⊙ p) · (y ⊙ q)", _add_up),
        Property("the first part stays when both positions move by 9", _near_stays),
    ),
    mistakes=(
        Mistake(
            _signs_swapped,
            "The second part has the wrong sign: sines carry −cos(a + b), cosines +cos(a + b).",
            "at m = n = 0 all sines are 0. Which channels are left?",
        ),
        Mistake(
            _not_halved,
            "Both parts are twice too large: sin a sin b is half of cos(a − b) − cos(a + b).",
            "at m = n = 0, compare the sum of your parts with the dot product.",
        ),
        Mistake(
            _parts_swapped,
            "The two parts are in the wrong order: first what depends on n − m, then what depends on n + m.",
            "which of your numbers stays when both positions move by 1?",
        ),
        Mistake(
            _sines_and_cosines,
            "These are the sums over sine channels and over cosine channels. Each of them has both parts in it.",
            "write sin a sin b and cos a cos b by means of cos(a − b) and cos(a + b).",
        ),
        Mistake(
            _as_if_words_were_twins,
            "This puts the whole score into the first part. That is right only for words that are equal in each pair.",
            "move both positions by 1: does your first number stay?",
        ),
        Mistake(
            _halves,
            "Channels i and i + d/2 are taken for a pair. Here the layout is interleaved: 2i and 2i + 1.",
            "for d = 4, which channels belong to pair 0?",
        ),
        Mistake(
            _rope,
            "This is the score of RoPE, which turns x and y. Here they are multiplied, channel by channel.",
            "channel 0 of x meets channel 0 of y only.",
        ),
    ),
    alternatives=(_parts_formula, _parts_loops),
)

# --- 4.4 is this a bug?


def _same_sum(weights: Any, a: Any, b: Any) -> bool:
    # a random vector for each word, twice, decides for every vector but those of a set without volume
    words = np.random.default_rng(7).standard_normal((2, int(max(a.max(), b.max())) + 1, weights.shape[1]))
    return bool(np.allclose((weights * words[:, a]).sum(1), (weights * words[:, b]).sum(1), rtol=0, atol=1e-9))


def _weights_of(weights: Any, sentence: Any) -> Any:
    return {int(w): weights[sentence == w].sum(axis=0) for w in sentence}


def _same_words(weights: Any, a: Any, b: Any) -> bool:
    return sorted(a.tolist()) == sorted(b.tolist())


def _same_sentence(weights: Any, a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b))


def _exactly_equal(weights: Any, a: Any, b: Any) -> bool:
    wa, wb = _weights_of(weights, a), _weights_of(weights, b)
    return wa.keys() == wb.keys() and all(np.array_equal(wa[w], wb[w]) for w in wa)


def _ids_as_vectors(weights: Any, a: Any, b: Any) -> bool:
    return bool(np.allclose((weights * a[:, None]).sum(0), (weights * b[:, None]).sum(0)))


def _words_of_a_only(weights: Any, a: Any, b: Any) -> bool:
    return all(np.allclose(weights[a == w].sum(0), weights[b == w].sum(0)) for w in a)


def _first_channel(weights: Any, a: Any, b: Any) -> bool:
    return _same_sum(weights[:, :1], a, b)


def _summed_over_channels(weights: Any, a: Any, b: Any) -> bool:
    return _same_sum(weights.sum(axis=1, keepdims=True), a, b)


def _some_word(weights: Any, a: Any, b: Any) -> bool:
    return any(np.allclose(weights[a == w].sum(0), weights[b == w].sum(0)) for w in np.union1d(a, b))


def _always(weights: Any, a: Any, b: Any) -> bool:
    return True


def _same_sum_by_words(weights: Any, a: Any, b: Any) -> bool:
    words = np.union1d(a, b)
    return all(np.allclose(weights[a == w].sum(axis=0), weights[b == w].sum(axis=0)) for w in words)


def _same_sum_one_hot(weights: Any, a: Any, b: Any) -> bool:
    vocabulary = np.union1d(a, b)
    difference = (a[:, None] == vocabulary).astype(float) - (b[:, None] == vocabulary)  # (J, words)
    return bool(np.abs(difference.T @ weights).max() < 1e-9)


def paper_weights(J: int, d: int) -> Any:
    """Sukhbaatar et al. 2015, section 4.1: l_kj = (1 − j/J) − (k/d)(1 − 2j/J), ``(J, d)``, j and k from 1."""
    j, k = np.arange(1, J + 1)[:, None] / J, np.arange(1, d + 1) / d
    return (1 - j) - k * (1 - 2 * j)


def code_weights(J: int, d: int) -> Any:
    """The same authors' code: 1 + 4 (k − (d+1)/2)(j − (J+1)/2)/(dJ), ``(J, d)``."""
    j, k = np.arange(1, J + 1)[:, None], np.arange(1, d + 1)
    return 1 + 4 * (k - (d + 1) / 2) * (j - (J + 1) / 2) / (d * J)


@st.composite
def _sentences(draw: Any) -> Any:
    J, d = draw(sizes(2, 3, 4, 5)), draw(sizes(1, 2, 3))
    a = np.array(draw(st.lists(st.integers(0, 2), min_size=J, max_size=J)))
    kind = draw(st.sampled_from(["other", "reversed", "shuffled", "same"]))
    b = np.array(draw(st.lists(st.integers(0, 2), min_size=J, max_size=J)))
    if kind == "reversed":
        b = a[::-1].copy()
    elif kind == "shuffled":
        b = a[np.array(draw(st.permutations(range(J))))]
    elif kind == "same":
        b = a.copy()
    if draw(st.booleans()):  # a straight line from word to word, as in the paper
        return draw(quarters(d)) + np.arange(J)[:, None] * draw(quarters(d)), a, b
    return draw(quarters(J, d)), a, b


_ABBA, _NAMES = np.array([0, 1, 1, 0]), np.array([5, 0, 3, 1, 4, 2])

_SAME_SUM = Exercise(
    id="other_absolute.same_sum",
    number="4.4",
    chapter="04_other_absolute",
    title="Is this a bug? Code and paper differ",
    minutes=20,
    difficulty=4,
    function="same_sum",
    kinds=("bug",),
    reference=_same_sum,
    inputs=_sentences(),
    edges={
        "the paper's weights, ABBA and BAAB": (paper_weights(4, 3), _ABBA, 1 - _ABBA),
        "the code's weights, ABBA and BAAB": (code_weights(4, 3), _ABBA, 1 - _ABBA),
        "the paper's weights, AB and BA": (paper_weights(2, 3), np.array([0, 1]), np.array([1, 0])),
        "the paper's weights, seven words": (
            paper_weights(7, 5), np.array([3, 1, 1, 5, 0, 1, 3]), np.array([1, 3, 1, 5, 3, 1, 0]),
        ),
        "ones, a bag of words": (np.ones((3, 2)), np.array([0, 1, 2]), np.array([2, 0, 1])),
        "tenths": (np.array([[0.1], [0.2], [0.3], [0.0]]), np.array([0, 0, 1, 1]), np.array([1, 1, 0, 1])),
        "words 1 and 3 against word 2 twice": (np.ones((2, 2)), np.array([1, 3]), np.array([2, 2])),
        "one channel tells them apart": (np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([0, 1]), np.array([1, 0])),
        "a difference that cancels over channels": (np.eye(2), np.array([0, 1]), np.array([1, 0])),
        "words that only the second sentence has": (
            np.array([[1.0], [1.0], [-1.0]]), np.array([0, 0, 0]), np.array([0, 1, 2]),
        ),
        "weights that differ by a thousandth": (np.array([[1.0], [1.001]]), np.array([4, 5]), np.array([5, 4])),
        "other words, whose weights cancel": (np.array([[1.0], [-1.0]]), np.array([0, 0]), np.array([1, 1])),
    },
    properties=(
        Property("the order of the two sentences makes no difference", lambda f, w, a, b: (f(w, a, b), f(w, b, a))),
        Property("other word numbers, same verdict", lambda f, w, a, b: (f(w, a, b), f(w, _NAMES[a], _NAMES[b]))),
    ),
    mistakes=(
        Mistake(
            _same_words,
            "This asks whether the two sentences have the same words. The weights are to make a difference.",
            "with weights 1 and 2, is the sum of AB that of BA?",
        ),
        Mistake(
            _same_sentence,
            "This asks whether the sentences are equal. Different ones may still have the same sum.",
            "with equal weights, is the sum of AB that of BA?",
        ),
        Mistake(
            _exactly_equal,
            "The idea is right, but floats are compared with ==. The paper's weights have rounding in them.",
            "print 0.1 + 0.2 == 0.3, and use np.allclose.",
        ),
        Mistake(
            _ids_as_vectors,
            "The word numbers are used as if they were the word vectors. The question is about all vectors.",
            "word 0 never counts in your sum. Should it?",
        ),
        Mistake(
            _words_of_a_only,
            "Words that only the second sentence has are left out.",
            "which words must be compared: those of a, of b, or of both?",
        ),
        Mistake(
            _first_channel,
            "Only channel 0 is compared.",
            "two sums are equal if they are equal in every channel.",
        ),
        Mistake(
            _summed_over_channels,
            "The weights are summed over channels before they are compared, so that differences may cancel.",
            "two sums are equal if they are equal in every channel.",
        ),
        Mistake(
            _some_word,
            "One word with equal weights is enough here. The sums must agree for every word.",
            "swap the first two of three words: which word has equal weights?",
        ),
        Mistake(
            _always,
            "This says that no weights ever tell two sentences apart.",
            "with weights 1 and 2, is the sum of AB that of BA?",
        ),
    ),
    alternatives=(_same_sum_by_words, _same_sum_one_hot),
)  # fmt: skip

EXERCISES = (_PATH, _GENERATOR, _PARTS, _SAME_SUM)
