"""The registry's encodings with the lab's arguments, by name, several in a layer, or another one in each layer."""

from collections.abc import Sequence
from typing import Any

import torch

from posenc_ref import registry
from posenc_ref.attention import Encoding
from posenc_ref.composition import Composition
from posenc_ref.lab.config import Config
from posenc_ref.rotary import ScaledRoPE

CLIP = 32
"""Offset beyond which Shaw and DeBERTa use their last vector: half the training length, so that it is trained."""


def make(name: str, config: Config) -> Encoding:
    """One encoding for a model of ``config``. Names joined by ``+`` act together: ``"rope+t5"``.

    The names are the registry's, and ``"shaw_keys"``: Shaw's without its table for values. Learned tables have a row
    for 16 training lengths, of which only the first get gradients. ``config.arguments`` go to the class.

    >>> from posenc_ref.lab.config import config
    >>> make("rope+t5", config("lm")).spec.name
    'rope + t5'
    """
    if "+" in name:
        return Composition(*(make(part, config) for part in name.split("+")))
    heads, head_dim, d_model, length = config.num_heads, config.head_dim, config.d_model, config.length
    arguments: dict[str, Any] = {
        "nope": {},
        "sinusoidal": {"d_model": d_model, "layout": "interleaved"},
        "learned": {"num_positions": 16 * length, "d_model": d_model, "offset": 0},
        "floater": {"d_model": d_model, "substeps": 1},
        "multiplicative": {"num_positions": 16 * length, "d_model": d_model},
        "multiplicative_sinusoidal": {"d_model": d_model, "layout": "interleaved"},
        "rope": {"head_dim": head_dim, "layout": "half"},
        "scaled_rope": {"head_dim": head_dim, "layout": "half"},
        "xpos": {"head_dim": head_dim, "layout": "half", "reference": 0.0},
        "alibi": {"num_heads": heads, "causal": True},
        "sandwich": {"num_heads": heads},
        "t5": {"num_heads": heads, "bidirectional": False, "max_distance": length},
        "kerple": {"num_heads": heads, "variant": "log"},
        "fire": {"num_heads": heads, "threshold": length / 4},  # as 512 for 2048 in the paper
        "shaw": {"head_dim": head_dim, "max_distance": CLIP},
        "shaw_keys": {"head_dim": head_dim, "max_distance": CLIP},
        "transformer_xl": {"num_heads": heads, "head_dim": head_dim},
        "deberta": {"num_heads": heads, "head_dim": head_dim, "span": CLIP, "p2c_index": "paper"},
        "cope": {"head_dim": head_dim, "num_positions": length, "scaled": True, "init_std": 0.02},
    }
    if name not in arguments:
        raise ValueError(f"name must be one of {', '.join(arguments)}, or several joined by +, got {name!r}")
    encoding = registry.create("shaw" if name == "shaw_keys" else name, **arguments[name] | config.arguments)
    if name == "shaw_keys":  # values without a term are values with a term of zeros
        table = encoding.value_vectors  # type: ignore[attr-defined]
        torch.nn.init.zeros_(table)
        table.requires_grad_(False)
    return encoding


def layers(names: str | Sequence[str], config: Config) -> list[Encoding]:
    """One encoding for each layer. A list names them; a single name gives each layer parameters of its own.

    Shared instead: what acts on the embeddings, which happens once; T5's table; DeBERTa's relative vectors. These
    models share them.
    """
    if not isinstance(names, str):
        if len(names) != config.num_layers:
            raise ValueError(f"encoding must be one name, or one for each of {config.num_layers} layers, got {names}")
        return [make(name, config) for name in names]
    first = make(names, config)
    if first.spec.acts_on in ("embedding", "nothing") or "t5" in names.split("+"):
        return [first] * config.num_layers
    rest = [make(names, config) for _ in range(config.num_layers - 1)]
    if names == "deberta":
        for other in rest:
            other.relative = first.relative  # type: ignore[attr-defined]
    return [first, *rest]


def modules(encodings: Sequence[Encoding]) -> list[torch.nn.Module]:
    """Those that have parameters, each once, the parts of compositions included."""
    parts = [part for e in encodings for part in (e.parts if isinstance(e, Composition) else (e,))]
    return list(dict.fromkeys(part for part in parts if isinstance(part, torch.nn.Module)))


def at_length(encoding: Encoding, length: int) -> Encoding:
    """Return ``encoding`` for a pass of ``length`` tokens: another one where the frequencies depend on it."""
    if isinstance(encoding, ScaledRoPE) and encoding.scaling.depends_on_length:
        return encoding.at(length)
    return encoding
