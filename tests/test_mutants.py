"""Every solution, changed in one place at a time: ``check`` must reject all that is not the same function.

What passes is listed below and judged, one by one. A change of a solution that is none, such as ``d / 2`` for an even
``d``, goes into EQUIVALENT with the reason; any other that passes shows inputs that are too weak: add an edge.
"""

import pytest
from mutants import TooLong, mutants, survives, time_limit
from test_exercises import answer_cell

from posenc_ref.grading.exercise import all_exercises, find_exercise

EVEN = "the width is even, so that / and // agree"
ONE_WIDTH = "queries and keys have the same width"
ONE_LENGTH = "keys and values have the same length"
LAST_AXIS = "the last axis is the default of take_along_axis"
ROUNDING = "the bound lies between rounding errors and real differences; no input comes near it"

EQUIVALENT = {
    "attention.softmax_attention": {
        "e = np.exp(logits - np.where(np.isfinite(top), top, 1.0))": "the whole row is −∞: any finite number will do",
        "return e / np.where(total == 0, 1.25, total) @ v": "0 divided by anything but 0 is 0",
        "logits = q @ k.T / np.sqrt(k.shape[-1])": ONE_WIDTH,
    },
    "attention.unseen_orders": {
        "difference = bias - bias[p][:, p]": "only the extent of the differences counts",
        "passes.append(np.ptp(difference, axis=1).max() <= 1e-09)": ROUNDING,
        "passes.append(np.ptp(difference, axis=1).max() < 1.25e-09)": ROUNDING,
    },
    "learned.look_up": {
        "vectors = table[np.where(missing, -1, positions + offset)]": "what missing ones read is overwritten",
    },
    "learned.position_rows": {
        "real = (input_ids != padding_idx).astype(np.int32)": "cumsum of short whole numbers counts in int64",
    },
    "learned.layer": {
        "vectors = self.weight[torch.where(real, positions + self.offset, 1)]": "padding is multiplied by 0",
        "vectors = self.weight[torch.where(real, positions + self.offset, -1)]": "padding is multiplied by 0",
    },
    "sinusoidal.layer": {"i = torch.arange(dim / 2, dtype=torch.float64)": EVEN},
    "sinusoidal.table": {"i = np.arange(d_model / 2)": EVEN},
    "sinusoidal.wavelengths_to_base": {"last = d_model / 2 - 1": EVEN},
    "sinusoidal.shift_matrix": {
        "s, c = (2 * i, 2 * i + 1) if layout == 'interleaved' else (i, i - half)": "i − half is i + half, from the end",
    },
    "other_absolute.generator": {
        "s, c = (2 * i, 2 * i + 1) if layout == 'interleaved' else (i, i - half)": "i − half is i + half, from the end",
    },
    "other_absolute.two_parts": {
        "d = len(y)": "x and y have the same length",
        "near = np.sum((sines + cosines) / 2 * np.cos(omega * (m - n)))": "the cosine is even",
    },
    "other_absolute.same_sum": {
        "difference = weights[b == word].sum(axis=0) - weights[a == word].sum(axis=0)": "its absolute value is taken",
        "if np.abs(difference).max() >= 1e-09:": ROUNDING,
        "if np.abs(difference).max() > 1.25e-09:": ROUNDING,
        "if difference.max() > 1e-09:": "over all words the differences add up to 0: one of them is positive",
    },
    "shaw.key_logits": {
        "picked = np.take_along_axis(q @ keys.T, row)": LAST_AXIS,
        "return (q @ k.T + picked) / math.sqrt(k.shape[1])": ONE_WIDTH,
    },
    "xl.shift": {
        "padded = np.concatenate([np.ones((q_len, 1)), scores], axis=1)": "what stands there is zeroed at the end",
    },
    "shaw.decode": {
        "m = np.arange(len(v) - len(q), len(k))[:, None]": ONE_LENGTH,
        "m = np.arange(len(k) - len(q), len(v))[:, None]": ONE_LENGTH,
        "n, reach = (np.arange(len(v)), len(keys) // 2)": ONE_LENGTH,
        "n, reach = (np.arange(len(k)), len(values) // 2)": "both tables have the same length",
        "picked = np.take_along_axis(q @ keys.T, row)": LAST_AXIS,
        "logits = (q @ k.T + picked) / math.sqrt(k.shape[1])": ONE_WIDTH,
    },
    "t5.causal_bucket": {"more = exact": "the number of buckets is even: half is left"},
    "t5.two_sided_bucket": {"more = exact": "the number of buckets is a multiple of 4: half of a side is left"},
    "t5.halved_twice": {"more = exact": "the number of buckets is a multiple of 4: half of a side is left"},
    "t5.layer": {
        "steps = torch.log(n / exact) * (buckets - exact)": "below exact, far is not read",
        "steps = torch.log(n.clamp(min=exact) / exact) * exact": "the number of buckets is even: half is left",
        "return self.weight[torch.where(n <= exact, n, far)].permute(2, 0, 1)": "there the logarithm is 0",
    },
    "deberta.log_bucket": {
        "bucket = np.where(distance < h, distance, h + np.ceil(steps))": "at h the logarithm is 0, and h + 0 is h",
    },
    "deberta.three_terms": {
        "span = len(q_rel) // 2": "both tables have the same length",
        "c2p = np.take_along_axis(q @ k_rel.T, row)": LAST_AXIS,
        "p2c = np.take_along_axis(k @ q_rel.T, row.T).T": LAST_AXIS,
        "return (q @ k.T + c2p + p2c) / math.sqrt(3 * k.shape[1])": ONE_WIDTH,
    },
    "deberta.which_index": {
        "found.append(bool(np.all(np.abs(scores - right) <= 1e-09)))": ROUNDING,
        "found.append(bool(np.all(np.abs(scores - right) < 1.25e-09)))": ROUNDING,
    },
    "rope.inv_freq": {"g = np.arange(rotary_dim / 2)": EVEN},
    "rope.convert_weights": {
        "heads = w.reshape(-2, head_dim, w.shape[-1])": "NumPy takes any negative size for the one to find out",
    },
    "rope.decode_scores": {
        "d, past = (k.shape[-1], k_cache.shape[1])": ONE_WIDTH,
        "positions = past + np.arange(k.shape[1])": "new queries and new keys are the same tokens",
    },
    "rope.rerotate": {
        "if gap < 0:": "a gap of 0 leaves the cache as it is either way",
        "if gap <= -1:": "a gap of 0 leaves the cache as it is either way",
        "return k_cache": "nothing is evicted: a copy and the cache itself are equal",
    },
    "scaling.unfinished": {
        "return int(np.sum(length * theta <= 2 * np.pi))": "no float is exactly one turn of a whole length",
    },
    "scaling.by_parts": {"g = np.arange(rotary_dim / 2)": EVEN},
    "scaling.yarn_logits": {"return (c ** 2 * turning + passing) / math.sqrt(k.shape[1])": ONE_WIDTH},
    "scaling.promises": {
        "kept = np.abs(ratio[turns >= 32] - 1) <= 1e-05": ROUNDING,
        "kept = np.abs(ratio[turns >= 32] - 1) < 1.25e-05": ROUNDING,
        "kept = np.abs(ratio[turns > 32] - 1) < 1e-05": "no pair makes exactly 32 turns: π is no fraction",
        "slowed = np.abs(ratio[turns <= 1] * factor - 1) <= 1e-05": ROUNDING,
        "slowed = np.abs(ratio[turns <= 1] * factor - 1) < 1.25e-05": ROUNDING,
        "slowed = np.abs(ratio[turns < 1] * factor - 1) < 1e-05": "no pair makes exactly one turn: π is no fraction",
    },
    "alibi.slopes": {
        "between = 2.0 ** (-8 * np.arange(1, 3 * p, 2) / (2 * p))": "the list is cut to the number of heads",
    },
    "alibi.positive": {
        "n = np.arange(len(content)) + 1": "it adds the same to all logits of a row",
        "released, paper = (weights(-slope * np.abs(n[:, None] - n)), weights(slope * n))": "a distance has no order",
    },
    "alibi.kernel": {
        "q_len, k_len = (q.shape[1], v.shape[1])": ONE_LENGTH,
        "group = q.shape[0] // v.shape[0]": "keys and values have the same heads",
    },
    "rope.peak": {
        "angle = (angle - math.pi) % (2 * math.pi) - math.pi": "the two differ by a full turn before the remainder",
    },
    "rope.rotary_layer": {
        "self.cos = self.cos = torch.empty(0, rotary_dim // 2)": "a missing table is made before it is read",
        "self.cos = self.sin = torch.empty(0, rotary_dim)": "the empty table is replaced at the first call",
        "self.cos = self.sin = torch.empty(0, rotary_dim // 3)": "the empty table is replaced at the first call",
        "self.cos = self.sin = torch.empty(0, rotary_dim // 1)": "the empty table is replaced at the first call",
        "half = sin.shape[-1]": "both tables have the same width",
        "angles = torch.arange(last + 1)[:, None] * self.theta": "how much longer the table is made is free",
        "angles = torch.arange(1 * last + 1)[:, None] * self.theta": "how much longer the table is made is free",
        "if last >= len(self.sin):": "both tables have the same length",
        "angles = torch.arange(3 * last + 1)[:, None] * self.theta": "how much longer the table is made is free",
        "angles = torch.arange(2 * last + 2)[:, None] * self.theta": "how much longer the table is made is free",
        "wide = torch.promote_types(x.dtype, torch.float64)": "wider than asked for, and cast back",
        "rows = (t[positions.cpu()].to(positions.device, wide) for t in (self.cos, self.sin))": "one device here",
    },
    "rope.convert_checkpoint": {"return _narrow(new)": "a dictionary has no dtype to narrow"},
    "cache.step": {
        "angle = len(values) * theta": "the cache has as many values as keys",
        "logits = keys @ turn(q) / np.sqrt(len(k))": "queries and keys have one width",
    },
    "cache.fixed": {
        "self.real = torch.ones(batch, slots, dtype=torch.bool)": "slots not yet written are hidden by their number",
        "start, self.length = (self.length, self.length + v.shape[2])": "as many values as keys come",
        "slot = torch.arange(self.real.shape[1]) + 1": "only the order of two slots is asked for",
    },
    "cache.sinks": {"return (turned.flatten(2), values)": "axis 2 is the last but one of four, before and after"},
    "length.reading": {
        "blocks = losses.mean(axis=0).reshape(-2, block).mean(axis=1)": 'NumPy reads any negative size as "the rest"',
        "fails = np.flatnonzero(blocks >= inside + tolerance)": ROUNDING,
    },
    "far.buckets": {
        "return (share, np.sqrt(share * (1 - share) / np.maximum(count, 2)), count)": "one answer has share 0 or 1: 0",
    },
    "far.sinks": {
        "paths = np.eye(length)": "it is made whole numbers in the first layer",
        "paths = paths.astype(int) @ layer.astype(int) > 0": "the order of the layers does not matter to the last row",
    },
    "choosing.read": {
        "return (rotary_dim, int((waves >= context).sum()), float(waves[-1]))": "2π times a power is no whole number",
    },
    "choosing.factor": {"return (met <= 2 * np.pi) & (needed > met)": "no pair of these turns by exactly 2π"},
    "choosing.squeeze": {
        "diagonals = [bias.diagonal(c, 1, 2).mean(1) for c in range(1 - q, k)]": "of two axes, 1 is the last",
        "return _narrow(((row[:, at] - bias).abs().max() <= 0.0001, row))": "the row is float32 before",
        "return ((row[:, at] - bias).abs().max() < 0.0001, row)": ROUNDING,
        "return ((bias - row[:, at]).abs().max() <= 0.0001, row)": "an absolute difference has no order",
    },
    "beyond.axial": {"half = x.shape[1] / 2": "an even number is halved exactly, and only divides"},
    "beyond.report": {
        "spread = np.abs(after - after[:, :1]).max(axis=(2, 1))": "a largest value over two axes has no order",
        "still = spread <= 1e-06": ROUNDING,
        "still = spread < 1.2499999999999999e-06": "a spread is rounding or a whole step; between the two lies nothing",
    },
    "cache.corner": {"top_left = np.tri(new, new, dtype=bool)": "the columns left out are False; rows are added up"},
}
"""Changes that are none: exercise, the line as it reads after the change, the reason."""

