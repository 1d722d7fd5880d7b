"""What an experiment is: a task, an encoding, a seed, and the recipe's settings. Needs no torch."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from posenc_ref.checks import check_choice, check_size

RECIPE = 1
"""Raise it when model, training or measures change what they compute: all results are then out of date."""

TASKS = ("lm", "recall", "latest", "sort")

DEFAULTS: dict[str, dict[str, Any]] = {
    "lm": {"steps": 500, "measures": ["perplexity", "positions"]},
    "recall": {"steps": 250, "measures": ["recall"]},
    "latest": {"steps": 500, "measures": ["recall"]},
    "sort": {"steps": 200, "measures": ["sort"]},
}


@dataclass(frozen=True)
class Config:
    """Settings of one training run; :func:`config` fills in those that depend on the task.

    The model: pre-LN decoder, GELU of four times the width, untied head. The training: AdamW, linear warm-up, cosine
    decay, clipped gradients. Lengths are in tokens.
    """

    task: str
    steps: int
    measures: list[str]
    """Names from :data:`posenc_ref.lab.measures.MEASURES`, taken at the end."""
    d_model: int = 64
    num_layers: int = 2
    num_heads: int = 4
    windows: list[int | None] = field(default_factory=list)
    """How many tokens each layer sees back, itself included; None or 0 for all. Empty: all, in all layers."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the encoding's class, over those of :func:`posenc_ref.lab.encodings.make`."""
    length: int = 64
    batch: int = 32
    learning_rate: float = 5e-3
    weight_decay: float = 0.1
    warmup: float = 0.05
    """Share of the steps."""
    final: float = 0.02
    """Learning rate at the end, as a share of the highest."""
    clip: float = 1.0
    lengths: list[int] = field(default_factory=list)
    """Lengths of texts within the rows of a batch; the rest of a row is padding without loss. Empty: ``length``."""
    length_probs: list[float] = field(default_factory=list)
    random_start: bool = False
    """Does each text start at a random position, so that it ends before ``length``?"""
    tail_length: int = 0
    """Length of the texts in the last tenth of the steps, at the same number of tokens a step; 0: no change."""
    train_characters: int = 0
    """How much of the training text is used, from its start; 0: all."""
    checkpoints: list[int] = field(default_factory=list)
    """Steps after which ``watch`` is measured as well."""
    watch: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of measures, by name: ``{"positions": {"length": 128}}``."""

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        for name in ("steps", "d_model", "num_layers", "num_heads", "length", "batch"):
            check_size(name, getattr(self, name))
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model must be a multiple of num_heads = {self.num_heads}, got {self.d_model}")
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(f"windows must be one for each of {self.num_layers} layers, got {self.windows}")
        if len(self.lengths) != len(self.length_probs) or any(n > self.length for n in self.lengths):
            raise ValueError(f"lengths must be at most {self.length}, one for each probability, got {self.lengths}")

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.d_model // self.num_heads


def config(task: str, **overrides: Any) -> Config:
    """Settings of the recipe for ``task``, with ``overrides``.

    >>> config("lm").steps, config("recall").steps, config("lm", steps=10).steps
    (500, 250, 10)
    >>> config("lm", stepz=10)
    Traceback (most recent call last):
    TypeError: no setting named stepz; there are arguments, batch, checkpoints, clip, d_model, ...
    """
    known = sorted(f.name for f in fields(Config) if f.name != "task")
    for name in overrides:
        if name not in known:
            raise TypeError(f"no setting named {name}; there are {', '.join(known)}")
    return Config(task, **DEFAULTS[check_choice("task", task, TASKS)] | overrides)


@dataclass(frozen=True)
class Job:
    """One training run: ``encoding`` is a name of :func:`posenc_ref.lab.encodings.make`, or one for each layer."""

    task: str
    encoding: str | Sequence[str]
    seed: int
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """All settings."""
        return config(self.task, **self.overrides)

    @property
    def key(self) -> str:
        """Hash of everything that decides the result: all settings and the recipe's number, twelve hex digits.

        >>> Job("lm", "rope", 0).key == Job("lm", "rope", 0, {"steps": 500}).key != Job("lm", "rope", 1).key
        True
        """
        what = {"recipe": RECIPE, "encoding": self.encoding, "seed": self.seed} | asdict(self.config)
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """Name of the file of its result.

        >>> Job("lm", ["rope", "nope"], 0).name
        'lm-rope,nope-0-....json'
        """
        encoding = self.encoding if isinstance(self.encoding, str) else ",".join(self.encoding)
        return f"{self.task}-{encoding}-{self.seed}-{self.key}.json"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, as they stand in the result."""
        return {"task": self.task, "encoding": self.encoding, "seed": self.seed, "overrides": self.overrides}
