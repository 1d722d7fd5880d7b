"""Exercises of chapter 13: using far context."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters

TITLE = "using far context"
CHAPTER = "13_using_far_context"


# --- 13.1 reach of a stack of windows


def _reach(windows: Any, length: int) -> Any:
    """By walking the text: the oldest token whose signal arrives at the last one, layer by layer."""
    oldest = length - 1
    for w in windows:
        oldest = max(0, oldest - (int(w) - 1)) if w else 0
    return length - 1 - oldest


def _reach_sum(windows: Any, length: int) -> Any:
    return length - 1 if 0 in windows else min(length - 1, int(np.sum(windows)))


def _reach_largest(windows: Any, length: int) -> Any:
    return length - 1 if 0 in windows else min(length - 1, int(np.max(windows)) - 1)


def _reach_product(windows: Any, length: int) -> Any:
    return length - 1 if 0 in windows else min(length - 1, int(np.prod(windows)) - 1)


def _reach_one_less(windows: Any, length: int) -> Any:
    return length - 1 if 0 in windows else min(length - 1, int(np.sum(windows)) - 1)


def _reach_no_end(windows: Any, length: int) -> Any:
    return length - 1 if 0 in windows else int(np.sum(windows - 1))


def _reach_zero_is_nothing(windows: Any, length: int) -> Any:
    return min(length - 1, int(np.sum(np.maximum(windows - 1, 0))))


def _reach_counts_itself(windows: Any, length: int) -> Any:
    return _reach(windows, length) + 1


def _reach_by_masks(windows: Any, length: int) -> Any:
    i = np.arange(length)
    back = i[:, None] - i
    seen = np.eye(length, dtype=np.int64)
    for w in windows:
        seen = np.minimum(((back >= 0) & (back < (w or length))).astype(np.int64) @ seen, 1)
    return int(length - 1 - seen[-1].argmax())


def _reach_formula(windows: Any, length: int) -> Any:
    steps = [length - 1 if w == 0 else int(w) - 1 for w in windows]
    return min(sum(steps), length - 1)


@st.composite
def _windows(draw: Any) -> tuple[Any, int]:
    windows = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
    return np.array(windows), draw(st.integers(2, 30))


_REACH = Exercise(
    id="far.reach",
    number="13.1",
    chapter=CHAPTER,
    title="How far back a stack can look",
    minutes=6,
    difficulty=1,
    function="reach",
    reference=_reach,
    inputs=_windows(),
    edges={
        "two layers of 32": (np.array([32, 32]), 512),
        "a full layer between": (np.array([4, 0, 4]), 40),
        "a short text": (np.array([32, 32]), 20),
        "a window of one": (np.array([1, 5]), 20),
    },
    properties=(
        Property("a layer with a window of 1 changes nothing", lambda f, w, n: (f(np.append(w, 1), n), f(w, n))),
    ),
    mistakes=(
        Mistake(
            _reach_sum,
            "You add the windows. A window counts the token itself, so a window of w looks w − 1 back.",
            "what does one layer with a window of 1 see?",
        ),
        Mistake(
            _reach_largest,
            "You take the largest window alone. The second layer reads tokens that have looked back too: "
            "windows add up.",
            "draw two layers with windows of 2 and follow the arrows.",
        ),
        Mistake(
            _reach_product,
            "You multiply the windows. Each layer adds its steps; it does not multiply them.",
            "two windows of 3: how many tokens back, counted by hand?",
        ),
        Mistake(
            _reach_one_less,
            "You take 1 off once. Each layer sees its own token, so 1 comes off for each layer.",
            "two windows of 1 see nothing but the token itself.",
        ),
        Mistake(
            _reach_no_end,
            "You look farther back than the text begins. The last of `length` tokens has length − 1 before it.",
            "take the smaller of the two numbers.",
        ),
        Mistake(
            _reach_zero_is_nothing,
            "You read a window of 0 as no step back. Here 0 stands for no window: that layer sees everything.",
            "one full layer is enough. What is the answer then?",
        ),
        Mistake(
            _reach_counts_itself,
            "You count the tokens that are seen, the last one included. Asked for is how far *back* the oldest is.",
            "a single window of 1 has reach 0.",
        ),
    ),
    alternatives=(_reach_by_masks, _reach_formula),
)


# --- 13.2 share of right answers by distance


def _by_distance(right: Any, place: Any, length: Any, edges: Any) -> Any:
    share, error, count = (np.zeros(len(edges) - 1) for _ in range(3))
    for b in range(len(edges) - 1):
        inside = [bool(r) for r, p, n in zip(right, place, length, strict=True) if edges[b] <= n - 1 - p < edges[b + 1]]
        if inside:
            share[b] = sum(inside) / len(inside)
            error[b] = math.sqrt(share[b] * (1 - share[b]) / len(inside))
        count[b] = len(inside)
    return share, error, count.astype(np.int64)


def _sorted_in(right: Any, where: Any, edges: Any, left: bool = True) -> Any:
    at = np.searchsorted(edges, where, "right" if left else "left") - 1
    inside = (at >= 0) & (at < len(edges) - 1)
    count = np.bincount(at[inside], minlength=len(edges) - 1)
    hits = np.bincount(at[inside], weights=right[inside], minlength=len(edges) - 1)
    share = hits / np.maximum(count, 1)
    return share, np.sqrt(share * (1 - share) / np.maximum(count, 1)), count


def _by_place(right: Any, place: Any, length: Any, edges: Any) -> Any:
    return _sorted_in(right, place, edges)


def _from_behind_the_end(right: Any, place: Any, length: Any, edges: Any) -> Any:
    return _sorted_in(right, length - place, edges)


def _upper_edges(right: Any, place: Any, length: Any, edges: Any) -> Any:
    return _sorted_in(right, length - 1 - place, edges, left=False)


def _variance(right: Any, place: Any, length: Any, edges: Any) -> Any:
    share, error, count = _sorted_in(right, length - 1 - place, edges)
    return share, error**2, count


def _spread_of_answers(right: Any, place: Any, length: Any, edges: Any) -> Any:
    share, _, count = _sorted_in(right, length - 1 - place, edges)
    return share, np.sqrt(share * (1 - share)), count


def _all_texts(right: Any, place: Any, length: Any, edges: Any) -> Any:
    share, _, count = _sorted_in(right, length - 1 - place, edges)
    return share, np.sqrt(share * (1 - share) / len(right)), count


def _share_of_all(right: Any, place: Any, length: Any, edges: Any) -> Any:
    share, _, count = _sorted_in(right, length - 1 - place, edges)
    share = share * count / len(right)
    return share, np.sqrt(share * (1 - share) / np.maximum(count, 1)), count


def _one_length(right: Any, place: Any, length: Any, edges: Any) -> Any:
    return _sorted_in(right, length.max() - 1 - place, edges)


def _by_search(right: Any, place: Any, length: Any, edges: Any) -> Any:
    return _sorted_in(right, length - 1 - place, edges)


def _by_masks(right: Any, place: Any, length: Any, edges: Any) -> Any:
    distance = length - 1 - place
    inside = (distance >= edges[:-1, None]) & (distance < edges[1:, None])  # (buckets, texts)
    count = inside.sum(1)
    share = (inside & right).sum(1) / np.maximum(count, 1)
    return share, np.sqrt((share - share**2) / np.maximum(count, 1)), count


@st.composite
def _answers(draw: Any) -> tuple[Any, ...]:
    n = draw(st.integers(4, 14))
    length = np.array(draw(st.lists(st.integers(4, 20), min_size=n, max_size=n)))
    place = np.array([draw(st.integers(0, int(m) - 2)) for m in length])
    right = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    return right, place, length, np.array(draw(st.sampled_from([[0, 4, 8, 16], [1, 3, 9], [0, 2, 5, 6, 30]])))


_BUCKETS = Exercise(
    id="far.buckets",
    number="13.2",
    chapter=CHAPTER,
    title="Right answers by distance, with error bars",
    minutes=12,
    difficulty=2,
    function="by_distance",
    reference=_by_distance,
    inputs=_answers(),
    edges={
        "texts of two lengths": (
            np.array([True, True, False, True, False, False, True, False]),
            np.array([0, 5, 2, 30, 1, 40, 60, 33]),
            np.array([8, 8, 8, 64, 64, 64, 64, 64]),
            np.array([0, 4, 8, 32, 64]),
        ),
        "nearer than the first edge": (
            np.array([True, False, True]),
            np.array([6, 3, 5]),
            np.array([8, 8, 8]),
            np.array([2, 4, 9]),
        ),
        "an empty bucket": (
            np.array([True, False, True]),
            np.array([3, 3, 3]),
            np.array([5, 5, 6]),
            np.array([0, 1, 4]),
        ),
    },
    properties=(
        Property(
            "records beyond the last edge are in no bucket",
            lambda f, right, place, length, edges: (
                f(right, place, length, edges)[2].sum(),
                ((length - 1 - place >= edges[0]) & (length - 1 - place < edges[-1])).sum(),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _by_place,
            "You sort by the place of the record. Asked for is its distance from the query, length − 1 − place.",
            "texts have different lengths: the same place is near in one and far in another.",
        ),
        Mistake(
            _from_behind_the_end,
            "Your distances are one too large: the query stands at length − 1, not at length.",
            "a record right before the query has distance 1.",
        ),
        Mistake(
            _upper_edges,
            "A distance that equals an edge falls into the bucket that ends there. Each bucket begins with its edge: "
            "edges[b] ≤ distance < edges[b + 1].",
            "look at `side` of searchsorted.",
        ),
        Mistake(
            _variance,
            "Your error is a variance: the root is missing.",
            "an error bar has the unit of the share itself.",
        ),
        Mistake(
            _spread_of_answers,
            "This is the spread of a single answer, √(a(1 − a)). The mean of n answers is surer, by √n.",
            "what happens to your error when the number of texts grows?",
        ),
        Mistake(
            _all_texts,
            "You divide by the number of all texts. A bucket's error comes from the texts *in the bucket*.",
            "which of the two shrinks when texts are added to another bucket?",
        ),
        Mistake(
            _share_of_all,
            "Your shares are parts of all texts. A bucket's share is that among the texts in the bucket.",
            "if every answer is right, each share is 1.",
        ),
        Mistake(
            _one_length,
            "You measure every distance from the end of the longest text. Each text has its own end.",
            "use `length`, one number for each text.",
        ),
    ),
    alternatives=(_by_search, _by_masks),
)


# --- 13.3 what a perplexity can hide


def _hidden(perplexities: Any, gain: float) -> float:
    losses = np.log(perplexities)
    return float(min(1.0, (losses.max() - losses.min()) / gain))


def _hidden_linear(perplexities: Any, gain: float) -> float:
    return float(min(1.0, (perplexities.max() - perplexities.min()) / gain))


def _hidden_relative(perplexities: Any, gain: float) -> float:
    return float(min(1.0, (perplexities.max() / perplexities.min() - 1) / gain))


def _hidden_base_two(perplexities: Any, gain: float) -> float:
    return float(min(1.0, np.log2(perplexities.max() / perplexities.min()) / gain))


def _hidden_no_cap(perplexities: Any, gain: float) -> float:
    return float(np.log(perplexities.max() / perplexities.min()) / gain)


def _hidden_times(perplexities: Any, gain: float) -> float:
    return float(min(1.0, np.log(perplexities.max() / perplexities.min()) * gain))


def _hidden_exponential(perplexities: Any, gain: float) -> float:
    return float(min(1.0, np.log(perplexities.max() / perplexities.min()) / np.exp(gain)))


def _hidden_first_last(perplexities: Any, gain: float) -> float:
    return float(min(1.0, abs(np.log(perplexities[-1] / perplexities[0])) / gain))


def _hidden_std(perplexities: Any, gain: float) -> float:
    return float(min(1.0, np.log(perplexities).std() / gain))


def _hidden_ratio(perplexities: Any, gain: float) -> float:
    ratio = perplexities.max() / perplexities.min()
    return float(min(1.0, math.log(ratio) / gain))


def _hidden_bisection(perplexities: Any, gain: float) -> float:
    ratio = perplexities.max() / perplexities.min()
    low, high = 0.0, 1.0
    if math.exp(gain) <= ratio:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.exp(middle * gain) <= ratio else (low, middle)
    return low


@st.composite
def _seeds(draw: Any) -> tuple[Any, float]:
    quarter = st.integers(8, 40)
    values = draw(st.lists(quarter, min_size=3, max_size=5, unique=True))
    return np.array(values) / 4, draw(st.sampled_from([0.5, 1.0, 2.0, 3.5]))


_HIDDEN = Exercise(
    id="far.hidden",
    number="13.3",
    chapter=CHAPTER,
    title="Derive: how much blindness hides between two seeds",
    minutes=10,
    difficulty=2,
    kinds=("derive",),
    function="hidden_share",
    reference=_hidden,
    inputs=_seeds(),
    edges={
        "three seeds of one model": (np.array([6.25, 6.22, 6.31]), 2.0),
        "no spread": (np.array([5.0, 5.0, 5.0]), 2.0),
        "a spread that hides everything": (np.array([2.0, 9.0]), 0.5),
        "the extremes are not at the ends": (np.array([5.0, 6.0, 4.0, 5.5]), 1.0),
    },
    properties=(
        Property("twice the gain, half the share", lambda f, p, g: (min(1.0, f(p, 8 * g) * 2), min(1.0, f(p, 4 * g)))),
        Property("the unit of perplexity does not matter", lambda f, p, g: (f(3 * p, g), f(p, g))),
    ),
    mistakes=(
        Mistake(
            _hidden_linear,
            "You take the difference of the perplexities. Losses add; perplexities multiply: the logarithm of their "
            "ratio is what a difference of losses is.",
            "what is ln of e^(εg)?",
        ),
        Mistake(
            _hidden_relative,
            "You use ratio − 1 for ln ratio. The two agree for tiny spreads only.",
            "solve e^(εg) = ratio for ε, without a shortcut.",
        ),
        Mistake(_hidden_base_two, "That is the logarithm to base 2. A gain in nats goes with ln.", "use np.log."),
        Mistake(
            _hidden_no_cap,
            "Your share can exceed 1. No more than all tokens can need the fact.",
            "take the smaller of your number and 1.",
        ),
        Mistake(
            _hidden_times,
            "You multiply by the gain. The more a single blind token costs, the *fewer* of them can hide.",
            "solve e^(εg) = ratio for ε.",
        ),
        Mistake(
            _hidden_exponential,
            "You divide by e^g. The gain is in nats already: it stands in the exponent as it is.",
            "ε g = ln ratio.",
        ),
        Mistake(
            _hidden_first_last,
            "You compare the first seed with the last one. The spread goes from the smallest to the largest.",
            "try seeds in another order.",
        ),
        Mistake(
            _hidden_std,
            "You take the standard deviation. Here the spread is the whole range, largest over smallest.",
            "two seeds that differ by the factor e must allow εg = 1.",
        ),
    ),
    alternatives=(_hidden_ratio, _hidden_bisection),
)


# --- 13.4 sinks and a window


def _seen(windows: Any, sinks: int, length: int) -> Any:
    i = np.arange(length)
    back = i[:, None] - i
    seen = np.eye(length, dtype=bool)
    for w in windows:
        layer = (back >= 0) & ((back < w) | (i < sinks))
        seen = (layer[:, :, None] & seen[None]).any(1)
    return seen[-1]


def _seen_windows_only(windows: Any, sinks: int, length: int) -> Any:
    return _seen(windows, 0, length)


def _seen_everything(windows: Any, sinks: int, length: int) -> Any:
    return np.ones(length, dtype=bool) if sinks else _seen(windows, 0, length)


def _seen_one_layer(windows: Any, sinks: int, length: int) -> Any:
    return _seen(windows[-1:], sinks, length)


def _seen_sum_of_windows(windows: Any, sinks: int, length: int) -> Any:
    back = length - 1 - np.arange(length)
    return (back <= np.sum(windows)) | (np.arange(length) < sinks)


def _seen_largest(windows: Any, sinks: int, length: int) -> Any:
    back = length - 1 - np.arange(length)
    return (back <= np.max(windows) - 1) | (np.arange(length) < sinks)


def _seen_sinks_reach(windows: Any, sinks: int, length: int) -> Any:
    i = np.arange(length)
    r = int(np.sum(windows - 1))
    return (length - 1 - i <= r) | (i < sinks + r)  # as if sinks looked forward


def _seen_one_sink_more(windows: Any, sinks: int, length: int) -> Any:
    return _seen(windows, sinks + 1, length)


def _seen_numbers(windows: Any, sinks: int, length: int) -> Any:
    return np.flatnonzero(_seen(windows, sinks, length))


def _seen_formula(windows: Any, sinks: int, length: int) -> Any:
    i = np.arange(length)
    return (length - 1 - i <= int(np.sum(windows)) - len(windows)) | (i < sinks)


def _seen_by_search(windows: Any, sinks: int, length: int) -> Any:
    frontier = {length - 1}
    for w in reversed([int(w) for w in windows]):
        frontier = {n for m in frontier for n in range(length) if n <= m and (m - n < w or n < sinks)}
    return np.array([n in frontier for n in range(length)])


@st.composite
def _streams(draw: Any) -> tuple[Any, int, int]:
    windows = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return np.array(windows), draw(st.integers(0, 3)), draw(st.integers(6, 16))


_SINKS = Exercise(
    id="far.sinks",
    number="13.4",
    chapter=CHAPTER,
    title="Is this a bug? Sinks that should see everything",
    minutes=14,
    difficulty=3,
    kinds=("bug",),
    function="seen",
    reference=_seen,
    inputs=_streams(),
    edges={
        "four sinks, two layers": (np.array([3, 3]), 4, 20),
        "no sinks": (np.array([2, 3]), 0, 9),
        "a single layer": (np.array([3]), 1, 8),
        "windows of one": (np.array([1, 1]), 2, 7),
    },
    properties=(
        Property(
            "sinks add the first tokens and nothing else",
            lambda f, w, s, n: (f(w, s, n), f(w, 0, n) | (np.arange(n) < s)),
        ),
    ),
    mistakes=(
        Mistake(
            _seen_windows_only,
            "The sinks are missing: every token sees the first `sinks` tokens, in every layer.",
            "which tokens does a single layer with a window of 1 and one sink see?",
        ),
        Mistake(
            _seen_everything,
            "You believe the report: sinks make everything visible. But a sink is an early token under a causal mask: "
            "it has seen nothing that comes after it, and can pass nothing of it on.",
            "which tokens can sink 0 know about, after any number of layers?",
        ),
        Mistake(
            _seen_one_layer,
            "You look through the last layer alone. The layers below it have looked back, too.",
            "go through all windows, one after the other.",
        ),
        Mistake(
            _seen_sum_of_windows,
            "You look one token too far back for each layer: a window of w counts the token itself.",
            "no sinks, one layer, a window of 1: what is seen?",
        ),
        Mistake(_seen_largest, "You use the largest window alone. Windows of layers add up.", "two windows of 2."),
        Mistake(
            _seen_sinks_reach,
            "Your sinks carry tokens *behind* them. Under a causal mask a sink knows only itself and what came before.",
            "what can token 0 have seen?",
        ),
        Mistake(
            _seen_one_sink_more,
            "You have one sink too many: they are tokens 0 … sinks − 1.",
            "no sinks must mean no sinks.",
        ),
        Mistake(
            _seen_numbers,
            "You return the numbers of the tokens. Asked for is one boolean for each token of the text.",
            "leave the boolean array as it is.",
        ),
    ),
    alternatives=(_seen_formula, _seen_by_search),
)


# --- 13.5 perplexity of what comes late


def _late(logits: Any, targets: Any, first: int) -> Any:
    """In float64, token by token."""
    losses = []
    for text, answers in zip(logits.astype(np.float64), targets, strict=True):
        for m in range(first, len(answers)):
            if answers[m] != -100:
                row = text[m] - text[m].max()
                losses.append(np.log(np.exp(row).sum()) - row[answers[m]])
    return np.array(np.exp(np.mean(losses)), dtype=np.float32)


def _late_all(logits: Any, targets: Any, first: int) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()).exp()


def _late_padding(logits: Any, targets: Any, first: int) -> Any:
    import torch.nn.functional as F

    x, y = logits[:, first:].flatten(0, 1), targets[:, first:].flatten()
    return F.cross_entropy(x, y.clamp(min=0)).exp()


def _late_divided(logits: Any, targets: Any, first: int) -> Any:
    import torch.nn.functional as F

    x, y = logits[:, first:].flatten(0, 1), targets[:, first:].flatten()
    return (F.cross_entropy(x, y, reduction="sum") / y.numel()).exp()


def _late_mean_of_exp(logits: Any, targets: Any, first: int) -> Any:
    import torch.nn.functional as F

    x, y = logits[:, first:].flatten(0, 1), targets[:, first:].flatten()
    return F.cross_entropy(x, y, reduction="none")[y != -100].exp().mean()


def _late_by_text(logits: Any, targets: Any, first: int) -> Any:
    import torch
    import torch.nn.functional as F

    rows = [
        F.cross_entropy(x[first:], y[first:]) for x, y in zip(logits, targets, strict=True) if (y[first:] >= 0).any()
    ]
    return torch.stack(rows).mean().exp()


def _late_loss(logits: Any, targets: Any, first: int) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(logits[:, first:].flatten(0, 1), targets[:, first:].flatten())


def _late_twice(logits: Any, targets: Any, first: int) -> Any:
    import torch.nn.functional as F

    x = logits.softmax(-1)[:, first:].flatten(0, 1)
    return F.cross_entropy(x, targets[:, first:].flatten()).exp()


def _late_count(logits: Any, targets: Any, first: int) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(logits[:, -first:].flatten(0, 1), targets[:, -first:].flatten()).exp()


def _late_transposed(logits: Any, targets: Any, first: int) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(logits[:, first:].transpose(1, 2), targets[:, first:]).exp()


def _late_gathered(logits: Any, targets: Any, first: int) -> Any:
    x, y = logits[:, first:], targets[:, first:]
    kept = y != -100
    right = x.gather(-1, y.clamp(min=0)[..., None])[..., 0]
    return (x.logsumexp(-1) - right)[kept].mean().exp()


@st.composite
def _scored(draw: Any) -> tuple[Any, Any, int]:
    texts, length, words = draw(st.integers(2, 3)), draw(st.integers(4, 6)), draw(st.integers(3, 5))
    logits = draw(quarters(texts, length, words)).astype(np.float32)
    row = st.lists(st.integers(-1, words - 1), min_size=length, max_size=length)
    targets = np.array([draw(row) for _ in range(texts)])
    targets[targets < 0] = -100
    targets[0, -1] = draw(st.integers(0, words - 1))  # one late target at least
    return logits, targets, draw(st.integers(1, length - 1))


def _scored_edge() -> tuple[Any, Any, int]:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 5, size=(2, 6))
    targets[1, 3:] = -100  # the second text is padded
    targets[1, 0] = -100
    return rng.normal(size=(2, 6, 5)).astype(np.float32), targets, 2


_LATE = Exercise(
    id="far.late",
    number="13.5",
    chapter=CHAPTER,
    title="Perplexity of the tokens that come late",
    minutes=8,
    difficulty=2,
    kinds=("torch",),
    function="late_perplexity",
    reference=_late,
    inputs=_scored(),
    edges={"a padded text": _scored_edge()},
    properties=(
        Property(
            "what stands early does not matter",
            lambda f, x, y, first: (
                f(np.concatenate([-x[:, :first], x[:, first:]], axis=1), y, first),
                f(x, y, first),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _late_all,
            "You average over all tokens. Those before `first` hide what happens behind it.",
            "cut both tensors along their second axis.",
        ),
        Mistake(
            _late_padding,
            "You count the places whose target is −100. They are padding and have no answer.",
            "leave the targets as they are: cross_entropy passes over −100 by itself.",
        ),
        Mistake(
            _late_divided,
            "You divide by the number of all late places. Padding adds no loss, so it must not be counted either.",
            'reduction="mean" knows how many targets there are.',
        ),
        Mistake(
            _late_mean_of_exp,
            "You take the mean of exp(loss). Perplexity is exp of the mean; your order is ruled by the worst token.",
            "first mean, then exp.",
        ),
        Mistake(
            _late_by_text,
            "You average each text first. A text with few tokens then counts as much as a long one.",
            "one mean over all late tokens of all texts.",
        ),
        Mistake(_late_loss, "This is the mean loss, in nats. Perplexity is its exponential.", "call .exp()."),
        Mistake(
            _late_twice,
            "You hand probabilities to cross_entropy, which takes logits: softmax is applied twice.",
            "leave out the softmax.",
        ),
        Mistake(
            _late_count,
            "You take the last `first` tokens. Asked for are those from position `first` on.",
            "cut with logits[:, first:].",
        ),
    ),
    alternatives=(_late_transposed, _late_gathered),
)

EXERCISES = (_REACH, _BUCKETS, _HIDDEN, _SINKS, _LATE)
