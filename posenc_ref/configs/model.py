"""From a ``config.json`` to what its layers do with position."""

import difflib
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posenc_ref.bias.alibi import slopes
from posenc_ref.bias.t5 import bucket_starts, t5_bucket
from posenc_ref.configs.families import FAMILIES, MROPE, PADDED, WRAPPERS, Family
from posenc_ref.configs.reading import MOST, ConfigError, Fields, parse, printable, show
from posenc_ref.configs.rope import LAYER_TYPES, Rotary, Warn, read_head_dim, read_rotary, rope_entries
from posenc_ref.content.deberta import deberta_bucket, deberta_scale
from posenc_ref.embedding.sinusoidal import sinusoidal

OFFSETS = (-1000, -100, -20, -8, -1, 0, 1, 8, 20, 100, 1000)
"""Key minus query, for which reports show buckets."""
_POSITIONAL = re.compile(
    r"rope|rotary|position|alibi|theta|relative|sliding|max_seq|seq_len|n_ctx|layer_types|chunk|window|attention_layers"
)


@dataclass(frozen=True)
class Layers:
    """Layers that treat position alike."""

    encoding: str
    layer_type: str = "full_attention"
    numbers: tuple[int, ...] | None = None
    """Counted from 0; None: all of them."""
    window: int | None = None
    rotary: Rotary | None = None
    facts: tuple[tuple[str, str], ...] = ()
    """Rows of the report: a word and a sentence."""
    values: dict[str, Any] = field(default_factory=dict)
    """Numbers that a port must match, by name."""


@dataclass(frozen=True)
class Model:
    """What a configuration says about position."""

    model_type: str
    family: Family
    num_layers: int | None
    context: int | None
    layers: tuple[Layers, ...]
    warnings: tuple[str, ...]


def read_config(source: str | dict[str, Any]) -> Model:
    """Return what a ``config.json`` says about position; the source is its text, or the object it holds.

    Raises :class:`ConfigError` for what cannot be read for sure: unknown model types, missing or malformed fields.

    >>> read_config("{}")
    Traceback (most recent call last):
    posenc_ref.configs.reading.ConfigError: model_type is missing: it tells which code the model runs
    >>> text = '{"model_type": "bloom", "n_head": 8, "n_layer": 2, "hidden_size": 64}'
    >>> read_config(text).layers[0].values["slopes"][:2]
    [0.5, 0.25]
    """
    if isinstance(source, dict):
        content = source
    elif isinstance(source, str):
        content = parse(source)
    else:
        raise TypeError(f"source must be a text or a dict, got {type(source).__name__}")
    warnings: list[str] = []

    def warn(text: str) -> None:
        if (line := printable(text)) not in warnings:
            warnings.append(line)

    config, family, model_type = _language_model(content, warn)
    context = config.integer("max_position_embeddings") if model_type not in _NO_CONTEXT else None
    if context is None and family.context:
        context = family.context
        warn(f"max_position_embeddings is absent: {context:,}, transformers' default for this family.")
    count = config.integer("num_hidden_layers", 1, 10_000)
    kind = _kind(config, family, model_type)
    if kind == "rope":
        layers = _rotating(config, family, model_type, count, context, warn)
    else:
        layers = (_DESCRIBE[kind](config, family, model_type, context, warn),)
    if any(group.rotary for group in layers):
        _half_precision(content, config, context, warn)
    for name in config.unread():
        if _POSITIONAL.search(name):
            warn(f"Field {config.place(name)} is not used here: ignored.")
    return Model(model_type, family, count, context, layers, tuple(warnings))


_NO_CONTEXT = ("bloom", "xlnet", "mamba", "t5", "mt5", "umt5")


