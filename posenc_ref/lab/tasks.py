"""What the models learn: text, looking a value up among records, sorting. Batches come from a generator."""

from typing import NamedTuple

import torch
from torch import Tensor

from posenc_ref.lab import corpus
from posenc_ref.lab.config import Config

IGNORED = -100
"""Target of a place without loss."""

KEYS, VALUES, RECORDS, FILLERS, QUERIES = 16, 8, 6, 8, 3
"""Of recall: kinds of keys, of values, records in a text, kinds of fillers, queries at the end of a text.

One query would do, but three tell a model three times as much in a step: it learns in a third of the steps or less.
"""

ITEMS = 32
"""Of sorting: the items are the numbers below it, and none comes twice: counting repeats is another task."""
MOST_ITEMS = 10


class Batch(NamedTuple):
    """Tokens and targets, int64 ``(batch, seq)``; positions, or None for 0 … seq − 1."""

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None


def vocabulary_size(task: str) -> int:
    """Tokens of a task.

    >>> vocabulary_size("lm"), vocabulary_size("recall"), vocabulary_size("sort")
    (80, 160, 33)
    """
    if task == "lm":
        return len(corpus.vocabulary())
    return ITEMS + 1 if task == "sort" else KEYS * VALUES + FILLERS + KEYS + VALUES


def draw(config: Config, step: int, generator: torch.Generator) -> Batch:
    """The batch of ``step`` (from 0)."""
    if config.task == "sort":
        sizes = torch.randint(2, MOST_ITEMS + 1, (config.batch,), generator=generator)
        return sorting(sizes, generator)
    if config.task != "lm":
        return recall(config.batch, config.length, generator, latest=config.task == "latest").batch
    return _text(config, step, generator)


def _text(config: Config, step: int, generator: torch.Generator) -> Batch:
    """Windows of the training text at random places; as skewed lengths, random starts and the tail ask for."""
    batch, length = config.batch, config.length
    if config.tail_length and step >= 0.9 * config.steps:
        batch, length = max(1, batch * length // config.tail_length), config.tail_length
    text = corpus.training_tokens()[: config.train_characters or None]
    first = torch.randint(len(text) - length, (batch, 1), generator=generator)
    index = torch.arange(length)
    tokens, targets = text[first + index], text[first + index + 1]
    if not config.lengths:
        return Batch(tokens, targets)
    choice = torch.multinomial(torch.tensor(config.length_probs), batch, replacement=True, generator=generator)
    own = torch.tensor(config.lengths)[choice][:, None]
    targets = targets.masked_fill(index >= own, IGNORED)
    if not config.random_start:
        return Batch(tokens, targets)
    start = (torch.rand(batch, 1, generator=generator) * (length - own + 1)).long()
    return Batch(tokens, targets, (start + index).clamp(max=length - 1))  # padding behind a text stays in range


class Recall(NamedTuple):
    """A batch of recall, and where in each text the record lies that answers the last query, ``(batch,)``."""

    batch: Batch
    place: Tensor


def recall(rows: int, length: int, generator: torch.Generator, *, latest: bool) -> Recall:
    """Texts of ``length`` tokens: records among fillers, then queries, whose target is the value of their record.

    A record is one token, a key with its value. With ``latest`` each key has two records with different values and
    the later one counts, so that the order matters; otherwise all keys differ and the order does not matter.
    The queries, all different, take the last places, and only these have a loss.

    >>> r = recall(1, 16, torch.Generator().manual_seed(0), latest=False)
    >>> query = r.batch.tokens[0, -1] - KEYS * VALUES - FILLERS
    >>> record = r.batch.tokens[0, r.place[0]]
    >>> value = r.batch.targets[0, -1] - (vocabulary_size("recall") - VALUES)
    >>> bool(record // VALUES == query), bool(record % VALUES == value)
    (True, True)
    """

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    keys = rand(rows, KEYS).argsort(1)[:, : RECORDS // 2 if latest else RECORDS]
    values = torch.randint(VALUES, (rows, RECORDS), generator=generator)
    if latest:  # the second record of a key comes in the second half, with another value
        half = RECORDS // 2
        other = torch.randint(1, VALUES, (rows, half), generator=generator)
        keys = torch.cat([keys, keys], 1)
        values = torch.cat([values[:, :half], (values[:, :half] + other) % VALUES], 1)
    places = rand(rows, length - QUERIES).argsort(1)[:, :RECORDS]
    if latest:
        pairs = places.reshape(rows, 2, -1).sort(1).values  # of each key the earlier place first
        places = pairs.flatten(1)
    records = keys * VALUES + values
    fillers = KEYS * VALUES + torch.randint(FILLERS, (rows, length), generator=generator)
    tokens = fillers.scatter(1, places, records)
    first = RECORDS // 2 if latest else 0  # the records that count
    asked = first + rand(rows, RECORDS - first).argsort(1)[:, :QUERIES]
    tokens[:, -QUERIES:] = KEYS * VALUES + FILLERS + keys.gather(1, asked)
    targets = torch.full_like(tokens, IGNORED)
    targets[:, -QUERIES:] = KEYS * VALUES + FILLERS + KEYS + values.gather(1, asked)
    return Recall(Batch(tokens, targets), places.gather(1, asked)[:, -1])


def sorting(sizes: Tensor, generator: torch.Generator) -> Batch:
    """For each of ``sizes`` a text: so many items, a separator, the items in order. Loss on these; padding behind.

    >>> b = sorting(torch.tensor([2]), torch.Generator().manual_seed(0))
    >>> b.tokens.tolist(), b.targets.tolist()                     # after the separator, 32: the smaller one
    ([[12, 27, 32, 12]], [[-100, -100, 12, 27]])
    """
    most = int(sizes.max())
    items = torch.rand(len(sizes), ITEMS, generator=generator).argsort(1)[:, :most]
    index, n = torch.arange(2 * most), sizes[:, None]
    inside = torch.arange(most) < n
    ordered = items.masked_fill(~inside, ITEMS).sort(1).values
    row = torch.cat([items, ordered], 1)
    # text t: items 0 … n − 1, separator at n, ordered items from n + 1; the last ordered item is only a target
    source = torch.where(index < n, index, most + (index - n - 1).clamp(0, most - 1))
    tokens = row.gather(1, source.expand(len(sizes), -1)).masked_fill(index == n, ITEMS)
    answer = row.gather(1, (most + (index - n).clamp(0, most - 1)).expand(len(sizes), -1))
    return Batch(tokens, answer.masked_fill((index < n) | (index >= 2 * n), IGNORED))
