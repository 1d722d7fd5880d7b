"""Exercises of chapter 15: beyond."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.grading.exercise import Exercise, Mistake, Property, integers, quarters, sizes
from posenc_ref.rotary import AxialRoPE

TITLE = "beyond"


# --- 15.1 a patch turned by row and column


def _axial(x: Any, rows: Any, columns: Any) -> Any:
    at = np.stack([rows, columns], axis=-1)
    rope = AxialRoPE(x.shape[1], "interleaved")
    return rope.rotate(x[None, None], x[None, None], q_positions=at, k_positions=at)[0][0, 0]


def _turned(x: Any, angles: Any) -> Any:
    """Interleaved pairs turned by ``angles`` (n, d/2)."""
    z = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


def _speeds(x: Any, width: int | None = None) -> Any:
    """Frequencies of one axis, (d/4,); ``width`` is what their exponents are divided by, d/2 if right."""
    half = x.shape[1] // 2
    return 10000.0 ** (-np.arange(0, half, 2) / (width or half))


def _halves(x: Any, first: Any, second: Any) -> Any:
    return _turned(x, np.concatenate([np.outer(first, _speeds(x)), np.outer(second, _speeds(x))], axis=1))


def _flattened(x: Any, rows: Any, columns: Any) -> Any:
    place = rows * (columns.max() + 1) + columns
    return _turned(x, np.outer(place, 10000.0 ** (-np.arange(0, x.shape[1], 2) / x.shape[1])))


def _exchanged(x: Any, rows: Any, columns: Any) -> Any:
    return _halves(x, columns, rows)


def _full_width_exponents(x: Any, rows: Any, columns: Any) -> Any:
    speeds = _speeds(x, x.shape[1])
    return _turned(x, np.concatenate([np.outer(rows, speeds), np.outer(columns, speeds)], axis=1))


def _one_run(x: Any, rows: Any, columns: Any) -> Any:
    speeds = 10000.0 ** (-np.arange(0, x.shape[1], 2) / x.shape[1])  # fast ones for rows, slow ones for columns
    here = np.concatenate([np.tile(rows[:, None], x.shape[1] // 4), np.tile(columns[:, None], x.shape[1] // 4)], axis=1)
    return _turned(x, here * speeds)


def _dealt_in_turn(x: Any, rows: Any, columns: Any) -> Any:
    angles = np.stack([np.outer(rows, _speeds(x)), np.outer(columns, _speeds(x))], axis=-1)
    return _turned(x, angles.reshape(len(x), -1))


def _added_up(x: Any, rows: Any, columns: Any) -> Any:
    return _halves(x, rows + columns, rows + columns)


def _rows_only(x: Any, rows: Any, columns: Any) -> Any:
    return _halves(x, rows, 0 * columns)


def _clockwise(x: Any, rows: Any, columns: Any) -> Any:
    return _halves(x, -rows, -columns)


def _half_split(x: Any, rows: Any, columns: Any) -> Any:
    """Channel g with g + d/2, as in other models."""
    at, rope = np.stack([rows, columns], axis=-1), AxialRoPE(x.shape[1], "half")
    return rope.rotate(x[None, None], x[None, None], q_positions=at, k_positions=at)[0][0, 0]


def _split_in_each_half(x: Any, rows: Any, columns: Any) -> Any:
    """Rows turn the first half of the channels, in the half-split layout within it."""
    parts = []
    for part, place in zip(np.split(x, 2, axis=1), (rows, columns), strict=True):
        a, b = np.split(part, 2, axis=1)
        angles = np.outer(place, _speeds(x))
        parts += [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
    return np.concatenate(parts, axis=1)


def _axial_loops(x: Any, rows: Any, columns: Any) -> Any:
    y, quarter = np.empty_like(x), x.shape[1] // 4
    for i in range(len(x)):
        for g in range(2 * quarter):
            place, number = (rows[i], g) if g < quarter else (columns[i], g - quarter)
            angle = float(place) * math.pow(10000.0, -number / quarter)
            c, s = math.cos(angle), math.sin(angle)
            a, b = x[i, 2 * g], x[i, 2 * g + 1]
            y[i, 2 * g], y[i, 2 * g + 1] = a * c - b * s, a * s + b * c
    return y


def _axial_by_matrices(x: Any, rows: Any, columns: Any) -> Any:
    angles = np.concatenate([np.outer(rows, _speeds(x)), np.outer(columns, _speeds(x))], axis=1)
    c, s = np.cos(angles), np.sin(angles)
    turns = np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)  # (n, pairs, 2, 2)
    return np.einsum("ngab,ngb->nga", turns, x.reshape(len(x), -1, 2)).reshape(x.shape)


@st.composite
def _patches(draw: Any) -> Any:
    n, d = draw(sizes(1, 2, 3)), draw(sizes(8, 4, 12))
    return draw(quarters(n, d)), draw(integers(n, high=9)), draw(integers(n, high=9))


_AXIAL = Exercise(
    id="beyond.axial",
    number="15.1",
    chapter="15_beyond",
    title="Turn a patch by row and column",
    minutes=12,
    difficulty=2,
    function="turn_patches",
    reference=_axial,
    inputs=_patches(),
    edges={
        "one patch far to the right": (np.ones((1, 8)), np.array([1]), np.array([40])),
        "one patch far down": (np.ones((1, 8)), np.array([40]), np.array([1])),
        "three patches": (
            np.arange(1.0, 37.0).reshape(3, 12) / 4,
            np.array([2, 0, 7]),
            np.array([5, 3, 1]),
        ),
    },
    properties=(
        Property(
            "the logit of two patches depends on their offsets only",
            lambda f, x, rows, columns: (f(x, rows, columns) @ f(x, rows, columns).T,
                                         f(x, rows + 3, columns + 5) @ f(x, rows + 3, columns + 5).T),
        ),
        Property(
            "the second half does not feel the row",
            lambda f, x, rows, columns: (f(x, rows + 2, columns)[:, x.shape[1] // 2 :],
                                         f(x, rows, columns)[:, x.shape[1] // 2 :]),
        ),
    ),
    mistakes=(
        Mistake(
            _flattened,
            "This is RoPE by one number, row times width plus column. The patch below is then a whole row away, and "
            "the width is guessed from the patches that happen to be there. Each axis has pairs of its own.",
            "which channels change if only the column changes?",
        ),
        Mistake(_exchanged, "Rows and columns are exchanged: rows turn the first half.", "print both for (0, 1)."),
        Mistake(
            _full_width_exponents,
            "The exponents are divided by d (or the base is 100, which is the same). Each axis is a RoPE of its own "
            "with d/2 channels, so divide by d/2: "
            "otherwise every axis misses its slow half.",
            "what is the smallest frequency for d = 8? It should be 1/100.",
        ),
        Mistake(
            _one_run,
            "Both axes share one run of frequencies, so rows get the fast pairs and columns the slow ones. That is "
            "the multimodal form; in the axial one each axis has its own full run.",
            "does the first pair of the column turn by the column itself?",
        ),
        Mistake(
            _dealt_in_turn,
            "Pairs go to rows and columns in turn. Asked for: the first half of the channels for the row, the second"
            " for the column.",
        ),
        Mistake(
            _added_up,
            "Every pair turns by row plus column. Then (1, 2) and (2, 1) are the same place.",
            "which patches does your function take for the same one?",
        ),
        Mistake(_rows_only, "The column does nothing: the second half of the channels is not turned."),
        Mistake(
            _clockwise,
            "This turns clockwise: the sign of the sine terms is flipped.",
            "where does (1, 0) go for a small positive angle?",
        ),
        Mistake(
            _half_split,
            "These are the right angles in the half-split layout over all channels. Asked for are neighbours: "
            "channels 0 and 1, 2 and 3, and so on.",
        ),
        Mistake(
            _split_in_each_half,
            "Within each half, the first channel is paired with one a quarter of d farther. Asked for are "
            "neighbours: channels 0 and 1, 2 and 3, and so on.",
        ),
    ),
    alternatives=(_axial_loops, _axial_by_matrices),
)  # fmt: skip


# --- 15.2 CoPE's positions, with gradients (PyTorch)


def _with_gradients(answer: Any, gates: Any, scores: Any) -> Any:
    """The bias, and what a loss of it sends back to gates and scores, where keys may be seen."""
    import torch

    gates, scores = gates.clone().requires_grad_(), scores.clone().requires_grad_()
    bias = answer(gates, scores)
    if type(bias) is not torch.Tensor or bias.shape != gates.shape:
        return bias, gates, scores
    weight = torch.arange(1.0, gates.numel() + 1, dtype=gates.dtype).reshape(gates.shape)
    loss = (bias * weight * (gates > 0)).sum()
    if not loss.requires_grad:
        return bias, 0 * gates, 0 * scores
    back = torch.autograd.grad(loss, (gates, scores), allow_unused=True)
    return bias, *(0 * x if g is None else g for x, g in zip((gates, scores), back, strict=True))


def _cope(gates: Any, scores: Any) -> Any:
    """The same three arrays without PyTorch: the derivatives are written out."""
    last = scores.shape[1] - 1
    bias, to_gates, to_scores = np.zeros_like(gates), np.zeros_like(gates), np.zeros_like(scores)
    weight = np.arange(1.0, gates.size + 1).reshape(gates.shape) * (gates > 0)
    for m, row in enumerate(gates):
        for n in range(len(row)):
            count = min(row[n:].sum(), last)
            below = int(count)
            above, f = min(below + 1, last), count - below
            bias[m, n] = (1 - f) * scores[m, below] + f * scores[m, above]
            to_scores[m, below] += weight[m, n] * (1 - f)
            to_scores[m, above] += weight[m, n] * f
            to_gates[m, n:] += weight[m, n] * (scores[m, above] - scores[m, below])
    return bias, to_gates, to_scores


def _look_up(counts: Any, scores: Any) -> Any:
    import torch

    counts = counts.clamp(max=scores.shape[1] - 1)
    below = counts.detach().floor().long()
    above = (below + 1).clamp(max=scores.shape[1] - 1)
    low, high = scores.gather(1, below), scores.gather(1, above)
    return torch.lerp(low, high, counts - below)


def _counts(gates: Any) -> Any:
    return gates.flip(1).cumsum(1).flip(1)


def _from_the_start(gates: Any, scores: Any) -> Any:
    return _look_up(gates.cumsum(1), scores)


def _own_gate_left_out(gates: Any, scores: Any) -> Any:
    return _look_up(_counts(gates) - gates, scores)


def _rounded(gates: Any, scores: Any) -> Any:
    counts = _counts(gates).clamp(max=scores.shape[1] - 1)
    return scores.gather(1, counts.round().long())


def _floored(gates: Any, scores: Any) -> Any:
    counts = _counts(gates).clamp(max=scores.shape[1] - 1)
    return scores.gather(1, counts.long())


def _detached(gates: Any, scores: Any) -> Any:
    return _look_up(_counts(gates).detach(), scores)


def _scores_detached(gates: Any, scores: Any) -> Any:
    return _look_up(_counts(gates), scores.detach())


def _weights_exchanged(gates: Any, scores: Any) -> Any:
    counts = _counts(gates).clamp(max=scores.shape[1] - 1)
    below = counts.floor().long()
    low, high = scores.gather(1, below), scores.gather(1, (below + 1).clamp(max=scores.shape[1] - 1))
    return high + (counts - below) * (low - high)


def _not_clamped(gates: Any, scores: Any) -> Any:
    counts = _counts(gates)
    below = counts.floor().long()
    low, high = scores.gather(1, below), scores.gather(1, below + 1)
    return low + (counts - below) * (high - low)


def _starts_again(gates: Any, scores: Any) -> Any:
    return _look_up(_counts(gates) % (scores.shape[1] - 1), scores)


def _over_queries(gates: Any, scores: Any) -> Any:
    return _look_up(gates.flip(0).cumsum(0).flip(0), scores)


def _gate_alone(gates: Any, scores: Any) -> Any:
    return _look_up(gates, scores)


def _first_query_s_scores(gates: Any, scores: Any) -> Any:
    return _look_up(_counts(gates), scores[:1].expand(len(scores), -1))


def _cope_by_hats(gates: Any, scores: Any) -> Any:
    """Each row of the table weighs with a triangle around its number."""
    import torch

    counts = _counts(gates).clamp(max=scores.shape[1] - 1)
    rows = torch.arange(scores.shape[1], dtype=gates.dtype)
    hats = (1 - (counts[:, :, None] - rows).abs()).clamp(min=0)  # (q, k, rows)
    return (hats * scores[:, None, :]).sum(2)


def _cope_by_matrix(gates: Any, scores: Any) -> Any:
    import torch

    after = torch.tril(torch.ones(gates.shape[1], gates.shape[1], dtype=gates.dtype))  # row t, column n: t ≥ n
    counts = torch.minimum(gates @ after, torch.tensor(scores.shape[1] - 1.0, dtype=gates.dtype))
    below, above = counts.floor().long(), counts.ceil().long()
    f = counts - below
    return (1 - f) * scores.gather(1, below) + f * scores.gather(1, above)


@st.composite
def _gated(draw: Any) -> Any:
    q, new, rows = draw(sizes(1, 2, 3)), draw(sizes(1, 2)), draw(sizes(2, 3, 4))
    k = q + new
    sixteenths = np.array([[draw(st.integers(1, 15)) for _ in range(k)] for _ in range(q)])
    gates = sixteenths / 16 + 1 / 256  # no sum of a few of them is a whole number, where the slope would be undefined
    hidden = np.arange(k) > np.arange(k - q, k)[:, None]
    return np.where(hidden, 0.0, gates), draw(quarters(q, rows))


_COPE = Exercise(
    id="beyond.cope",
    number="15.2",
    chapter="15_beyond",
    title="Positions that are counted",
    minutes=15,
    difficulty=3,
    function="counted_bias",
    reference=_cope,
    inputs=_gated(),
    kinds=("torch",),
    use=_with_gradients,
    edges={
        "five open gates, a table of three rows": (
            np.full((1, 5), 0.9375 + 1 / 256),
            np.array([[0.5, -1.0, 2.0]]),
        ),
        "two queries behind a cache": (
            np.array([[0.25, 0.5, 0.75, 0.0], [0.5, 0.25, 0.875, 0.625]]) + np.array([1, 1, 1, 0]) / 256,
            np.array([[0.0, 1.0, 4.0], [2.0, -1.0, 0.5]]),
        ),
    },
    mistakes=(
        Mistake(
            _from_the_start,
            "The gates are summed from the first key. Count from the query back: the position of a key is the sum of"
            " the gates at that key and after it.",
            "flip, sum, flip back.",
        ),
        Mistake(
            _own_gate_left_out,
            "A key's own gate is not counted. The sum runs from the key to the query, both included.",
            "with all gates open, what is the position of the query's own token?",
        ),
        Mistake(
            _rounded,
            "The count is rounded to the nearest row of the table. No gradient passes through rounding: the gates "
            "would never learn. Mix the two rows around the count.",
            "what should a count of 1.5 give?",
        ),
        Mistake(
            _floored,
            "The fraction is cut off, so the gates get no gradient and would never learn. Mix the two rows around "
            "the count.",
            "what should a count of 1.5 give?",
        ),
        Mistake(
            _detached,
            "The values are right, and the gates get no gradient: the counts are cut off from them. Only the row "
            "numbers are whole and have none; the fraction must keep its way back.",
            "is there a detach, a no_grad or an item between the gates and the fraction?",
        ),
        Mistake(
            _scores_detached,
            "The values are right, and the scores get no gradient, so the table of positions would never learn.",
            "is there a detach around the scores?",
        ),
        Mistake(
            _weights_exchanged,
            "The two rows have each other's weight: a count of 1.25 is nearer to row 1, so row 1 weighs 0.75.",
        ),
        Mistake(
            _not_clamped,
            "Counts beyond the table are looked up in it. They stay at the last row: limit the counts first, and the"
            " row above as well.",
            "how many rows has the table, and what is the number of the last one?",
        ),
        Mistake(_starts_again, "Counts beyond the table begin again at 0. They stay at the last row."),
        Mistake(
            _over_queries,
            "The gates are summed over queries. Each query counts for itself, along its own row: axis 1.",
        ),
        Mistake(
            _gate_alone,
            "The gate itself is taken for the position. A position is the sum of the gates from the key to the query.",
        ),
        Mistake(
            _first_query_s_scores,
            "All queries use the first query's scores. Row m of the scores belongs to query m.",
        ),
    ),
    alternatives=(_cope_by_hats, _cope_by_matrix),
)


# --- 15.3 a report about a list


def _judged(flags: Any, after: Any) -> tuple[int, bool]:
    still = np.array([np.allclose(layer, layer[:1], rtol=0, atol=1e-6) for layer in after])
    return int(still.sum()), bool(np.all((flags == 1) == still))


def _ones_counted(flags: Any, after: Any) -> tuple[int, bool]:
    return int(np.sum(flags == 1)), _judged(flags, after)[1]


def _zeros_counted(flags: Any, after: Any) -> tuple[int, bool]:
    return int(np.sum(flags == 0)), _judged(flags, after)[1]


def _turning_counted(flags: Any, after: Any) -> tuple[int, bool]:
    still, right = _judged(flags, after)
    return len(flags) - still, right


def _other_reading(flags: Any, after: Any) -> tuple[int, bool]:
    return _judged(flags, after)[0], _judged(1 - flags, after)[1]


def _any_layer(flags: Any, after: Any) -> tuple[int, bool]:
    still = np.array([np.allclose(layer, layer[:1], rtol=0, atol=1e-6) for layer in after])
    return int(still.sum()), bool(np.any((flags == 1) == still))


def _ones_only(flags: Any, after: Any) -> tuple[int, bool]:
    still = np.array([np.allclose(layer, layer[:1], rtol=0, atol=1e-6) for layer in after])
    return int(still.sum()), bool(np.all(still[flags == 1]))


def _same_number(flags: Any, after: Any) -> tuple[int, bool]:
    still = _judged(flags, after)[0]
    return still, still == int(flags.sum())


def _bit_by_bit(flags: Any, after: Any) -> tuple[int, bool]:
    still = np.array([bool(np.all(layer == layer[:1])) for layer in after])
    return int(still.sum()), bool(np.all((flags == 1) == still))


def _by_norm(flags: Any, after: Any) -> tuple[int, bool]:
    norms = np.linalg.norm(after, axis=2)
    still = np.ptp(norms, axis=1) < 1e-6
    return int(still.sum()), bool(np.all((flags == 1) == still))


def _first_two(flags: Any, after: Any) -> tuple[int, bool]:
    still = np.abs(after[:, 1] - after[:, 0]).max(axis=1) < 1e-6
    return int(still.sum()), bool(np.all((flags == 1) == still))


def _first_pair(flags: Any, after: Any) -> tuple[int, bool]:
    still = np.ptp(after[:, :, 0], axis=1) < 1e-6
    return int(still.sum()), bool(np.all((flags == 1) == still))


def _loose(flags: Any, after: Any) -> tuple[int, bool]:
    still = np.array([np.allclose(layer, layer[:1], rtol=0, atol=0.1) for layer in after])
    return int(still.sum()), bool(np.all((flags == 1) == still))


def _judged_loops(flags: Any, after: Any) -> tuple[int, bool]:
    count, agrees = 0, True
    for flag, layer in zip(flags, after, strict=True):
        farthest = max(float(np.linalg.norm(a - b)) for a in layer for b in layer)
        count += farthest < 1e-5
        agrees = agrees and (flag == 1) == (farthest < 1e-5)
    return int(count), bool(agrees)


def _judged_by_spread(flags: Any, after: Any) -> tuple[int, bool]:
    still = np.ptp(after, axis=1).max(axis=1) < 1e-6
    return int(np.count_nonzero(still)), np.array_equal(still.astype(flags.dtype), flags)


@st.composite
def _recorded(draw: Any) -> Any:
    layers, n = draw(sizes(2, 3, 4)), draw(sizes(2, 3))
    reading = draw(st.sampled_from(["1 = turns", "1 = still", "mixed"]))
    flags = np.array([draw(st.integers(0, 1)) for _ in range(layers)])
    if reading == "mixed":
        turns = np.array([draw(st.integers(0, 1)) for _ in range(layers)])
    else:
        turns = flags if reading == "1 = turns" else 1 - flags
    token = 1.0 + np.abs(draw(quarters(4)))  # no channel is 0, so that a turn is seen
    positions = np.sort(np.array(draw(st.lists(st.integers(0, 40), min_size=n, max_size=n, unique=True))))
    return flags, _queries(turns, token, positions)


def _queries(turns: Any, token: Any, positions: Any) -> Any:
    """What each layer's positional step makes of copies of one token, with the rounding of a real model."""
    angles = np.outer(positions, [1.0, 0.01])
    turned = _turned(np.tile(token, (len(positions), 1)), angles)
    noise = 1e-9 * np.arange(len(positions))[:, None]
    return np.stack([turned if t else token + noise for t in turns])


