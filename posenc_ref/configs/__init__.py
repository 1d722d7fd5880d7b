"""Reading a model's ``config.json``: what its layers do with position, and the numbers that a port must match.

>>> text = '{"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64}'
>>> model = read_config(text)
>>> model.layers[0].rotary.layout, model.layers[0].rotary.head_dim
('interleaved', 256)
"""

from posenc_ref.configs.families import FAMILIES, Family
from posenc_ref.configs.model import Layers, Model, read_config
from posenc_ref.configs.reading import ConfigError
from posenc_ref.configs.report import as_json, as_text, plot
from posenc_ref.configs.rope import Frequencies, Rotary

__all__ = [
    "FAMILIES",
    "ConfigError",
    "Family",
    "Frequencies",
    "Layers",
    "Model",
    "Rotary",
    "as_json",
    "as_text",
    "plot",
    "read_config",
]
