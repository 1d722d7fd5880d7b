"""What is measured in a trained model. All on held-out text, in nats a token unless said otherwise.

The functions take a model and return plain numbers; :data:`MEASURES` names those that a job can ask for.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc_ref.attention import NOPE, Encoding
from posenc_ref.embedding import sinusoidal
from posenc_ref.lab import corpus, tasks
from posenc_ref.lab.config import Config
from posenc_ref.lab.encodings import make
from posenc_ref.lab.model import Decoder
from posenc_ref.lab.training import Fit, batch_loss, optimise
from posenc_ref.rotary import NTK, PI, ByParts, DynamicNTK, LongRoPE, ScaledRoPE, Scaling, YaRN, inv_freq
from posenc_ref.rotary.longrope_search import search

Figures = dict[str, Any]

EVALUATED = 32_768
"""Held-out tokens for each length."""


# ---------------------------------------------------------------- text


@torch.no_grad()
def token_losses(model: Decoder, length: int, *, total: int = EVALUATED, text: Tensor | None = None) -> Tensor:
    """Loss of each token of texts of ``length``, cut one behind the other: ``(texts, length)``."""
    tokens, targets = corpus.segments(corpus.held_out_tokens() if text is None else text, length, total)
    rows = max(1, 4096 // length)
    losses = [
        F.cross_entropy(model(t).transpose(1, 2), y, reduction="none")
        for t, y in zip(torch.split(tokens, rows), torch.split(targets, rows), strict=True)
    ]
    return torch.cat(losses)


def perplexity(
    model: Decoder, lengths: Sequence[int], *, last: int = 64, losses_of: Callable[..., Tensor] = token_losses
) -> Figures:
    """exp(mean loss) over texts of each of ``lengths``: of ``all`` tokens, and of the ``last`` ones of each text.

    The mean over all hides what happens behind the training length; the last ones show it.
    """
    figures = {}
    for n in lengths:
        losses = losses_of(model, n)
        figures[str(n)] = {"all": losses.mean().exp().item(), "last": losses[:, -last:].mean().exp().item()}
    return figures


def loss_by_position(
    model: Decoder, length: int, *, block: int = 1, losses_of: Callable[..., Tensor] = token_losses
) -> list[float]:
    """Mean loss at each position of texts of ``length``, or of each ``block`` of positions."""
    by_position = losses_of(model, length).mean(0)
    means: list[float] = by_position.reshape(-1, block).mean(1).tolist()
    return means


@torch.no_grad()
def loss_by_placement(
    model: Decoder, starts: Sequence[int], *, length: int = 16, total: int = EVALUATED // 2
) -> dict[str, float]:
    """Mean loss of the same texts with positions s … s + length − 1, for each s of ``starts``."""
    tokens, targets = corpus.segments(corpus.held_out_tokens(), length, total)
    losses = {}
    for s in starts:
        logits = model(tokens, torch.arange(s, s + length))
        losses[str(s)] = F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    return losses


def swapped(fit: Fit, names: Sequence[str]) -> Figures:
    """Perplexity at the training length after the encoding is replaced by each of ``names``, with no more training."""
    figures = {}
    for name in names:
        model = copy.deepcopy(fit.model)
        model.encodings = [make(name, fit.config)] * fit.config.num_layers
        figures[name] = perplexity(model, [fit.config.length])[str(fit.config.length)]["all"]
    return figures


# ---------------------------------------------------------------- tables


def neighbour_cosine(table: Tensor, bounds: Sequence[int]) -> dict[str, float]:
    """Mean cosine of rows p and p + 1, both in start … stop − 1, for each two neighbours of ``bounds``.

    >>> neighbour_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), [0, 2, 4])
    {'0-1': 1.0, '2-3': -1.0}
    """
    cosines = F.cosine_similarity(table[:-1].detach(), table[1:].detach(), dim=-1)
    spans = pairwise(bounds)
    return {f"{a}-{b - 1}": cosines[a : b - 1].mean().item() for a, b in spans}


def position_table(model: Decoder) -> Tensor:
    """Rows of the learned position table, ``(rows, d_model)``."""
    table: Tensor = model.encodings[0].table.detach()  # type: ignore[attr-defined]
    return table


# ---------------------------------------------------------------- what a linear probe finds


@torch.no_grad()
def states(model: Decoder, length: int, texts: int) -> list[tuple[str, Tensor]]:
    """Name and values, ``(texts, length, d_model)``, of the state at each sublayer, for held-out texts."""
    tokens, _ = corpus.segments(corpus.held_out_tokens(), length, length * texts)
    trace: list[tuple[str, Tensor]] = []
    model(tokens, trace=trace)
    return trace


def ridge_r2(x: Tensor, y: Tensor, *, strength: float = 1e-3) -> float:
    """R² of a ridge regression from ``x`` to ``y``, ``(texts, length, …)``, fitted on the first half of the texts.

    1 − Σ|y − ŷ|²/Σ|y − ȳ|² on the second half. The penalty is ``strength`` times the mean variance of x.

    >>> x = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(0))
    >>> round(ridge_r2(x, x @ torch.ones(3, 2) + 1), 4)
    1.0
    """
    half = x.shape[0] // 2
    (x1, x2), (y1, y2) = ((z[:half].flatten(0, 1).double(), z[half:].flatten(0, 1).double()) for z in (x, y))
    mean_x, mean_y = x1.mean(0), y1.mean(0)
    x1, x2 = x1 - mean_x, x2 - mean_x
    gram = x1.T @ x1
    penalty = strength * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weights = torch.linalg.solve(gram + penalty, x1.T @ (y1 - mean_y))
    left, total = (y2 - mean_y - x2 @ weights).square().sum(), (y2 - y2.mean(0)).square().sum()
    return 1 - float(left / total)


def toeplitz_share(x: Tensor) -> float:
    """How much of the Gram matrix of the positions' mean states depends on the distance alone: 1 if all.

    With H the mean of ``x`` ``(texts, length, d_model)`` over texts, minus its mean over positions, and G = H Hᵀ:
    |T|²/|G|², where T has the mean of each diagonal of G.

    >>> round(toeplitz_share(sinusoidal(torch.arange(64), 64, layout="interleaved")[None]), 2)
    0.96
    """
    h = x.double().mean(0)
    h = h - h.mean(0)
    gram = h @ h.T
    n = len(gram)
    diagonals = [gram.diagonal(k) for k in range(1 - n, n)]
    return sum(len(d) * d.mean().item() ** 2 for d in diagonals) / gram.square().sum().item()


def probes(model: Decoder, *, length: int = 64, texts: int = 64) -> list[Figures]:
    """At each sublayer, in order: R² of a linear probe for PE(p), for p itself, and the Toeplitz share.

    PE(p) is the sinusoidal vector, a target with fast and slow parts, whatever the model's own encoding.
    """
    p = torch.arange(length)
    target = sinusoidal(p, model.embedding.embedding_dim, layout="interleaved").expand(texts, -1, -1)
    line = p.double().expand(texts, -1)[..., None]
    return [
        {"state": name, "pe_r2": ridge_r2(x, target), "p_r2": ridge_r2(x, line), "toeplitz": toeplitz_share(x)}
        for name, x in states(model, length, texts)
    ]


# ---------------------------------------------------------------- recall and sorting

EDGES = (0, 16, 32, 64, 128, 256, 512, 1024)
"""Bounds of the buckets of position and distance, tokens."""


@torch.no_grad()
def recall_accuracy(
    model: Decoder, lengths: Sequence[int], *, latest: bool, rows: int = 512, seed: int = 1234
) -> Figures:
    """Share of right answers: for each length in all and by distance, and over all lengths by position and distance.

    The distance is that from the record to the query, the position that of the record, both in tokens; buckets are
    named by their first and last number. ``grid`` has, for each position bucket that occurs and each distance bucket,
    the share and how many texts it rests on.
    """
    generator = torch.Generator().manual_seed(seed)
    places, distances, rights, figures = [], [], [], {}
    for n in lengths:
        drawn = tasks.recall(rows, n, generator, latest=latest)
        size = max(1, 8192 // n)
        answers = torch.cat([model(t)[:, -1].argmax(-1) for t in torch.split(drawn.batch.tokens, size)])
        right, distance = answers == drawn.batch.targets[:, -1], n - 1 - drawn.place
        figures[str(n)] = {"all": right.double().mean().item(), "by_distance": _shares(distance, right)}
        places.append(drawn.place)
        distances.append(distance)
        rights.append(right)
    place, distance, right = torch.cat(places), torch.cat(distances), torch.cat(rights)
    grid = {
        f"{a}-{b - 1}": _shares(distance[inside], right[inside])
        for a, b in pairwise(EDGES)
        if (inside := (place >= a) & (place < b)).any()
    }
    return {"lengths": figures, "grid": grid}


def _shares(distance: Tensor, right: Tensor) -> dict[str, list[float]]:
    """[share of right answers, number of texts] for each bucket of distance that occurs."""
    shares = {}
    for a, b in pairwise(EDGES):
        inside = (distance >= a) & (distance < b)
        if inside.any():
            shares[f"{a}-{b - 1}"] = [right[inside].double().mean().item(), int(inside.sum())]
    return shares


@torch.no_grad()
def sorting_accuracy(model: Decoder, sizes: Sequence[int], *, rows: int = 512, seed: int = 1234) -> dict[str, float]:
    """Share of texts sorted without a mistake, by number of items.

    The model is fed the right answer so far. That counts the same texts as its own answer fed back: up to the first
    mistake the two are one.
    """
    generator, figures = torch.Generator().manual_seed(seed), {}
    for n in sizes:
        batch = tasks.sorting(torch.full((rows,), n), generator)
        right = (model(batch.tokens).argmax(-1) == batch.targets) | (batch.targets == tasks.IGNORED)
        figures[str(n)] = right.all(1).double().mean().item()
    return figures


# ---------------------------------------------------------------- RoPE beyond its length


def scalings(factor: float, length: int, beta: tuple[float, float] = (0.25, 2.0)) -> dict[str, Scaling]:
    """The named methods that stretch RoPE from ``length`` to ``factor`` times ``length``.

    ``beta`` is (slow, fast), in turns within ``length``. The paper's (1, 32) is for a thousand tokens and more: at 64
    tokens its fast end exceeds the turns of the fastest pair, about 10, so that no pair stays as it was.
    """
    slow, fast = beta
    parts: dict[str, Any] = {"factor": factor, "original_max_position": length, "ramp": "rotations"}
    return {
        "pi": PI(factor),
        "ntk": NTK(factor),
        "dynamic_ntk": DynamicNTK(factor=1.0, original_max_position=length),
        "by_parts": ByParts(**parts, beta_slow=slow, beta_fast=fast),
        "yarn": YaRN(**parts, beta_slow=slow, beta_fast=fast),
        "yarn_paper_beta": YaRN(**parts, beta_slow=1.0, beta_fast=32.0),
    }


def with_scaling(model: Decoder, scaling: Scaling | None, head_dim: int) -> Decoder:
    """A copy of a model of plain RoPE whose frequencies are scaled."""
    model = copy.deepcopy(model)
    if scaling is not None:
        model.encodings = [ScaledRoPE(head_dim, layout="half", scaling=scaling)] * len(model.encodings)
    return model


def longrope_factors(fit: Fit, factor: float, *, evaluations: int = 40, total: int = 4096) -> np.ndarray[Any, Any]:
    """LongRoPE's factors for ``factor`` times the training length, searched on the end of the *training* text.

    The score is the loss of the last 64 tokens. Starts: PI, NTK-aware and YaRN.
    """
    length, head_dim = fit.config.length, fit.config.head_dim
    text = corpus.training_tokens()[-total - 1 :]
    theta = inv_freq(head_dim)

    def score(factors: np.ndarray[Any, Any]) -> float:
        found = factors.tolist()
        scaling = LongRoPE(found, found, factor=factor, original_max_position=length)
        model = with_scaling(fit.model, scaling, head_dim)
        return token_losses(model, int(factor * length), text=text, total=total)[:, -64:].mean().item()

    ways = scalings(factor, length)
    starts = [theta / ways[name].inv_freq(head_dim)[0] for name in ("pi", "ntk", "yarn")]
    sizes = {"population": 10, "parents": 5, "mutations": 5, "crossovers": 5, "iterations": (evaluations - 10) // 10}
    found: np.ndarray[Any, Any] = search(
        score, factor=factor, starts=starts, rng=np.random.default_rng(fit.seed), **sizes
    ).factors
    return found


def scaled_perplexity(
    fit: Fit, factors: Sequence[int], *, tuning_steps: int = 60, tuning_rate: float = 1e-3, searched: bool = True
) -> Figures:
    """Each method at each factor s: perplexity at s times the length and, on short texts, at the training length.

    Without training, and after ``tuning_steps`` at the new length with as many tokens a step as before. ``none`` is
    RoPE as it is.
    """
    config, figures = fit.config, {}
    for s in factors:
        long = s * config.length
        ways: dict[str, Scaling | None] = {"none": None} | scalings(s, config.length)
        if searched:
            found = longrope_factors(fit, s).tolist()
            short = [1.0] * len(found)
            ways["longrope"] = LongRoPE(short, found, factor=s, original_max_position=config.length)
        figures[str(s)] = {"longrope_factors": found} if searched else {}
        for name, way in ways.items():
            model = with_scaling(fit.model, way, config.head_dim)
            row: Figures = {"untuned": perplexity(model, [config.length, long])}
            if tuning_steps:
                batch = config.batch * config.length // long
                longer = replace(config, length=long, batch=batch, steps=tuning_steps, learning_rate=tuning_rate)
                tune(model, longer, fit.seed + 1)
                row["tuned"] = perplexity(model, [config.length, long])
            figures[str(s)][name] = row
    return figures


def tune(model: Decoder, config: Config, seed: int) -> None:
    """Train ``model`` further, in place, with the settings of ``config``."""
    generator = torch.Generator().manual_seed(seed)
    optimise(Fit(config, seed, model, model, [], [], []), lambda step: tasks.draw(config, step, generator))


# ---------------------------------------------------------------- by name


def _losses_of(fit: Fit) -> Callable[..., Tensor]:
    """:func:`token_losses` that remembers its last result for this fit."""

    def losses_of(model: Decoder, length: int) -> Tensor:
        key = (len(fit.losses), length)
        if key not in fit.measured:
            fit.measured = {key: token_losses(model, length)}
        return fit.measured[key]

    return losses_of


def _perplexity(fit: Fit, lengths: Sequence[int] = (64, 128, 256, 512, 1024), **settings: Any) -> Figures:
    return perplexity(fit.model, lengths, losses_of=_losses_of(fit), **settings)


def _loss(fit: Fit, total: int = 8192) -> float:
    return token_losses(fit.model, fit.config.length, total=total).mean().item()


def _positions(fit: Fit, length: int = 1024, block: int = 16) -> list[float]:
    return loss_by_position(fit.model, length, block=block, losses_of=_losses_of(fit))


def _placement(fit: Fit, starts: Sequence[int] = (0, 16, 32, 48, 64, 112), length: int = 16) -> Figures:
    return loss_by_placement(fit.model, starts, length=length)


def _cosines(fit: Fit, bounds: Sequence[int] = (0, 16, 64, 128)) -> Figures:
    return neighbour_cosine(position_table(fit.model), bounds)


def _rows(fit: Fit) -> Figures:
    ends = {"before": fit.initial, "after": fit.model}
    return {name: position_table(model).norm(dim=1).tolist() for name, model in ends.items()}


def _table(fit: Fit) -> Figures:
    ends = {"before": fit.initial, "after": fit.model}
    return {name: position_table(model).tolist() for name, model in ends.items()}


def _probes(fit: Fit) -> Figures:
    return {name: probes(model) for name, model in (("before", fit.initial), ("after", fit.model))}


def _recall(fit: Fit, lengths: Sequence[int] = (64, 128, 256, 512), rows: int = 512) -> Figures:
    return recall_accuracy(fit.model, lengths, latest=fit.config.task == "latest", rows=rows)


def _sort(fit: Fit, sizes: Sequence[int] = (6, 8, 10, 12, 14, 16, 20)) -> Figures:
    return sorting_accuracy(fit.model, sizes)


def _history(fit: Fit, every: int = 10) -> Figures:
    """Means over ``every`` steps."""

    def means(x: list[float]) -> list[float]:
        return [float(np.mean(x[i : i + every])) for i in range(0, len(x), every)]

    return {"every": every, "loss": means(fit.losses), "largest_gradient_norm": max(fit.gradient_norms),
            "gradient_norm": means(fit.gradient_norms)}  # fmt: skip


def _step_ratio(fit: Fit, rounds: int = 40, lengths: Sequence[int] = (64, 512)) -> Figures:
    """Processor time of a training step over that of the same step without positions, median of ``rounds`` pairs.

    The two models take turns, so that other work on the machine meets both.
    """
    ratios = {}
    for n in lengths:
        config = replace(fit.config, length=n, batch=max(1, 2048 // n), steps=1)
        plain = copy.deepcopy(fit.model)
        plain.encodings = [NOPE] * config.num_layers
        seconds: list[list[float]] = [[], []]
        for _ in range(rounds):
            for model, row in zip((fit.model, plain), seconds, strict=True):
                begin = time.process_time()
                tune(model, config, 0)
                row.append(time.process_time() - begin)
        ratios[str(n)] = float(np.median(np.array(seconds[0]) / np.array(seconds[1])))
    return ratios


def _memory_ratio(fit: Fit, lengths: Sequence[int] = (64, 512)) -> Figures:
    """Bytes that a training step keeps for its way back over those of the same step without positions."""
    ratios = {}
    for n in lengths:
        config = replace(fit.config, length=n, batch=max(1, 2048 // n))
        batch = tasks.draw(config, 0, torch.Generator().manual_seed(0))
        plain = copy.deepcopy(fit.model)
        plain.encodings = [NOPE] * config.num_layers
        ratios[str(n)] = _bytes_kept(fit.model, batch) / _bytes_kept(plain, batch)
    return ratios


def _bytes_kept(model: Decoder, batch: tasks.Batch) -> int:
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = batch_loss(model, batch)  # while it lives, so does what is kept, and no address is used twice
    del loss
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return sum(size for at, size in kept.items() if at not in parameters)


@torch.no_grad()
def _decode_ratio(fit: Fit, rounds: int = 40, lengths: Sequence[int] = (512, 4096)) -> Figures:
    """Processor time of one layer's attention for one new token behind cached keys, over that without positions.

    Keys are cached as :meth:`Encoding.rotate` leaves them. Median of ``rounds`` pairs, which take turns.
    """
    ratios = {}
    for n in lengths:
        shape = (1, fit.config.num_heads, n, fit.config.head_dim)
        k, v = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
        seconds: list[list[float]] = [[], []]
        for _ in range(rounds):
            for encoding, row in zip((fit.model.encodings[0], NOPE), seconds, strict=True):
                begin = time.process_time()
                for _ in range(5):
                    _decode(encoding, k, v)
                row.append(time.process_time() - begin)
        ratios[str(n)] = float(np.median(np.array(seconds[0]) / np.array(seconds[1])))
    return ratios


def _decode(encoding: Encoding, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(k.shape[-2])
    last = {"q_positions": at[-1:], "k_positions": at[-1:]}
    q, _ = encoding.rotate(k[..., -1:, :], k[..., -1:, :], **last)  # the query, and the key that is new
    logits = q @ k.mT * encoding.logit_scale(k.shape[-1])
    bias = encoding.bias(q, k, q_positions=at[-1:], k_positions=at)
    weights = (logits if bias is None else logits + bias).softmax(-1)
    out: Tensor = encoding.values(weights, v, q_positions=at[-1:], k_positions=at)
    return out


MEASURES: dict[str, Callable[..., Any]] = {
    "perplexity": _perplexity,
    "loss": _loss,
    "positions": _positions,
    "placement": _placement,
    "cosines": _cosines,
    "rows": _rows,
    "table": _table,
    "probes": _probes,
    "recall": _recall,
    "sort": _sort,
    "history": _history,
    "swap": swapped,
    "scaling": scaled_perplexity,
    "memory_ratio": _memory_ratio,
    "decode_ratio": _decode_ratio,
    "step_ratio": _step_ratio,
}
"""What a job can ask for by name: each takes the fit, and arguments from ``config.settings``."""


TIMED = ("memory_ratio", "decode_ratio", "step_ratio")
"""Those that measure the machine: they come last, for they train on, and stand under ``cost`` in a result."""


def take(fit: Fit, names: Sequence[str]) -> Figures:
    """Measure ``names`` in a trained model, in evaluation mode, with the settings of its configuration."""
    return {name: MEASURES[name](fit, **fit.config.settings.get(name, {})) for name in names}
