"""The training loop: AdamW with warm-up and cosine decay, and what it saw."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc_ref.bias.offsets import LogitBias
from posenc_ref.lab import tasks
from posenc_ref.lab.config import Config, config
from posenc_ref.lab.model import Decoder

Report = Callable[[int, "Fit"], None]

FASTER = {"t5": 10.0, "kerple": 10.0}
"""Learning rate of biases that are single numbers for each head, over that of matrices: they must reach 1 and more."""


@dataclass
class Fit:
    """A trained model and its history; arrays have one number a step."""

    config: Config
    seed: int
    initial: Decoder
    """A copy from before the first step."""
    model: Decoder
    losses: list[float]
    """Of each batch, in nats a token, before its step."""
    gradient_norms: list[float]
    """Before clipping."""
    learning_rates: list[float]
    measured: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """Losses of the last long pass, by (steps taken, length): two measures read them, and one pass is enough."""


def train(
    encoding: str | Sequence[str],
    *,
    task: str = "lm",
    seed: int = 0,
    report: Report | None = None,
    report_at: Sequence[int] = (),
    device: str = "cpu",
    **overrides: Any,
) -> Fit:
    """Train a small decoder with ``encoding`` and return it with its history.

    Parameters
    ----------
    encoding : a name, or one for each layer; see :func:`posenc_ref.lab.encodings.make`.
    task : ``"lm"``, ``"recall"``, ``"latest"`` or ``"sort"``; see :mod:`posenc_ref.lab.tasks`.
    seed : of the initial weights and of the batches. Runs with one seed see the same batches, whatever the encoding;
        on one machine and one thread the same seed gives the same bits.
    report : called as ``report(step, fit)`` after the steps in ``report_at`` (0: before the first one).
    device : where the steps run, such as ``"cuda"``. Weights and batches are drawn on the processor, and the model is
        back there for each report and at the end.
    overrides : settings of :class:`posenc_ref.lab.config.Config`.

    >>> fit = train("rope", steps=2, batch=2, length=8)
    >>> len(fit.losses), 4 < fit.losses[0] < 6                       # ln 80 is 4.4; a random head is surer, and wrong
    (2, True)
    """
    return train_config(encoding, config(task, **overrides), seed, report, report_at, device)


def train_config(
    encoding: str | Sequence[str],
    config: Config,
    seed: int,
    report: Report | None = None,
    report_at: Sequence[int] = (),
    device: str = "cpu",
) -> Fit:
    """:func:`train` with all settings in one."""
    with torch.random.fork_rng(devices=[]):  # initialisation in torch.nn has no generator; the caller's state stays
        torch.manual_seed(seed)
        model = Decoder(config, tasks.vocabulary_size(config.task), encoding)
    fit = Fit(config, seed, copy.deepcopy(model), model, [], [], [])
    generator = torch.Generator().manual_seed(seed)
    optimise(fit, lambda step: tasks.draw(config, step, generator), report, report_at, device)
    return fit


def optimise(
    fit: Fit,
    draw: Callable[[int], tasks.Batch],
    report: Report | None = None,
    report_at: Sequence[int] = (),
    device: str = "cpu",
) -> None:
    """Take the steps of AdamW, β = (0.9, 0.95), on batches ``draw(step)``, and append to the history."""
    config, model, steps = fit.config, fit.model, fit.config.steps
    groups = parameter_groups(model, config)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))
    parameters = [p for group in groups for p in group["params"]]
    if report and 0 in report_at:
        report(0, fit)
    model.to(device)
    for step in range(steps):
        factor = schedule(step, steps, config)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * factor * group["faster"]
        loss = batch_loss(model, draw(step))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.step()
        fit.losses.append(loss.item())
        fit.gradient_norms.append(norm.item())
        fit.learning_rates.append(config.learning_rate * factor)
        if report and step + 1 in report_at:
            model.to("cpu")
            report(step + 1, fit)
            model.to(device)
    model.to("cpu")


def schedule(step: int, steps: int, config: Config) -> float:
    """Learning rate of ``step`` (from 0) as a share of the highest: linear warm-up, then half a cosine to ``final``.

    >>> c = config("lm")
    >>> schedule(24, 500, c), round(schedule(499, 500, c), 4)
    (1.0, 0.02)
    """
    warm = max(1, round(config.warmup * steps))
    if step < warm:
        return (step + 1) / warm
    done = (step + 1 - warm) / max(1, steps - warm)
    return config.final + (1 - config.final) * (1 + math.cos(math.pi * done)) / 2


def batch_loss(model: Decoder, batch: tasks.Batch) -> Tensor:
    """Mean cross-entropy in nats over the targets that count."""
    logits = model(batch.tokens, batch.positions)
    targets = batch.targets.flatten().to(logits.device)
    return F.cross_entropy(logits.flatten(0, 1), targets, ignore_index=tasks.IGNORED)


def parameter_groups(model: Decoder, config: Config) -> list[dict[str, Any]]:
    """Weight decay for matrices and tables, position tables included; none for vectors and for biases of logits.

    A bias that decays is pulled to no bias, which is another encoding: T5, KERPLE and FIRE are exempt.
    """
    free: dict[int, float] = {}
    for module in model.encoding_modules:
        if isinstance(module, LogitBias):
            free |= {id(p): FASTER.get(module.spec.name, 1.0) for p in module.parameters()}
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for p in model.parameters():
        if p.requires_grad:
            decay = config.weight_decay if p.ndim > 1 and id(p) not in free else 0.0
            groups.setdefault((decay, free.get(id(p), 1.0)), []).append(p)
    return [{"params": ps, "weight_decay": decay, "faster": faster} for (decay, faster), ps in groups.items()]