def _language_model(content: dict[str, Any], warn: Warn) -> tuple[Fields, Family, str]:
    """The object that describes the language model, its family and type."""
    top = Fields(content)
    name = top.text("model_type")
    if name is None:
        raise top.missing("model_type", "it tells which code the model runs")
    if name in WRAPPERS:
        inner = top.table("text_config")
        if inner is None and WRAPPERS[name] not in MROPE:
            raise top.missing("text_config", f"{name} keeps its language model there")
        if inner is not None:
            name = inner.text("model_type") or WRAPPERS[name]
            if name not in FAMILIES:
                raise ConfigError(_unknown("text_config.model_type", name))
            family = FAMILIES[name]
            return _known(Fields(inner.content | {"model_type": name}, "text_config", family.names)), family, name
        name = WRAPPERS[name]
    if name not in FAMILIES:
        hint = ""
        text = content.get("text_config")
        if isinstance(text, dict) and str(text.get("model_type")) in FAMILIES:
            hint = f'; its text_config, of type "{text["model_type"]}", can be read as a file of its own'
        raise ConfigError(_unknown("model_type", name) + hint)
    family = FAMILIES[name]
    return _known(Fields(content | {"model_type": name}, "", family.names)), family, name


def _known(config: Fields) -> Fields:
    """Mark the fields of which nothing has to be said, as they repeat another; leave out those that are not read."""
    config.read.update(("n_ctx", "original_rope"))
    if config.content["model_type"] == "gpt_neox":  # its class reads rotary_emb_base and rotary_pct, and no other name
        for name in ("rope_theta", "partial_rotary_factor"):
            if name in config.content:
                config.content[f"{name} (GPT-NeoX has {config.names[name][0]})"] = config.content.pop(name)
    return config


def _unknown(place: str, name: str) -> str:
    known = [*FAMILIES, *WRAPPERS]
    near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
    text = f'{place} "{name[:60]}" is not known'
    if near:
        return f'{text}; the nearest name is "{near[0]}", perhaps another model'
    return f"{text}. Known: {', '.join(sorted(known))}"


def _kind(config: Fields, family: Family, model_type: str) -> str:
    if model_type == "falcon" and config.flag("alibi"):
        return "alibi"
    if model_type == "mpt":
        attention = config.table("attn_config")
        if attention and attention.flag("rope"):
            raise ConfigError("attn_config.rope must be false: MPT with rotary positions is not described here")
        if attention and attention.flag("alibi") is False:
            if config.flag("learned_pos_emb") is False:
                raise ConfigError("learned_pos_emb and attn_config.alibi must not both be false: no encoding is left")
            return "learned"
    if model_type == "distilbert" and config.flag("sinusoidal_pos_embds"):
        return "sinusoidal"
    return family.kind


def _half_precision(content: dict[str, Any], config: Fields, context: int | None, warn: Warn) -> None:
    dtypes = [part.get(name) for part in (content, config.content) for name in ("dtype", "torch_dtype")]
    for dtype, last in (("bfloat16", 256), ("float16", 2048)):
        if dtype in dtypes and (context is None or context > last):
            warn(
                f"Weights are {dtype}; positions, angles and tables must not be: in {dtype} position {last + 1:,} "
                f"is stored as {last:,}. Compute angles in float32 or wider, round cos and sin last."
            )


# -- RoPE, layer by layer ------------------------------------------------------------------------------------------


def _rotating(
    config: Fields, family: Family, model_type: str, count: int | None, context: int | None, warn: Warn
) -> tuple[Layers, ...]:
    if model_type == "chatglm":
        _check_chatglm(config)
    entries = rope_entries(config, family, warn)
    kinds = _layer_kinds(config, family, model_type, count, warn)
    groups = []
    rotaries: dict[str, Rotary] = {}
    for layer_type, turns in sorted(set(kinds or [("full_attention", True)]), key=_order):
        numbers = tuple(i for i, k in enumerate(kinds) if k == (layer_type, turns)) if kinds else None
        if numbers is not None and len(numbers) == count:
            numbers = None
        window = _window(config, family, layer_type)
        if not turns:
            groups.append(Layers("none", layer_type, numbers, window, facts=_nope_facts(config, model_type)))
            continue
        key = layer_type if "" not in entries else ""
        if key not in rotaries:
            rotaries[key] = read_rotary(config, family, entries[key], layer_type, context, warn)
        groups.append(Layers("rope", layer_type, numbers, window, rotaries[key]))
    return tuple(groups)


def _order(kind: tuple[str, bool]) -> tuple[int, bool]:
    return LAYER_TYPES.index(kind[0]), not kind[1]


