"""A small decoder to be read: token embeddings, layers of attention and feed-forward network, a head."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc_ref.attention import Encoding, attention
from posenc_ref.fast import sdpa
from posenc_ref.lab.config import Config
from posenc_ref.lab.encodings import at_length, layers, modules
from posenc_ref.positions import causal, window


class Layer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)): the pre-LN order, which trains without care."""

    def __init__(self, config: Config, window_size: int | None) -> None:
        super().__init__()
        d = config.d_model
        self.num_heads, self.window_size = config.num_heads, window_size
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def attend(self, x: Tensor, encoding: Encoding, positions: Tensor | None) -> Tensor:
        """Attention of ``x``, ``(batch, seq, d_model)``, over itself and what came before."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # each (batch, heads, seq, head_dim)
        if positions is None and self.window_size is None:
            y = sdpa(q, k, v, encoding=encoding, causal=True)
        else:
            index = torch.arange(x.shape[1], device=x.device)
            mask = causal(index, index)  # by index: padding behind a text may repeat positions
            if self.window_size is not None:
                mask = mask & window(index, index, self.window_size)
            at = index if positions is None else positions
            y = attention(q, k, v, encoding=encoding, q_positions=at, k_positions=at, mask=mask)
        mixed: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return mixed

    def feed_forward(self, x: Tensor) -> Tensor:
        """The same network at each position."""
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class Decoder(nn.Module):
    """A causal language model of ``vocab`` tokens; ``encodings`` has one encoding for each layer.

    What acts on embeddings acts once, through the first layer's encoding. ``encodings`` is a plain list, and may be
    replaced in a trained model: ``model.encodings = […]``.
    """

    def __init__(self, config: Config, vocab: int, names: str | Sequence[str]) -> None:
        super().__init__()
        self.encodings = layers(names, config)
        if not isinstance(names, str) and any("embedding" in e.spec.acts_on for e in self.encodings[1:]):
            raise ValueError(f"what acts on embeddings must be the first of a list, got {names}")
        self.encoding_modules = nn.ModuleList(modules(self.encodings))
        # The paper of the sinusoids multiplies the embeddings by √d_model first.
        self.embedding_scale = (
            math.sqrt(config.d_model) if "sinusoidal" in self.encodings[0].spec.name.split(" + ") else 1.0
        )
        self.embedding = nn.Embedding(vocab, config.d_model)
        windows = config.windows or [None] * config.num_layers
        self.layers = nn.ModuleList(Layer(config, size or None) for size in windows)
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, vocab, bias=False)
        self._initialise(config)

    def _initialise(self, config: Config) -> None:
        """Normal: 1/√fan_in, residual outputs also /√(2·layers), tokens 0.02. Encodings keep their own."""
        for encoding, layer in zip(self.encodings, self.layers, strict=True):
            assert isinstance(layer, Layer)
            for linear in (layer.qkv, layer.out, layer.up, layer.down):
                nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            for linear in (layer.up, layer.down):
                nn.init.zeros_(linear.bias)
            with torch.no_grad():
                layer.out.weight /= math.sqrt(2 * config.num_layers)
                layer.down.weight /= math.sqrt(2 * config.num_layers)
                if encoding.logit_scale(config.head_dim) == 1.0:  # T5 puts 1/√head_dim into the queries instead
                    layer.qkv.weight[: config.d_model] /= math.sqrt(config.head_dim)
        nn.init.normal_(self.head.weight, std=config.d_model**-0.5)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, trace: list[tuple[str, Tensor]] | None = None
    ) -> Tensor:
        """Return logits ``(batch, seq, vocab)`` for tokens ``(batch, seq)``.

        ``positions``, ``(seq,)`` or ``(batch, seq)``, are 0 … seq − 1 if None. Each state of the residual stream and
        of the norms is appended to ``trace``, with its name.
        """

        def seen(name: str, x: Tensor) -> Tensor:
            if trace is not None:
                trace.append((name, x))
            return x

        device = self.embedding.weight.device
        tokens, positions = tokens.to(device), None if positions is None else positions.to(device)
        encodings = [at_length(e, tokens.shape[1]) for e in self.encodings]
        at = torch.arange(tokens.shape[1], device=device) if positions is None else positions
        x = seen("embedding", encodings[0].embed(self.embedding(tokens) * self.embedding_scale, positions=at))
        for i, (layer, encoding) in enumerate(zip(self.layers, encodings, strict=True), 1):
            assert isinstance(layer, Layer)
            inside = positions if encoding.spec.acts_on not in ("embedding", "nothing") else None
            x = seen(f"attention {i}", x + layer.attend(seen(f"norm {i}a", layer.norm1(x)), encoding, inside))
            x = seen(f"ffn {i}", x + layer.feed_forward(seen(f"norm {i}b", layer.norm2(x))))
        logits: Tensor = self.head(seen("final norm", self.norm(x)))
        return logits