each = pytest.mark.parametrize("exercise", all_exercises(), ids=lambda e: e.id)


@each
def test_check_rejects_every_slip(exercise):
    source = answer_cell(exercise)
    assert survives(exercise, source), "the solution itself must pass, or nothing is shown"
    found = mutants(source)
    assert len(found) >= 10, "so short a solution is hardly tested by this"
    passing = [m for m in found if survives(exercise, m.source)]
    judged = EQUIVALENT.get(exercise.id, {})
    unjudged = [f"{m.kind}: {m.was}  →  {m.line}" for m in passing if m.line not in judged]
    assert not unjudged, "check lets these pass:\n" + "\n".join(unjudged)
    assert set(judged) <= {m.line for m in passing}, "judged, and no longer there"


def test_judgements_belong_to_exercises():
    assert set(EQUIVALENT) <= {e.id for e in all_exercises()}
    assert all(reason for lines in EQUIVALENT.values() for reason in lines.values())


def test_the_changes_are_those_people_make():
    source = "\n".join([
        "def f(x, positions):",
        '    """Text - 1 is left alone."""',
        "    angle = positions[:, None] * 0.5",
        "    if x.shape[-1] > 2:",
        "        raise ValueError('not 3')",
        "    return np.sin(angle) - x.T",
    ])  # fmt: skip
    lines = {(m.kind, m.line) for m in mutants(source)}
    assert {
        ("sign", "return np.sin(angle) + x.T"),
        ("order", "return x.T - np.sin(angle)"),
        ("dropped term", "return np.sin(angle)"),
        ("other function", "return np.cos(angle) - x.T"),
        ("axes", "return np.sin(angle) - x"),
        ("other variable", "return np.sin(angle) - positions.T"),
        ("dtype", "return _narrow(np.sin(angle) - x.T)"),
        ("order", "angle = positions[None, :] * 0.5"),
        ("constant", "angle = positions[:, None] * 0.625"),
        ("sign", "angle = positions[:, None] / 0.5"),
        ("off by one", "if x.shape[-2] > 2:"),
        ("off by one", "if x.shape[-1] > 3:"),
        ("condition", "if x.shape[-1] >= 2:"),
    } <= lines
    assert all("Text - 1 is left alone." in m.source and "not 3" in m.source for m in mutants(source))
    assert len({m.source for m in mutants(source)}) == len(mutants(source))


def test_a_loop_without_end_is_stopped():
    assert not survives(find_exercise("rope.rotate"), "def rotate(x, positions):\n    while True:\n        pass", 0.2)
    with pytest.raises(TooLong), time_limit(0.2):
        while True:
            pass