def _layer_kinds(
    config: Fields, family: Family, model_type: str, count: int | None, warn: Warn
) -> list[tuple[str, bool]] | None:
    """Type of each layer, and whether it rotates; None if all are alike and their number is not given."""
    every = _period(config, family)
    if count is None:
        if family.every or family.no_rope:
            raise config.missing("num_hidden_layers", "layers of this family differ")
        return [("sliding_attention" if _slides(config, family) else "full_attention", True)]
    special = [every is not None and (i + (family.every or ("", 1, 1))[2]) % every == 0 for i in range(count)]
    turns = [True] * count
    if family.no_rope == "listed":
        turns = _listed(config, count) or [not s for s in special]
        if config.has("no_rope_layers") and any(turns):
            warn("no_rope_layers has a 1 for layers that do rotate, and a 0 for those that do not.")
    types = _given_types(config, family, count)
    if types is None and family.no_rope == "listed":
        types = [_unlisted_type(config, model_type, t) for t in turns]
    elif types is None and family.every and not (model_type == "exaone4" and _no_window(config)):
        types = ["full_attention" if s else "sliding_attention" for s in special]
    elif types is None:
        given = config.integer("max_window_layers", 0)
        first = 0 if family.window != "late" else given if given is not None else 80 if model_type in MROPE else 28
        slides = _slides(config, family)
        types = ["sliding_attention" if slides and i >= first else "full_attention" for i in range(count)]
    if family.no_rope == "full" and not (model_type == "exaone4" and _no_window(config)):
        turns = [t == "sliding_attention" and not _no_window(config) for t in types]
    return list(zip(types, turns, strict=True))


def _period(config: Fields, family: Family) -> int | None:
    if family.every is None:
        return None
    name, default, _ = family.every
    if name == "sliding_window_pattern" and isinstance(config.get(name), str) and config.has("layer_types"):
        return default  # EXAONE 4's letters, LLLG; layer_types says the same
    return (config.integer(name, 1, 10_000) if name else None) or default


def _listed(config: Fields, count: int) -> list[bool] | None:
    values = config.items("no_rope_layers")
    if not values:
        return None
    if len(values) < count or any(isinstance(v, bool) or v not in (0, 1) for v in values):
        raise ConfigError(f"{config.place('no_rope_layers')} must hold a 0 or 1 for each of {count} layers")
    return [v == 1 for v in values[:count]]


def _given_types(config: Fields, family: Family, count: int) -> list[str] | None:
    if not (family.every or family.window == "late"):
        return None
    values = config.items("layer_types", count)
    for value in values or []:
        if value not in LAYER_TYPES:
            raise ConfigError(f"{config.place('layer_types')} must hold {', '.join(LAYER_TYPES)}, got {show(value)}")
    return values


def _unlisted_type(config: Fields, model_type: str, turns: bool) -> str:
    if model_type == "llama4_text":
        chunked = turns and not ("attention_chunk_size" in config.content and not config.has("attention_chunk_size"))
        return "chunked_attention" if chunked else "full_attention"
    slides = config.flag("use_sliding_window") and config.has("sliding_window") and not turns
    return "sliding_attention" if slides else "full_attention"


def _slides(config: Fields, family: Family) -> bool:
    kind = config.content.get("model_type")
    if kind in ("qwen2_moe", "qwen3_moe") and config.flag("use_sliding_window"):
        raise ConfigError(f"use_sliding_window must be false: which layers of {kind} slide is not described here")
    if kind == "mistral" and "sliding_window" not in config.content:
        raise config.missing("sliding_window", "null for none; transformers would take 4096")
    if family.window == "late" and not config.flag("use_sliding_window"):
        return False
    return bool(family.window) and config.integer("sliding_window") is not None


def _no_window(config: Fields) -> bool:
    return "sliding_window" in config.content and config.integer("sliding_window") is None


def _window(config: Fields, family: Family, layer_type: str) -> int | None:
    config.read.update(_WINDOW_FIELDS)
    if layer_type == "full_attention":
        return None
    if layer_type == "chunked_attention":
        return config.integer("attention_chunk_size")
    if config.flag("use_bidirectional_attention"):
        raise ConfigError("use_bidirectional_attention must be false: its windows are not described here")
    return config.integer("sliding_window") or config.integer("local_attention")


_WINDOW_FIELDS = (
    "sliding_window",
    "local_attention",
    "attention_chunk_size",
    "use_sliding_window",
    "max_window_layers",
)


