"""Every encoding by name, with its properties, for chapters, lab and tables alike."""

from importlib import import_module
from typing import Any

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import check_choice

# Named by module and class, and imported when asked for: the learned ones need torch, which the package does not.
_ENCODINGS = {
    "nope": "posenc_ref.attention:Encoding",
    "sinusoidal": "posenc_ref.embedding.sinusoidal:Sinusoidal",
    "learned": "posenc_ref.embedding.modules:LearnedEmbedding",
    "floater": "posenc_ref.embedding.modules:Floater",
    "multiplicative": "posenc_ref.embedding.modules:MultiplicativeEmbedding",
    "multiplicative_sinusoidal": "posenc_ref.embedding.multiplicative:MultiplicativeSinusoidal",
    "rope": "posenc_ref.rotary.rope:RoPE",
    "scaled_rope": "posenc_ref.rotary.scaled:ScaledRoPE",
    "axial_rope": "posenc_ref.rotary.axial:AxialRoPE",
    "multimodal_rope": "posenc_ref.rotary.axial:MultimodalRoPE",
    "xpos": "posenc_ref.rotary.xpos:XPos",
    "alibi": "posenc_ref.bias.alibi:ALiBi",
    "sandwich": "posenc_ref.bias.sandwich:Sandwich",
    "t5": "posenc_ref.bias.modules:T5Bias",
    "kerple": "posenc_ref.bias.modules:KerpleBias",
    "fire": "posenc_ref.bias.modules:FireBias",
    "shaw": "posenc_ref.content.modules:Shaw",
    "transformer_xl": "posenc_ref.content.modules:TransformerXL",
    "deberta": "posenc_ref.content.modules:DeBERTa",
    "cope": "posenc_ref.content.modules:CoPE",
}


def names() -> tuple[str, ...]:
    """Names of all encodings.

    >>> names()[:3]
    ('nope', 'sinusoidal', 'learned')
    """
    return tuple(_ENCODINGS)


def spec(name: str) -> Spec:
    """Properties of an encoding.

    >>> spec("rope").shift_invariant
    True
    """
    return load(name).spec


def create(name: str, **arguments: Any) -> Encoding:
    """Make an encoding by name; the arguments are those of its class.

    >>> create("rope", head_dim=8, layout="half").rotary_dim is None
    True
    """
    return load(name)(**arguments)


def load(name: str) -> type[Encoding]:
    """Class of an encoding.

    >>> load("alibi").__name__
    'ALiBi'
    """
    module, class_name = _ENCODINGS[check_choice("name", name, names())].split(":")
    encoding: type[Encoding] = getattr(import_module(module), class_name)
    return encoding
