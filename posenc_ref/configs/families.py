"""What each family of models does with position, as data: one line a ``model_type`` of Hugging Face's ``config.json``.

Checked against the models' own code in ``transformers`` 5.24 (``tests/test_config_values.py`` repeats it); XLNet, Mamba
and the first DeBERTa were read there, not run, and ChatGLM is not part of that package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from posenc_ref.rotary.layouts import Layout

Kind = Literal["rope", "alibi", "t5", "mpnet", "deberta", "learned", "sinusoidal", "transformer_xl", "none"]


@dataclass(frozen=True)
class Family:
    """How a family encodes position, what it assumes where its file is silent, and how it names its fields.

    >>> FAMILIES["gptj"].layout, FAMILIES["gpt_neox"].layout
    ('interleaved', 'half')
    """

    title: str
    kind: Kind
    layout: Layout | None = None
    base: float = 10000.0
    partial: float | None = None
    """Share of the head that turns, if the file does not say. None: all of it, whatever the file says."""
    head_dim: int | None = None
    """Channels of a head, if the file does not say. None: hidden_size / num_attention_heads."""
    context: int | None = None
    """Tokens of context, if the file does not say."""
    original: int | None = None
    """Trained length that counts even against the one inside rope_scaling, unless the top of the file has another."""
    scaling: dict[str, Any] | None = None
    """Scaling in force where the file has none."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other names of a field, tried before the usual one."""
    local_base: tuple[str, float] | None = None
    """Where sliding layers have a base of their own: its field ("" if none) and default."""
    local_scaled: bool = False
    """Does rope_scaling hold for sliding layers too, where they have a base of their own?"""
    every: tuple[str, int, int] | None = None
    """Field, default n, and shift: layers i with (i + shift) % n == 0 are special: full attention, or no rotation."""
    no_rope: Literal["", "listed", "full"] = ""
    """Layers that do not rotate: those with a 0 in no_rope_layers, or those with full attention."""
    window: Literal["", "all", "late"] = ""
    """Sliding windows where layer_types is absent: in all layers, or from max_window_layers on if switched on."""
    offset: int = 0
    """Row of a learned table that position 0 takes."""
    notes: tuple[str, ...] = ()


_GPT = {
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "num_hidden_layers": ("n_layer",),
    "max_position_embeddings": ("n_positions",),
}
_T5 = {"num_attention_heads": ("num_heads",), "num_hidden_layers": ("num_layers",), "head_dim": ("d_kv",)}
_BART = {"hidden_size": ("d_model",), "num_hidden_layers": ("encoder_layers",)}
_META = "Meta's own checkpoints pair neighbours (2g, 2g + 1); Hugging Face's have the rows of q and k reordered."
_MLA = (
    "Only the qk_rope_head_dim channels of a head turn, in a part of their own; all heads share that part of the key."
)
_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}


def _rope(title: str, layout: Layout = "half", **more: object) -> Family:
    return Family(title, "rope", layout, **more)  # type: ignore[arg-type]


def _table(title: str, **more: object) -> Family:
    return Family(title, "learned", **more)  # type: ignore[arg-type]


_VL_NOTE = "Text has three equal positions (time, height, width), so that it is turned as by plain RoPE."