def _nope_facts(config: Fields, model_type: str) -> tuple[tuple[str, str], ...]:
    if model_type != "llama4_text" or config.get("attn_temperature_tuning") in (False, 0):
        return ()
    scale, floor = config.number("attn_scale", 0), config.number("floor_scale", 0, above=True)
    scale, floor = 0.1 if scale is None else scale, floor or 8192
    return (
        ("Queries", f"multiplied by 1 + {scale:g} · ln(1 + floor((p + 1) / {floor:g})) at position p"),
    )  # fmt: skip


def _check_chatglm(config: Fields) -> None:
    if config.flag("position_encoding_2d"):
        raise ConfigError("position_encoding_2d: ChatGLM 1 has two positions for each token, which is not described")
    ratio = config.number("rope_ratio", 0, above=True)
    if ratio not in (None, 1.0):
        raise ConfigError(
            f"rope_ratio {ratio:g}: ChatGLM 2 divides positions by it, ChatGLM 3 and GLM 4 multiply the base, and the "
            "file does not tell which code it goes with"
        )


# -- the others ----------------------------------------------------------------------------------------------------


def _heads(config: Fields) -> int:
    heads = config.integer("num_attention_heads", 1, MOST)
    if heads is None:
        raise config.missing("num_attention_heads", "each head has its own numbers")
    return heads


def _alibi(config: Fields, family: Family, model_type: str, context: int | None, warn: Warn) -> Layers:
    heads, largest = _heads(config), 8.0
    attention = config.table("attn_config") if model_type == "mpt" else None
    if attention and attention.flag("alibi") is None:
        warn("attn_config.alibi is absent: transformers takes true, the authors' code may take false.")
    if attention:
        largest = attention.number("alibi_bias_max", 0, above=True) or 8.0
        if largest != 8:
            warn(f"attn_config.alibi_bias_max {largest:g}: transformers 5.24 does not read it and takes 8.")
    values = slopes(heads) ** (largest / 8)
    weaker = read_head_dim(config, family, warn) ** 0.5 if model_type == "falcon" else 1.0
    facts = [
        ("Bias", "each head adds slope · (key − query) to its logits: 0 for the token itself, less for farther keys"),
        ("Slopes", f"{heads} heads, in this order: {_few(values)}"),
        ("Half at", f"{_few(np.log(2) / values * weaker, '.3g')} tokens of distance halve a weight"),
    ]
    numbers: dict[str, Any] = {"slopes": values.tolist()}
    if heads & (heads - 1):
        facts.append(("Order", "not sorted: heads are no power of two, and the rest is appended. Do not sort them."))
    if model_type == "falcon":
        numbers["slopes_after_scaling"] = (values / weaker).tolist()
        small, head_dim = _few(values / weaker), round(weaker**2)
        facts.append(
            ("Scaling", f"added before the division by √{head_dim}: slopes in effect {weaker:.4g} times less, {small}")
        )
        warn("Falcon rounds slopes, and slope times position, to bfloat16: distances of far keys are coarse.")
    dtype = config.content.get("dtype") or config.content.get("torch_dtype")
    if model_type == "bloom" and dtype in ("bfloat16", "float16"):
        warn(
            f"transformers casts slope × position to {dtype}: near keys of a long text share one bias. A port does "
            "better with distances, in float32."
        )
    return Layers("alibi", facts=tuple(facts), values=numbers)