_EVERY_FOURTH = np.array([1, 1, 1, 0, 1, 1, 1, 0])
_REPORT = Exercise(
    id="beyond.report",
    number="15.3",
    chapter="15_beyond",
    title="Is this a bug? A list that says no",
    minutes=12,
    difficulty=2,
    function="judge",
    reference=_judged,
    inputs=_recorded(),
    kinds=("bug",),
    edges={
        "eight layers, as in the library": (
            _EVERY_FOURTH,
            _queries(_EVERY_FOURTH, np.array([1.0, 0.5, -0.5, 2.0]), np.array([0, 1, 7])),
        ),
        "eight layers, read the other way round": (
            _EVERY_FOURTH,
            _queries(1 - _EVERY_FOURTH, np.array([1.0, 0.5, -0.5, 2.0]), np.array([0, 1, 7])),
        ),
        "one layer disagrees": (
            np.array([1, 0, 1]),
            _queries(np.array([0, 1, 1]), np.array([1.0, 0.5, -0.5, 2.0]), np.array([2, 3, 9])),
        ),
        "as many ones as still layers, but elsewhere": (
            np.array([1, 0]),
            _queries(np.array([1, 0]), np.array([1.0, 0.5, -0.5, 2.0]), np.array([2, 3])),
        ),
        "only a slow pair shows it": (
            np.array([0, 1]),
            _queries(np.array([1, 0]), np.array([0.0, 0.0, 1.0, 1.0]), np.array([4, 5])),
        ),
        "a slow turn": (
            np.array([1, 0]),
            np.array([[[1.0, 1.0, 0.5, 2.0], [0.96, 1.04, 0.5, 2.0]], [[1.0, 1.0, 0.5, 2.0]] * 2]),
        ),
        "rounding of half a millionth": (
            np.array([1, 0]),
            np.stack([_queries(np.array([1]), np.ones(4), np.array([2, 3]))[0], 1 + 5e-7 * np.eye(2, 4)]),
        ),
        "a turn by a thousandth, by the middle copy alone": (
            np.array([1, 0]),
            np.array([[[1.0, 1, 1, 1], [0.999, 1.001, 1, 1], [1, 1, 1, 1]], [[1.0, 1, 1, 1]] * 3]),
        ),
        "a 0 that rests too": (
            np.array([0, 1]),
            _queries(np.array([0, 0]), np.array([1.0, 0.5, -0.5, 2.0]), np.array([2, 3])),
        ),
        "the first two are alike": (
            np.array([0, 1]),
            np.stack([np.array([[1.0, 1.0, 1.0, 1.0]] * 2 + [[0.5, 1.3, 1.0, 1.0]]), np.ones((3, 4))]),
        ),
    },
    mistakes=(
        Mistake(
            _ones_counted,
            "The ones of the list are counted. That assumes the report's reading instead of testing it: count the "
            "layers whose queries do not change with the position.",
            "the list says what somebody meant; which of the two inputs says what the model does?",
        ),
        Mistake(
            _zeros_counted,
            "The zeros of the list are counted. That assumes a reading instead of testing it: count the layers whose"
            " queries do not change with the position.",
            "the list says what somebody meant; which of the two inputs says what the model does?",
        ),
        Mistake(
            _turning_counted,
            "These are the layers that do turn. Asked for are those without rotation, whose copies stay alike.",
        ),
        Mistake(
            _other_reading,
            "The second answer is about the opposite reading. The report says: 1 means that the layer does NOT turn.",
            "for a layer with a 1 that turns, is the report right?",
        ),
        Mistake(_any_layer, "One layer that agrees is not enough: the reading must be right for all of them."),
        Mistake(
            _ones_only,
            "Only layers with a 1 are looked at. The reading also says that a 0 rotates.",
            "what if all layers rest, those with a 0 too?",
        ),
        Mistake(
            _same_number,
            "The numbers of ones and of still layers are compared. They can be equal while the layers are others.",
            "compare layer by layer.",
        ),
        Mistake(
            _bit_by_bit,
            "Copies are compared bit by bit. A real model's matrix products round differently from row to row, so a "
            "layer without rotation gives copies that differ by 1e-9.",
            "allow a difference of 1e-6.",
        ),
        Mistake(
            _by_norm,
            "Norms are compared. A rotation keeps every norm, so by this test no layer ever turns.",
            "what does a rotation change?",
        ),
        Mistake(
            _first_two,
            "Only the first two copies are compared. Others may differ.",
        ),
        Mistake(
            _first_pair,
            "Only the first channel is compared. It can stay while others turn: look at all of them.",
        ),
        Mistake(
            _loose,
            "The tolerance is so large that a slow pair, which turns by a hundredth a step, passes for one that rests.",
            "allow 1e-6.",
        ),
    ),
    alternatives=(_judged_loops, _judged_by_spread),
)

EXERCISES = (_AXIAL, _COPE, _REPORT)
