"""The text that the language models learn: two novels by Jane Austen, as characters. Its origin is in ``austen.md``."""

import hashlib
from functools import cache
from importlib.resources import files

import torch

HELD_OUT = 98_000
"""Characters at the end that no model is trained on."""


@cache
def _text() -> bytes:
    return (files("posenc_ref.lab") / "austen.txt").read_bytes()


def sha256() -> str:
    """Hash of the text, for the results.

    >>> sha256()[:12]
    '233f01e91ac5'
    """
    return hashlib.sha256(_text()).hexdigest()


def vocabulary() -> list[int]:
    """Its characters, as sorted code points: token i is character ``vocabulary()[i]``.

    >>> len(vocabulary())
    80
    """
    return sorted(set(_text()))


@cache
def _tokens() -> torch.Tensor:
    table = torch.zeros(256, dtype=torch.int64)
    table[torch.tensor(vocabulary())] = torch.arange(len(vocabulary()))
    return table[torch.frombuffer(bytearray(_text()), dtype=torch.uint8).long()]


def training_tokens() -> torch.Tensor:
    """Token ids of the training part, int64 ``(1469796,)``."""
    return _tokens()[:-HELD_OUT]


def held_out_tokens() -> torch.Tensor:
    """Token ids of the held-out part, int64 ``(98000,)``."""
    return _tokens()[-HELD_OUT:]


def encode(text: str) -> torch.Tensor:
    """Token ids of a text in the corpus's characters, int64 ``(characters,)``."""
    index = {code: i for i, code in enumerate(vocabulary())}
    return torch.tensor([index[ord(c)] for c in text])


def decode(tokens: torch.Tensor) -> str:
    """Text of token ids.

    >>> decode(encode("It is a truth"))
    'It is a truth'
    """
    codes = vocabulary()
    return "".join(chr(codes[t]) for t in tokens.tolist())


def segments(tokens: torch.Tensor, length: int, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut the first ``total`` tokens into texts of ``length``; return them and the tokens that follow each one.

    >>> segments(torch.arange(7), 3, 6)[0].tolist(), segments(torch.arange(7), 3, 6)[1].tolist()
    ([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]])
    """
    rows = min(total, len(tokens) - 1) // length
    return tokens[: rows * length].reshape(rows, length), tokens[1 : rows * length + 1].reshape(rows, length)
