"""Exercises of chapter 12: length extrapolation."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.grading.exercise import Exercise, Mistake, Property, quarters, sizes

TITLE = "length extrapolation"

IGNORED = -100

# --- 12.1 perplexity from logits, in PyTorch


def _perplexity(logits: Any, targets: Any) -> Any:
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
    own = np.take_along_axis(log_p, np.maximum(targets, 0)[..., None], -1)[..., 0]
    return np.array(np.exp(-own[targets != IGNORED].mean()), dtype=np.float32)


def _losses(logits: Any, targets: Any) -> Any:
    """Loss of each place, 0 where the target is ignored."""
    import torch.nn.functional as F

    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=IGNORED)


def _mean_of_exp(logits: Any, targets: Any) -> Any:
    return _losses(logits, targets)[targets != IGNORED].exp().mean()


def _row_means(logits: Any, targets: Any) -> Any:
    keep = targets != IGNORED
    return _losses(logits, targets).sum(1) / keep.sum(1)


def _texts_alike(logits: Any, targets: Any) -> Any:
    return _row_means(logits, targets).mean().exp()


def _mean_of_perplexities(logits: Any, targets: Any) -> Any:
    return _row_means(logits, targets).exp().mean()


def _base_two(logits: Any, targets: Any) -> Any:
    return 2 ** _losses(logits, targets)[targets != IGNORED].mean()


def _padding_is_sure(logits: Any, targets: Any) -> Any:
    return _losses(logits, targets).mean().exp()


def _padding_is_token_zero(logits: Any, targets: Any) -> Any:
    return _losses(logits, targets.clamp(min=0)).mean().exp()


def _moved_again(logits: Any, targets: Any) -> Any:
    return _losses(logits[:, :-1], targets[:, 1:])[targets[:, 1:] != IGNORED].mean().exp()


def _no_softmax(logits: Any, targets: Any) -> Any:
    own = logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return (-own[targets != IGNORED].mean()).exp()


def _sum_of_losses(logits: Any, targets: Any) -> Any:
    return _losses(logits, targets).sum().exp()


def _the_loss(logits: Any, targets: Any) -> Any:
    return _losses(logits, targets)[targets != IGNORED].mean()


def _two_steps(logits: Any, targets: Any) -> Any:
    e = logits.exp()
    p = (e / e.sum(-1, keepdim=True)).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return (-p[targets != IGNORED].log().mean()).exp()


def _flat(logits: Any, targets: Any) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED).exp()


def _by_logsumexp(logits: Any, targets: Any) -> Any:
    keep = targets != IGNORED
    own = logits[keep].gather(1, targets[keep][:, None])[:, 0]
    return (logits[keep].logsumexp(1) - own).mean().exp()


@st.composite
def _texts(draw: Any) -> Any:
    batch, seq, vocab = draw(sizes(1, 2, 3)), draw(sizes(1, 2, 4)), draw(sizes(2, 3, 5))
    logits = draw(quarters(batch, seq, vocab)).astype(np.float32)
    targets = np.array(draw(st.lists(st.integers(0, vocab - 1), min_size=batch * seq, max_size=batch * seq)))
    targets = targets.reshape(batch, seq).astype(np.int64)
    counted = draw(st.lists(st.integers(1, seq), min_size=batch, max_size=batch))
    targets[np.arange(seq) >= np.array(counted)[:, None]] = IGNORED
    return logits, targets


_LOGITS = np.sin(np.arange(24.0)).reshape(2, 4, 3).astype(np.float32) * 2
_TARGETS = np.array([[0, 2, 1, 1], [2, IGNORED, IGNORED, IGNORED]])
_FAR_BELOW = np.zeros((2, 4, 3), dtype=np.float32)
_FAR_BELOW[0, 0, 0] = 120

_PERPLEXITY = Exercise(
    id="length.perplexity",
    number="12.1",
    chapter="12_length_extrapolation",
    title="Perplexity from logits",
    minutes=10,
    difficulty=2,
    function="perplexity",
    reference=_perplexity,
    kinds=("torch",),
    inputs=_texts(),
    edges={
        "a long text and a short one": (_LOGITS, _TARGETS),
        "a first place that does not count": (_LOGITS, np.array([[IGNORED, 2, 1, 0], [1, 0, IGNORED, 2]])),
        "large logits": (_LOGITS + np.float32(300), _TARGETS),
        "one target 120 below the largest logit": (_FAR_BELOW, np.array([[1, 0, 0, 2], [0, 1, 2, IGNORED]])),
        "one text near 300, one near −300": (_LOGITS + np.array([[[300]], [[-300]]], dtype=np.float32), _TARGETS),
    },
    properties=(
        Property(
            "a number added to all logits of a place changes nothing",
            lambda f, x, y: (f(x + np.float32(4 * (np.abs(x).max() < 50)), y), f(x, y)),  # large ones would be rounded
        ),
        Property(
            "all tokens equally likely: as many as there are",
            lambda f, x, y: (f(0 * x, y), np.array(x.shape[-1], dtype=np.float32)),
        ),
    ),
    mistakes=(
        Mistake(
            _mean_of_exp,
            "This is the mean of exp(loss). One token that was a surprise then outweighs all others. Perplexity is "
            "the exponential of the mean loss.",
            "take two tokens with losses 0 and 10. What should two tokens of probability 1 and e^−10 give?",
        ),
        Mistake(
            _texts_alike,
            "Each text gets its own mean, and the texts then count alike. Here each token counts alike, so that a "
            "short text weighs less.",
            "how many targets does each row have?",
        ),
        Mistake(
            _mean_of_perplexities,
            "This is the mean of the texts' perplexities. Take the mean of all losses first, and one exponential at "
            "the end.",
        ),
        Mistake(
            _base_two,
            "The losses are in nats, but the base is 2. Nats belong to e, bits to 2.",
            "what do equal logits over 8 tokens give?",
        ),
        Mistake(
            _padding_is_sure,
            "Places with target −100 were counted as losses of 0, as if the model were sure of them. Divide by the "
            "number of targets that count.",
            "take a text and pad it to twice its length. Does the number change?",
        ),
        Mistake(
            _padding_is_token_zero,
            "Places with target −100 were scored as if token 0 stood there. They must not count.",
        ),
        Mistake(
            _moved_again,
            "Logits and targets were moved against each other. Target t already is the token that follows token t.",
            "how many losses does a text of one token have?",
        ),
        Mistake(
            _no_softmax,
            "The logits were taken for log-probabilities. A log-softmax is missing.",
            "add 5 to all logits. Should the perplexity change?",
        ),
        Mistake(
            _sum_of_losses,
            "The losses are added, not averaged: longer texts then get larger perplexities.",
        ),
        Mistake(_the_loss, "This is the mean loss, in nats. Perplexity is its exponential."),
        Mistake(
            _two_steps,
            "Softmax is computed from exp(logits) as they are. In float32, exp of 89 and more is infinite.",
            "which function of torch.nn.functional takes logits, and does both steps at once?",
        ),
    ),
    alternatives=(_flat, _by_logsumexp),
)

# --- 12.2 a mean that hides


def _reading(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    by_position = losses.mean(0)
    inside = by_position[:length].mean()
    usable = 0
    for start in range(0, len(by_position), block):
        if by_position[start : start + block].mean() > inside + tolerance:
            break
        usable = start + block
    return float(np.exp(by_position.mean() - inside)), usable


def _blocks(losses: Any, block: int) -> Any:
    return losses.mean(0).reshape(-1, block).mean(1)


def _fails(losses: Any, length: int, block: int, tolerance: float) -> Any:
    return _blocks(losses, block) > losses[:, :length].mean() + tolerance


def _right_ratio(losses: Any, length: int) -> float:
    return float(np.exp(losses.mean() - losses[:, :length].mean()))


def _first(fails: Any) -> int:
    return int(np.argmax(fails)) if fails.any() else len(fails)


def _ratio_of_losses(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    ratio = losses.mean() / losses[:, :length].mean() if losses[:, :length].any() else math.inf
    return float(ratio), _reading(losses, length, block, tolerance)[1]


def _exp_first(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    ratio = np.exp(losses).mean() / np.exp(losses[:, :length]).mean()
    return float(ratio), _reading(losses, length, block, tolerance)[1]


def _outside_only(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    ratio = np.exp(losses[:, length:].mean() - losses[:, :length].mean())
    return float(ratio), _reading(losses, length, block, tolerance)[1]


def _upside_down(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    return 1 / _right_ratio(losses, length), _reading(losses, length, block, tolerance)[1]


def _last_good(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    good = np.flatnonzero(~_fails(losses, length, block, tolerance))
    return _right_ratio(losses, length), (int(good[-1]) + 1) * block if len(good) else 0


def _count_good(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    return _right_ratio(losses, length), int((~_fails(losses, length, block, tolerance)).sum()) * block


def _in_blocks(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    return _right_ratio(losses, length), _first(_fails(losses, length, block, tolerance))


def _one_more(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    fails = _fails(losses, length, block, tolerance)
    return _right_ratio(losses, length), min(_first(fails) + 1, len(fails)) * block


def _by_token(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    return _reading(losses, length, 1, tolerance)


def _factor(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    fails = _blocks(losses, block) > losses[:, :length].mean() * (1 + tolerance)
    return _right_ratio(losses, length), _first(fails) * block


def _from_length_on(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    fails = _fails(losses, length, block, tolerance)
    fails[: length // block] = False
    return _right_ratio(losses, length), _first(fails) * block


def _running_mean(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    means = np.cumsum(_blocks(losses, block)) / np.arange(1, losses.shape[1] // block + 1)
    return _right_ratio(losses, length), _first(means > losses[:, :length].mean() + tolerance) * block


def _reading_cut(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    good = _blocks(losses, block) <= losses[:, :length].mean() + tolerance
    return _right_ratio(losses, length), block * int(np.cumprod(good).sum())


def _reading_products(losses: Any, length: int, block: int, tolerance: float) -> tuple[float, int]:
    """Geometric means of 1/p, the other definition of perplexity."""
    surprise = np.exp(losses)

    def geometric(x: Any) -> Any:
        return np.prod(x ** (1 / x.size))

    inside, usable = geometric(surprise[:, :length]), 0
    while usable < losses.shape[1]:
        if geometric(surprise[:, usable : usable + block]) > inside * math.exp(tolerance):
            break
        usable += block
    return float(geometric(surprise) / inside), usable


@st.composite
def _passes(draw: Any) -> Any:
    block, inside, outside = draw(sizes(2, 1, 4)), draw(sizes(1, 2)), draw(sizes(1, 2, 3, 5))
    shape = draw(sizes(1, 2, 3)), block * (inside + outside)
    levels = np.repeat(np.array(draw(st.lists(st.sampled_from([0, 2, 1]), min_size=inside + outside,
                                              max_size=inside + outside))), block)  # fmt: skip
    losses = 2 + levels + draw(quarters(*shape, largest=1.5))
    return losses, block * inside, block, draw(st.sampled_from([0.3, 0.7, 0.1]))


def _long_pass(*levels: float) -> Any:
    return np.repeat(np.array(levels), 4) + 0.25 * np.cos(np.arange(2 * 4 * len(levels))).reshape(2, -1)


_READING = Exercise(
    id="length.reading",
    number="12.2",
    chapter="12_length_extrapolation",
    title="Is this a bug? Only a fifth higher",
    minutes=15,
    difficulty=3,
    function="reading",
    reference=_reading,
    kinds=("bug",),
    inputs=_passes(),
    edges={
        "fails, recovers, fails": (_long_pass(2, 2, 3, 2, 3.5), 8, 4, 0.3),
        "never fails": (_long_pass(2, 2, 2, 2.05), 8, 4, 0.3),
        "fails within the training length": (_long_pass(2, 3.5, 2, 2), 8, 4, 0.3),
        "fails only at the end": (_long_pass(2, 2, 2, 2, 2, 2, 4), 4, 4, 0.3),
        "blocks of one": (_long_pass(2, 2.2, 3), 4, 1, 0.7),
    },
    properties=(
        Property(
            "one nat more everywhere: the same",
            lambda f, x, n, b, t: (np.array(f(x + 1.0, n, b, t)), np.array(f(x, n, b, t))),
        ),
    ),
    mistakes=(
        Mistake(
            _ratio_of_losses,
            "The first number is a ratio of mean losses. Perplexities are exponentials of them, and their ratio is "
            "that of the exponentials.",
            "which of the two changes when all losses grow by one nat?",
        ),
        Mistake(
            _exp_first,
            "The exponential is taken of each loss, before the mean. Perplexity takes it once, of the mean.",
        ),
        Mistake(
            _outside_only,
            "The first number compares the tokens beyond the training length with those inside. The report has *all* "
            "tokens in its numerator: that is what hides the failure.",
        ),
        Mistake(_upside_down, "The ratio stands on its head: all tokens over the first ones is asked for."),
        Mistake(
            _last_good,
            "Blocks after the first failure are counted. A block that does well behind one that fails does not make "
            "the text before it usable.",
            "which blocks fail in losses 2, 4, 2?",
        ),
        Mistake(
            _count_good,
            "All blocks that do well are counted, wherever they are. Stop at the first that fails.",
        ),
        Mistake(_in_blocks, "The second number counts blocks. It is to be a number of positions."),
        Mistake(_one_more, "The block that fails is counted, too.", "what is right if the very first block fails?"),
        Mistake(
            _by_token,
            "Single positions are judged. Their means are noisy, and the first unlucky one stops the count. Judge the "
            "mean of each block.",
        ),
        Mistake(
            _factor,
            "The tolerance is used as a share of the loss. It is in nats, and is added.",
            "what does the share do when all losses grow by one nat?",
        ),
        Mistake(
            _from_length_on,
            "Blocks inside the training length are taken to be good. They are judged like all others.",
        ),
        Mistake(
            _running_mean,
            "What is judged is the mean of everything so far. That is the mistake of the report: old tokens hide new "
            "ones.",
        ),
    ),
    alternatives=(_reading_cut, _reading_products),
)

# --- 12.3 how much a prediction may read


def _mean_context(total: int, size: int, stride: int) -> float:
    t = np.arange(total)
    window = np.maximum(0, -((size - 1 - t) // stride))  # the first that holds t: the least k with t < k·stride + size
    return float((t + 1 - window * stride).mean())


def _half_full(total: int, size: int, stride: int) -> float:
    return (size + 1) / 2


def _long_text(total: int, size: int, stride: int) -> float:
    return size - (stride - 1) / 2


def _always_full(total: int, size: int, stride: int) -> float:
    return float(size)


def _scored_twice(total: int, size: int, stride: int) -> float:
    seen: list[int] = []
    for begin in range(0, total, stride):
        end = min(begin + size, total)
        seen += range(1, end - begin + 1)
        if end == total:
            break
    return float(np.mean(seen))


def _without_itself(total: int, size: int, stride: int) -> float:
    return _mean_context(total, size, stride) - 1


def _one_by_one(total: int, size: int, stride: int) -> float:
    return _mean_context(total, size, min(1, size))


def _last_window_full(total: int, size: int, stride: int) -> float:
    seen, done = [], 0
    for begin in range(0, total, stride):
        end = min(begin + size, total)
        first = max(0, end - size)
        seen += [t - first + 1 for t in range(done, end)]
        done = end
    return float(np.mean(seen))


def _last_to_hold_it(total: int, size: int, stride: int) -> float:
    t = np.arange(total)
    return float((t % stride + 1).mean())


def _no_overlap(total: int, size: int, stride: int) -> float:
    return _mean_context(total, size, size)


def _rest_dropped(total: int, size: int, stride: int) -> float:
    if total < size:
        return math.nan
    return _mean_context(size + (total - size) // stride * stride, size, stride)


def _first_window_skipped(total: int, size: int, stride: int) -> float:
    t = np.arange(size, total)
    window = -((size - 1 - t) // stride)
    return float((t + 1 - window * stride).mean()) if total > size else math.nan


def _context_loop(total: int, size: int, stride: int) -> float:
    seen, done, begin = 0, 0, 0
    while done < total:
        end = min(begin + size, total)
        seen += sum(t - begin + 1 for t in range(done, end))
        done, begin = end, begin + stride
    return seen / total


def _context_sums(total: int, size: int, stride: int) -> float:
    """Triangular numbers: the first window, whole later ones, and what is left."""
    first = min(total, size)
    whole, rest = divmod(total - first, stride)
    base = size - stride

    def triangle(n: int) -> float:
        return n * (n + 1) / 2

    return (triangle(first) + whole * (base * stride + triangle(stride)) + base * rest + triangle(rest)) / total


@st.composite
def _windows(draw: Any) -> Any:
    size = draw(st.integers(1, 12))
    return draw(st.integers(1, 40)), size, draw(st.integers(1, size))


_CONTEXT = Exercise(
    id="length.context",
    number="12.3",
    chapter="12_length_extrapolation",
    title="Derive, then check: how much may a prediction read?",
    minutes=15,
    difficulty=3,
    function="mean_context",
    reference=_mean_context,
    kinds=("derive",),
    inputs=_windows(),
    edges={
        "no overlap": (24, 8, 8),
        "half a window": (24, 8, 4),
        "one at a time": (24, 8, 1),
        "a rest": (23, 8, 3),
        "shorter than a window": (5, 8, 4),
        "a long text": (4097, 64, 16),
    },
    properties=(
        Property(
            "one window: the mean of 1, 2, … size",
            lambda f, total, size, stride: (float(f(size, size, stride)), (size + 1) / 2),
        ),
        Property(
            "a later window adds its share: stride predictions, size − (stride − 1)/2 each",
            lambda f, total, size, stride: (
                float(f(size + 3 * stride, size, stride)) * (size + 3 * stride),
                size * (size + 1) / 2 + 3 * stride * (size - (stride - 1) / 2),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            _half_full,
            "This is the mean of one window. It is right without overlap, for whole windows.",
            "with windows of 8 and steps of 4, how much do the tokens of the second window's second half read?",
        ),
        Mistake(
            _long_text,
            "This is the mean of the later windows. The first one scores all its tokens, also those that read little.",
            "what should the answer be if the text is one window long?",
        ),
        Mistake(_always_full, "Only the last token of a window reads the whole window."),
        Mistake(
            _scored_twice,
            "Tokens in the overlap are counted in each window that holds them. Each prediction is made once, in the "
            "first window that reaches it.",
            "how many predictions does your sum have, and how many tokens are there?",
        ),
        Mistake(
            _without_itself,
            "The newest token is not counted. The model reads it before it predicts the next one.",
            "how much does the first prediction of a text read?",
        ),
        Mistake(_one_by_one, "The stride is ignored: this is a window that moves by one token."),
        Mistake(
            _last_window_full,
            "The last window was moved back until it is full. Here windows begin at multiples of the stride, and the "
            "last one may be shorter.",
        ),
        Mistake(
            _last_to_hold_it,
            "Each token is scored in the last window that holds it, where it reads least. The first window that "
            "reaches a token scores it.",
        ),
        Mistake(_no_overlap, "The windows do not overlap. They begin at multiples of the stride, not of the size."),
        Mistake(
            _rest_dropped,
            "The tokens after the last whole step are left out. They are scored too, in a shorter window.",
            "how many tokens do you score if 23 are given?",
        ),
        Mistake(
            _first_window_skipped,
            "The first window is left out. It scores all its tokens.",
        ),
    ),
    alternatives=(_context_loop, _context_sums),
)

EXERCISES = (_PERPLEXITY, _READING, _CONTEXT)