FAMILIES: dict[str, Family] = {
    # rotated, pairs in halves
    "llama": _rope("LLaMA 1 to 3", notes=(_META,)),
    "mistral": _rope("Mistral", window="all"),
    "mixtral": _rope("Mixtral", base=1e6, window="all"),
    "qwen2": _rope("Qwen 2 and 2.5", window="late"),
    "qwen2_moe": _rope("Qwen 2 MoE", window="late"),
    "qwen3": _rope("Qwen 3", head_dim=128, window="late"),
    "qwen3_moe": _rope("Qwen 3 MoE"),
    "qwen2_vl_text": _rope("Qwen2-VL, language model", base=1e6, window="late", notes=(_VL_NOTE,)),
    "qwen2_5_vl_text": _rope("Qwen2.5-VL, language model", base=1e6, window="late", notes=(_VL_NOTE,)),
    "gemma": _rope("Gemma", head_dim=256),
    "gemma2": _rope("Gemma 2", head_dim=256, every=("", 2, 1)),
    "gemma3_text": _rope(
        "Gemma 3",
        base=1e6,
        head_dim=256,
        context=131072,
        local_base=("rope_local_base_freq", 1e4),
        every=("sliding_window_pattern", 6, 1),
    ),
    "phi": _rope("Phi 1 to 2", partial=0.5),
    "phi3": _rope("Phi 3 and 4", partial=1.0, original=4096, window="all"),
    "gpt_oss": _rope("gpt-oss", base=150000.0, head_dim=64, context=131072, scaling=_GPT_OSS, every=("", 2, 1)),
    "gpt_neox": _rope(
        "GPT-NeoX and Pythia",
        partial=0.25,
        names={"rope_theta": ("rotary_emb_base",), "partial_rotary_factor": ("rotary_pct",)},
    ),
    "glm4_moe": _rope("GLM 4.5", partial=0.5),
    "stablelm": _rope("StableLM", partial=0.25),
    "starcoder2": _rope("StarCoder 2", window="all"),
    "persimmon": _rope("Persimmon", partial=0.5),
    "nemotron": _rope("Nemotron", partial=0.5),
    "olmo": _rope("OLMo"),
    "olmo2": _rope("OLMo 2"),
    "olmo3": _rope("OLMo 3", base=500000.0, local_base=("", 500000.0), every=("", 4, 1)),
    "granite": _rope("Granite"),
    "smollm3": _rope("SmolLM 3", base=2e6, every=("no_rope_layer_interval", 4, 1), no_rope="listed"),
    "exaone4": _rope("EXAONE 4", every=("sliding_window_pattern", 4, 1), no_rope="full"),
    "seed_oss": _rope("Seed-OSS", head_dim=128),
    "arcee": _rope("Arcee"),
    "modernbert": _rope(
        "ModernBERT",
        base=160000.0,
        names={"rope_theta": ("global_rope_theta",)},
        local_base=("local_rope_theta", 1e4),
        local_scaled=True,
        every=("global_attn_every_n_layers", 3, 0),
    ),
    # rotated, neighbours are pairs
    "gptj": _rope("GPT-J", "interleaved", names=_GPT),
    "codegen": _rope("CodeGen", "interleaved", names=_GPT),
    "llama4_text": _rope(
        "Llama 4",
        "interleaved",
        base=500000.0,
        head_dim=128,
        every=("no_rope_layer_interval", 4, 1),
        no_rope="listed",
        notes=(
            "Layers that rotate see chunks of attention_chunk_size tokens; positions go on counting across chunks.",
        ),
    ),
    "deepseek_v2": _rope(
        "DeepSeek-V2", "interleaved", head_dim=64, names={"head_dim": ("qk_rope_head_dim",)}, notes=(_MLA,)
    ),
    "deepseek_v3": _rope(
        "DeepSeek-V3 and R1",
        "interleaved",
        head_dim=64,
        names={"head_dim": ("qk_rope_head_dim",)},
        notes=(
            _MLA,
            "transformers leaves turned channels in the order of halves; logits are the same, cached keys are not.",
        ),
    ),
    "glm": _rope("GLM 4 (9B)", "interleaved", partial=0.5, head_dim=128),
    "glm4": _rope("GLM 4 (0414)", "interleaved", partial=0.5, head_dim=128),
    "chatglm": _rope(
        "ChatGLM 2, 3 and GLM 4 with their own code",
        "interleaved",
        partial=0.5,
        names={
            "head_dim": ("kv_channels",),
            "num_hidden_layers": ("num_layers",),
            "max_position_embeddings": ("seq_length",),
        },
    ),
    "cohere": _rope("Command R", "interleaved", base=500000.0),
    "cohere2": _rope("Command R7B and A", "interleaved", every=("sliding_window_pattern", 4, 1), no_rope="full"),
    "ernie4_5": _rope("ERNIE 4.5", "interleaved", base=500000.0, head_dim=128),
    "helium": _rope("Helium", "interleaved", base=100000.0, head_dim=128),
    # a bias on the logits
    "bloom": Family("BLOOM", "alibi", names=_GPT | {"hidden_size": ("n_embed",)}),
    "mpt": Family(
        "MPT",
        "alibi",
        names={
            "hidden_size": ("d_model",),
            "num_attention_heads": ("n_heads",),
            "num_hidden_layers": ("n_layers",),
            "max_position_embeddings": ("max_seq_len",),
        },
    ),
    "falcon": _rope("Falcon", names={"hidden_size": ("n_embed",)}),  # or ALiBi, by its field alibi
    "t5": Family("T5", "t5", names=_T5),
    "mt5": Family("mT5", "t5", names=_T5),
    "umt5": Family("UMT5", "t5", names=_T5),
    "mpnet": Family("MPNet", "mpnet", offset=2),
    # position meets content in the logits
    "deberta": Family("DeBERTa", "deberta"),
    "deberta-v2": Family("DeBERTa v2 and v3", "deberta"),
    "xlnet": Family(
        "XLNet",
        "transformer_xl",
        names={
            "hidden_size": ("d_model",),
            "num_attention_heads": ("n_head",),
            "num_hidden_layers": ("n_layer",),
        },
    ),
    # a table added to the embedding
    "bert": _table("BERT"),
    "albert": _table("ALBERT"),
    "electra": _table("ELECTRA"),
    "roberta": _table("RoBERTa"),
    "xlm-roberta": _table("XLM-RoBERTa"),
    "camembert": _table("CamemBERT"),
    "distilbert": _table(
        "DistilBERT",
        names={
            "hidden_size": ("dim",),
            "num_attention_heads": ("n_heads",),
            "num_hidden_layers": ("n_layers",),
        },
    ),
    "opt": _table("OPT", offset=2),
    "bart": _table("BART", offset=2, names=_BART),
    "mbart": _table("mBART", offset=2, names=_BART),
    "gpt2": _table("GPT-2", names=_GPT),
    "gpt_bigcode": _table("StarCoder and SantaCoder", names=_GPT),
    "gpt_neo": _table("GPT-Neo", names={"num_attention_heads": ("num_heads",), "num_hidden_layers": ("num_layers",)}),
    "pegasus": Family("PEGASUS", "sinusoidal", names=_BART),
    # recurrent
    "mamba": Family("Mamba", "none", names={"num_hidden_layers": ("n_layer",)}),
}

PADDED = ("roberta", "xlm-roberta", "camembert")
"""Families whose positions start at pad_token_id + 1."""

MROPE = ("qwen2_vl_text", "qwen2_5_vl_text")
"""Families whose positions have three axes; their files call plain RoPE "mrope"."""

WRAPPERS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "llava": "llama",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
}
"""Models of text and images: the family of their language model, unless its part of the file names another."""