def _t5(config: Fields, family: Family, model_type: str, context: int | None, warn: Warn) -> Layers:
    buckets = config.integer("relative_attention_num_buckets", 4, MOST)
    distance = config.integer("relative_attention_max_distance", 1)
    if buckets is None or distance is None:
        name = "relative_attention_" + ("num_buckets" if buckets is None else "max_distance")
        warn(f"{name} is absent: {32 if buckets is None else 128}, transformers' default.")
    buckets, distance = buckets or 32, distance or 128
    heads, offsets = _heads(config), np.asarray(OFFSETS)
    try:
        sides = {
            name: (n, t5_bucket(offsets, bidirectional=both, num_buckets=buckets, max_distance=distance))
            for name, n, both in (("encoder", buckets // 2, True), ("decoder", buckets, False))
        }
        starts = {name: bucket_starts(n, distance) for name, (n, _) in sides.items()}
    except ValueError as error:
        raise ConfigError(f"relative_attention_num_buckets, …_max_distance: {error}") from None
    shared = "each layer has its own table" if model_type == "umt5" else "the first layer's table serves all layers"
    facts = [
        ("Bias", f"each head adds a learned number to its logits, by bucket of key − query; {shared}"),
        ("Table", f"{buckets} buckets × {heads} heads, in encoder and decoder each; none in cross-attention"),
        ("Scaling", "logits are not divided by √head_dim"),
    ]
    for name, (n, _) in sides.items():
        side = f"{n} for each direction" if name == "encoder" else f"{n}, all for the past"
        facts.append((name.capitalize(), f"{side}; they start at distances {_list(starts[name])}"))
    values: dict[str, Any] = {"offsets": list(OFFSETS)}
    values |= {f"{name}_buckets": found.tolist() for name, (_, found) in sides.items()}
    return Layers("t5", facts=tuple(facts), values=values)


def _mpnet(config: Fields, family: Family, model_type: str, context: int | None, warn: Warn) -> Layers:
    buckets = config.integer("relative_attention_num_buckets", 4, MOST) or 32
    table = _learned(config, family, model_type, context, warn)
    try:
        found = t5_bucket(np.asarray(OFFSETS), bidirectional=True, num_buckets=32, max_distance=128)
    except ValueError as error:
        raise ConfigError(f"relative_attention_num_buckets: {error}") from None
    if buckets != 32:
        warn(f"relative_attention_num_buckets {buckets} sets the rows of the table; the code's buckets are always 32.")
    bias = ("Bias", "besides, a learned number by T5's 32 buckets of key − query, one table for all layers")
    return Layers("mpnet", facts=(*table.facts, bias),
                  values=table.values | {"offsets": list(OFFSETS), "buckets": found.tolist()})  # fmt: skip


def _deberta(config: Fields, family: Family, model_type: str, context: int | None, warn: Warn) -> Layers:
    if not config.flag("relative_attention"):
        raise ConfigError("relative_attention is not true: a DeBERTa without relative positions is not described")
    given = config.get("pos_att_type")
    names = given.lower().split("|") if isinstance(given, str) else config.items("pos_att_type") or []
    terms = [str(name).strip() for name in names]
    if unknown := [t for t in terms if t not in ("c2p", "p2c")]:
        raise ConfigError(f"pos_att_type must hold c2p and p2c, got {show(unknown[0])}")
    reach = config.integer("max_relative_positions", -1, MOST) or 0
    if reach < 1:
        if context is None:
            raise config.missing("max_position_embeddings", "max_relative_positions is taken from it")
        reach = context
    buckets = config.integer("position_buckets", -1, MOST) if model_type == "deberta-v2" else None
    head_dim = read_head_dim(config, family, warn)
    offsets, span = np.asarray(OFFSETS), reach
    relative = -offsets
    if buckets and buckets > 0:
        span, offsets = buckets, np.unique(np.clip(offsets, 1 - reach, reach - 1))
        try:
            relative = deberta_bucket(-offsets, bucket_size=buckets, max_position=reach)
        except ValueError as error:
            raise ConfigError(f"position_buckets, max_relative_positions: {error}") from None
        warn(f"Distances beyond {reach - 1}: the last bucket stays here, transformers counts on and clips rows.")
    rows = np.clip(relative + span, 0, 2 * span - 1)
    scale = deberta_scale(head_dim, terms=len(terms)) if terms else head_dim**-0.5
    own = config.get("share_att_key") is not True if model_type == "deberta-v2" else True
    log = (
        f"single up to distance {buckets // 2}, then logarithmic up to {reach - 1}" if span != reach and buckets else ""
    )
    absolute = config.flag("position_biased_input") is not False
    facts = [
        ("Logits", f"content, and {' and '.join(terms) or 'nothing'}: vectors of relative positions meet contents"),
        ("Table", f"{2 * span} rows of hidden_size, one table for all layers; row {span} is the token itself"),
        ("Buckets", log or f"none: distances are clipped at {span}"),
        ("Projected", "by projections of its own" if own else "by the layer's own q and k projections"),
        ("Scaling", f"all logits times 1/√({1 + len(terms)} · {head_dim}) = {scale:.6g}"),
        ("Input", f"a learned vector for each of {context} positions is added" if absolute else "no position is added"),
    ]
    if "p2c" in terms:
        warn("p2c reads the row of query − key, as c2p does; the paper's equation 4 has key − query.")
    values = {"offsets": offsets.tolist(), "rows": rows.tolist(), "scale": scale}
    return Layers("deberta", facts=tuple(facts), values=values)


def _learned(config: Fields, family: Family, model_type: str, context: int | None, warn: Warn) -> Layers:
    kind = config.text("position_embedding_type")
    if kind not in (None, "absolute"):
        raise ConfigError(f'position_embedding_type "{kind}" is not described here, only "absolute"')
    if context is None:
        raise config.missing("max_position_embeddings", "the table has that many rows")
    first, rows, length = family.offset, context, context
    if model_type in PADDED:
        pad = config.integer("pad_token_id", 0, MOST)
        if pad is None:
            pad = 1
            warn("pad_token_id is absent: 1, transformers' default.")
        first, length = pad + 1, context - pad - 1
        warn(
            f"Positions are counted from pad_token_id + 1 = {first}, over tokens that are no padding: "
            f"{context} rows hold {length} tokens."
        )
    elif model_type == "mpnet":
        length = context - first
        warn(f"Positions are counted from {first}: {context} rows hold {length} tokens.")
    elif first:
        rows = context + first
        warn(f"The table has {first} rows more than max_position_embeddings; token 0 takes row {first}.")
    if length < 1:
        raise ConfigError(f"max_position_embeddings {context} leaves no row after the first {first}")
    if model_type == "mpt":
        warn("attn_config.alibi is false: a learned table in the authors' code; transformers 5.24 has ALiBi anyway.")
    facts = (
        ("Input", "a learned vector for each position is added to the token's"),
        ("Table", f"{rows:,} rows; position 0 takes row {first}, the last is position {length - 1:,}"),
        ("Longer", f"no text of more than {length:,} tokens: there is no row for it"),
    )
    return Layers("learned", facts=facts, values={"table_rows": rows, "first_row": first, "longest": length})


def _sinusoidal(config: Fields, family: Family, model_type: str, context: int | None, warn: Warn) -> Layers:
    width = config.integer("hidden_size", 2, MOST)
    if width is None:
        raise config.missing("hidden_size", "the waves depend on it")
    layout = "interleaved" if model_type == "distilbert" else "concatenated"
    row = sinusoidal(np.asarray(1), width, layout=layout)  # type: ignore[arg-type]
    where = "sines in even channels, cosines in odd ones" if layout == "interleaved" else "all sines, then all cosines"
    facts = (
        ("Input", "a fixed vector of sines and cosines is added to the token's"),
        ("Channels", f"{width}: {where}; the paper alternates them"),
        ("Position 1", f"{_few(row)}"),
    )
    return Layers("sinusoidal", facts=facts, values={"row_of_position_1": row.tolist()})


def _transformer_xl(config: Fields, family: Family, model_type: str, context: int | None, warn: Warn) -> Layers:
    clamp = config.integer("clamp_len", -1) or -1
    facts = (
        ("Logits", "Transformer-XL: sines of query − key, projected in each layer, meet queries; two learned vectors"),
        ("Distance", f"clipped at {clamp:,}" if clamp > 0 else "not clipped: any length"),
    )
    return Layers("transformer_xl", facts=facts)


def _none(config: Fields, family: Family, model_type: str, context: int | None, warn: Warn) -> Layers:
    return Layers("none", facts=(("Order", "comes from the recurrence: there is no attention to tell positions to"),))


def _few(values: Any, form: str = ".4g") -> str:
    texts = [f"{v:{form}}" for v in np.asarray(values).tolist()]
    return ", ".join(texts if len(texts) <= 6 else [*texts[:4], "…", texts[-1]])


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values if len(values) <= 32 else [*values[:16], "…", values[-1]]))


_DESCRIBE = {
    "alibi": _alibi, "t5": _t5, "mpnet": _mpnet, "deberta": _deberta, "learned": _learned,
    "sinusoidal": _sinusoidal, "transformer_xl": _transformer_xl, "none": _none,
}  # fmt: skip
