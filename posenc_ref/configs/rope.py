"""The rotary entries of a configuration, in the old spelling and the new, turned into frequencies.

Values are those that the family's code in ``transformers`` computes; where that is not what the file or the paper
means, a warning says so.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc_ref.checks import Array
from posenc_ref.configs.families import MROPE, Family
from posenc_ref.configs.reading import MOST, ConfigError, Fields, show
from posenc_ref.rotary.layouts import Layout
from posenc_ref.rotary.rope import cos_sin, inv_freq, rotate
from posenc_ref.rotary.scaled import (
    PI,
    DynamicNTK,
    Llama3,
    LongRoPE,
    Proportional,
    Scaling,
    YaRN,
)
from posenc_ref.rotary.scaling import yarn_mscale

LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
KNOWN = {
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
    "beta_slow", "short_factor", "long_factor", "low_freq_factor", "high_freq_factor", "mscale", "mscale_all_dim",
    "truncate", "mrope_section", "partial_rotary_factor",
}  # fmt: skip
TEST_POSITION = 100
Warn = Callable[[str], None]


@dataclass(frozen=True)
class Frequencies:
    """Frequencies ``(pairs,)`` and attention factor, with the lengths for which they hold."""

    when: str
    inv_freq: Array
    attention_factor: float
    longest: int | None = None
    """Tokens of the longest text with this set, where the file's context does not tell."""


@dataclass(frozen=True)
class Rotary:
    """How the layers of one kind rotate."""

    head_dim: int
    rotary_dim: int
    layout: Layout
    base: float
    rope_type: str
    settings: dict[str, Any]
    """Arguments of the scaling, by the names of :mod:`posenc_ref.rotary.scaling`."""
    original: int | None
    """Trained length in tokens, if the file has it or the scaling needs it."""
    plain: Array
    sets: tuple[Frequencies, ...]
    """One set, or two where the frequencies depend on the length of the text."""
    logit_factor: float = 1.0
    sections: tuple[int, ...] | None = None

    def test_vector(self, frequencies: Frequencies) -> tuple[Array, Array]:
        """Return x_j = (j + 1)/head_dim and what it becomes at position ``TEST_POSITION``, each ``(head_dim,)``."""
        x = np.arange(1, self.head_dim + 1) / self.head_dim
        cos, sin = cos_sin(np.asarray(TEST_POSITION), frequencies.inv_freq)
        c = frequencies.attention_factor
        return x, rotate(x, cos * c, sin * c, layout=self.layout)


def rope_entries(config: Fields, family: Family, warn: Warn) -> dict[str, Fields]:
    """Return the RoPE entries of each layer type that has its own, or one set under the name ``""``."""
    if _fixed(config):
        return {"": Fields({}, "rope_parameters")}
    old, new = config.table("rope_scaling"), config.table("rope_parameters")
    if old and new:
        same = old.content == new.content
        warn(
            "rope_scaling and rope_parameters are both there"
            + (", and equal." if same else ", and differ: transformers reads rope_scaling. Other programs may not.")
        )
    chosen = old or new or Fields({}, "rope_parameters")
    nested = [name for name in chosen.content if name in LAYER_TYPES]
    if not nested and family.local_base is None:
        if not chosen.content and family.scaling:
            warn("No scaling in the file: transformers puts in that of the published models.")
            chosen = Fields(family.scaling, "rope_parameters (transformers' default)")
        return {"": chosen}
    if family.local_base is None:
        raise ConfigError(f"{chosen.path} has entries for {nested[0]}, but this family has one set for all layers")
    if chosen is new and not nested:
        raise ConfigError(f"{new.path} must have one entry for each layer type: full_attention, sliding_attention")
    if not nested:  # the old spelling scales the layers with full attention, and in some families all
        local = chosen.content if family.local_scaled else {}
        return {
            "full_attention": Fields(chosen.content, chosen.path),
            "sliding_attention": Fields(local, chosen.path),
        }
    for name in chosen.content:
        if name not in LAYER_TYPES:
            warn(f"{chosen.path}.{name} stands beside entries for layer types: ignored.")
    return {
        name: chosen.table(name) or Fields({}, chosen.place(name)) for name in ("full_attention", "sliding_attention")
    }


def read_rotary(
    config: Fields, family: Family, entry: Fields, layer_type: str, context: int | None, warn: Warn
) -> Rotary:
    """Return the rotation of the layers of one type from their entries."""
    kind = _rope_type(config, entry, family, warn)
    base = _base(config, family, entry, layer_type, warn)
    head_dim = read_head_dim(config, family, warn)
    rotary_dim = _rotary_dim(config, family, entry, kind, head_dim, warn)
    reader = _READERS[kind]
    original, scaling = reader(config, family, entry, rotary_dim, context, warn) if reader else (None, None)
    factor = getattr(scaling, "factor", 1.0)
    if factor == 1 and scaling is not None and kind != "proportional":
        warn(f"Factor 1: {kind} changes no frequency{' up to the trained length' if kind == 'longrope' else ''}.")
    if scaling is not None and base > 10000 and factor > 1:
        alone = (base / 10000) ** ((rotary_dim - 2) / rotary_dim)
        warn(
            f"Scaling on top of a raised base: {base:,.10g} alone acts like NTK-aware scaling of base 10,000 by "
            f"{alone:,.3g}. A port must apply both."
        )
    plain = inv_freq(rotary_dim, base=base)
    sections = _sections(entry, rotary_dim)
    _unread(entry, kind, warn)
    try:
        sets = _sets(scaling, kind, rotary_dim, base, original, plain)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{entry.path}: {error}") from None
    logit = 1.0
    if isinstance(scaling, YaRN) and "qk_rope_head_dim" in family.names.get("head_dim", ()):
        logit = _all_dim(entry, scaling.factor) ** 2
    settings = {} if scaling is None else {k: v for k, v in vars(scaling).items() if v is not None}
    return Rotary(
        head_dim, rotary_dim, _layout(config, family), base, kind, settings, original, plain, sets, logit, sections
    )  # fmt: skip


def read_head_dim(config: Fields, family: Family, warn: Warn) -> int:
    """Return the channels of a head: the field, the family's default, or hidden_size / num_attention_heads."""
    given = config.integer("head_dim", 1, MOST)
    width, heads = config.integer("hidden_size", 1, MOST), config.integer("num_attention_heads", 1, MOST)
    quotient = width // heads if width and heads and width % heads == 0 else None
    if given is not None:
        return given
    if family.head_dim is not None:
        if quotient != family.head_dim and "head_dim" not in family.names:
            warn(f"{config.name('head_dim')} is absent: transformers takes {family.head_dim} for this family.")
        return family.head_dim
    if width is None or heads is None:
        names = " and ".join(config.name(n) for n in ("hidden_size", "num_attention_heads") if not config.has(n))
        raise ConfigError(f"head_dim cannot be derived: {names} missing, and no {config.name('head_dim')}")
    if quotient is None:
        raise ConfigError(
            f"head_dim cannot be derived: {config.name('hidden_size')} {width} is no multiple of "
            f"{config.name('num_attention_heads')} {heads}"
        )
    return quotient


def _layout(config: Fields, family: Family) -> Layout:
    if config.content.get("model_type") == "deepseek_v3" and config.flag("rope_interleave") is False:
        return "half"
    assert family.layout is not None
    return family.layout


def _rope_type(config: Fields, entry: Fields, family: Family, warn: Warn) -> str:
    new, old = entry.text("rope_type"), entry.text("type")
    if new and old and new != old:
        warn(f'rope_type "{new}" and the older type "{old}" disagree: transformers reads rope_type.')
    elif old and not new:
        warn(f'type "{old}" is the older spelling of rope_type; some programs read only one of them.')
    name = new or old or "default"
    if name == "default" and not (new or old) and (scales := [n for n in entry.content if n in KNOWN - _NOT_SCALING]):
        warn(f"{entry.place('rope_type')} is absent: read as default, so {scales[0]} has no effect.")
    if family.original and name in ("su", "yarn"):
        warn(f'"{name}" is an older name of longrope in this family.')
        if name == "su" and not entry.has("original_max_position_embeddings"):
            warn(f"transformers 5.24 loads such a file only with {entry.place('original_max_position_embeddings')}.")
        return "longrope"
    if config.content.get("model_type") in MROPE and name in ("mrope", "axial"):
        return "default"
    if name not in ROPE_TYPES:
        raise ConfigError(f"{entry.place('rope_type')} must be one of {', '.join(ROPE_TYPES)}, got {show(name)}")
    if config.content.get("model_type") == "phi3" and name not in ("default", "longrope"):
        raise ConfigError(f"{entry.place('rope_type')} must be default or longrope in this family, got {show(name)}")
    return name


_NOT_SCALING = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section"}


def _base(config: Fields, family: Family, entry: Fields, layer_type: str, warn: Warn) -> float:
    if _fixed(config):
        return family.base
    inner = entry.number("rope_theta", 1, above=True)
    if layer_type == "sliding_attention" and family.local_base:
        name, default = family.local_base
        outer = config.number(name, 1, above=True) if name else None
    else:
        name, default = config.name("rope_theta"), family.base
        outer = config.number("rope_theta", 1, above=True)
    if inner is not None and outer is not None and inner != outer:
        warn(f"{entry.place('rope_theta')} {inner:,.10g} and {name} {outer:,.10g} disagree: the first counts.")
    base = inner if inner is not None else outer
    if base is None:
        base = default
        if name in config.content:
            warn(f"{config.place(name)} is null, which is not absent: transformers 5.24 fails on it.")
        whole = config.number("rope_theta", 1, above=True)
        if layer_type == "sliding_attention" and not name and whole is not None:
            if whole != default:
                warn(f"rope_theta {whole:g} is not read for sliding layers: transformers takes {default:g} there.")
        else:
            warn(f"{name or entry.place('rope_theta')} is absent: base {default:,.10g}, transformers' default.")
    return base


def _fixed(config: Fields) -> bool:
    """Does the model's code know one base, and no scaling, whatever the file says?"""
    return config.content.get("model_type") in ("gptj", "codegen", "chatglm")


def _rotary_dim(config: Fields, family: Family, entry: Fields, kind: str, head_dim: int, warn: Warn) -> int:
    if config.content.get("model_type") in ("gptj", "codegen"):
        dim = config.integer("rotary_dim", 2, MOST)
        if dim is None:
            raise config.missing("rotary_dim", "how many channels of a head turn")
        if dim > head_dim:
            raise ConfigError(f"rotary_dim must be at most the head's {head_dim} channels, got {dim}")
    else:
        inner, outer = (f.number("partial_rotary_factor", 0, above=True) for f in (entry, config))
        if inner is not None and outer is not None and inner != outer:
            warn(
                f"{entry.place('partial_rotary_factor')} {inner:g} and {config.name('partial_rotary_factor')} "
                f"{outer:g} disagree: transformers reads the first."
            )
        share = inner if inner is not None else outer
        if share is not None and share > 1:
            raise ConfigError(f"partial_rotary_factor must be at most 1, got {share:g}")
        if kind == "proportional":
            share = 1.0  # it stays in the exponent and in the pairing
        elif family.partial is None and share not in (None, 1.0):
            warn(
                f"partial_rotary_factor {share:g} is ignored: the code of this family turns the whole head"
                + (", and fails where scaling has read the field." if kind != "default" else ".")
            )
            share = 1.0
        dim = int(head_dim * (share if share is not None else family.partial or 1.0))
    if dim < 2 or dim % 2:
        raise ConfigError(f"the channels that turn must be an even number, got {dim} of head_dim {head_dim}")
    return dim


def _sections(entry: Fields, rotary_dim: int) -> tuple[int, ...] | None:
    values = entry.items("mrope_section", 3)
    if values is None:
        return None
    if any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in values):
        raise ConfigError(f"{entry.place('mrope_section')} must hold whole numbers >= 0")
    if sum(values) != rotary_dim // 2:
        raise ConfigError(f"{entry.place('mrope_section')} must add up to {rotary_dim // 2} pairs, got {sum(values)}")
    return tuple(values)


def _unread(entry: Fields, kind: str, warn: Warn) -> None:
    for name in entry.unread():
        if name in KNOWN:
            warn(f'{entry.place(name)} plays no part in rope_type "{kind}": ignored.')
        else:
            warn(f"Unknown field {entry.place(name)}: ignored.")


# -- one reader for each rope_type: trained length, and the scaling of posenc_ref.rotary ---------------------------

Read = tuple[int | None, Scaling | None]


def _need(entry: Fields, name: str, minimum: float, *, above: bool = False) -> float:
    value = entry.number(name, minimum, above=above)
    if value is None:
        raise entry.missing(name, "this rope_type cannot do without it")
    return value


def _length(config: Fields, family: Family, entry: Fields, context: int | None, warn: Warn) -> int:
    inner = entry.integer("original_max_position_embeddings")
    # With entries for layer types, transformers looks into these only.
    outer = None if family.local_base else config.integer("original_max_position_embeddings") or family.original
    if inner and outer and inner != outer:
        warn(
            f"{entry.place('original_max_position_embeddings')} is {inner:,}, but {outer:,} counts: "
            "transformers reads it from the top of the file, or takes its default."
        )
    if found := outer or inner:
        return found
    if context is None:
        raise entry.missing("original_max_position_embeddings", "the trained length is unknown")
    warn(
        f"{entry.place('original_max_position_embeddings')} is absent: transformers takes "
        f"max_position_embeddings, {context:,}, which may be the length after scaling."
    )
    return context


def _compare(family: Family, factor: float, original: int, context: int | None, warn: Warn) -> None:
    if context is None or math.isclose(factor * original, context, rel_tol=1e-6):
        return
    text = f"factor {factor:g} × trained length {original:,} = {factor * original:,.0f}, but the file's context is "
    text += f"{context:,}. The factor is what counts."
    warn(
        text
        + (" (It is so in published files of Llama 3 and 4.)" if family.title.startswith(("LLaMA", "Llama")) else "")
    )


def _linear(config: Fields, family: Family, entry: Fields, dim: int, context: int | None, warn: Warn) -> Read:
    return None, PI(_need(entry, "factor", 1))


def _dynamic(config: Fields, family: Family, entry: Fields, dim: int, context: int | None, warn: Warn) -> Read:
    if context is None:
        raise config.missing("max_position_embeddings", "dynamic scaling starts there")
    warn(
        f"dynamic: beyond {context:,} tokens all angles change with the length, those of cached keys too. "
        "Cache keys before they are turned."
    )
    return context, DynamicNTK(_need(entry, "factor", 1), context)


def _yarn(config: Fields, family: Family, entry: Fields, dim: int, context: int | None, warn: Warn) -> Read:
    original = _length(config, family, entry, context, warn)
    if "factor" in entry.content and entry.get("factor") is None and context:
        factor = max(1.0, context / original)
        warn(f"{entry.place('factor')} is null: {factor:g}, the context over the trained length.")
    else:
        factor = _need(entry, "factor", 1)
        _compare(family, factor, original, context, warn)
    mscale, all_dim = (entry.number(name, 0) or 0.0 for name in ("mscale", "mscale_all_dim"))
    if max(mscale, all_dim) > 1e6:
        raise ConfigError(
            f"{entry.place('mscale')} and mscale_all_dim must be at most 1e6, got {max(mscale, all_dim):g}"
        )
    given = entry.number("attention_factor", 0, above=True)
    if given is None and bool(mscale) != bool(all_dim):
        warn(
            f"Only one of mscale and mscale_all_dim is set: transformers ignores it in cos and sin and takes "
            f"{yarn_mscale(factor):.6g}; DeepSeek's code takes "
            f"{yarn_mscale(factor, mscale if entry.has('mscale') else 1.0) / yarn_mscale(factor, all_dim):.6g}."
        )
    both = bool(mscale and all_dim)
    truncate = entry.flag("truncate")
    if truncate is False and entry.path.endswith("_attention"):
        warn("truncate inside a layer type: transformers 5.24 looks for it one level higher and would round.")
    scaling = YaRN(
        factor, original, entry.number("beta_fast", 0) or 32.0, entry.number("beta_slow", 0) or 1.0, "dim",
        truncate is not False, mscale if both else 1.0, all_dim if both else 0.0, given,
    )  # fmt: skip
    return original, scaling


def _all_dim(entry: Fields, factor: float) -> float:
    return yarn_mscale(factor, entry.number("mscale_all_dim", 0) or 0.0)


def _longrope(config: Fields, family: Family, entry: Fields, dim: int, context: int | None, warn: Warn) -> Read:
    original = _length(config, family, entry, context, warn)
    short, long = (entry.numbers(name, dim // 2) for name in ("short_factor", "long_factor"))
    if short is None or long is None:
        raise entry.missing("long_factor" if short else "short_factor", f"longrope needs {dim // 2} numbers")
    factor = entry.number("factor", 1)
    if factor is None:
        if context is None:
            raise entry.missing("factor", "neither it nor max_position_embeddings is there")
        factor = max(1.0, context / original)
    else:
        _compare(family, factor, original, context, warn)
    warn(
        f"longrope: a text longer than {original:,} tokens takes the second set of frequencies for all its "
        "positions. Keys cached with the first set are then wrong."
    )
    return original, LongRoPE(short, long, factor, original, entry.number("attention_factor", 0, above=True))


def _llama3(config: Fields, family: Family, entry: Fields, dim: int, context: int | None, warn: Warn) -> Read:
    original, factor = _length(config, family, entry, context, warn), _need(entry, "factor", 1)
    low, high = (_need(entry, name, 0, above=True) for name in ("low_freq_factor", "high_freq_factor"))
    _compare(family, factor, original, context, warn)
    return original, Llama3(factor, original, low, high)


def _proportional(config: Fields, family: Family, entry: Fields, dim: int, context: int | None, warn: Warn) -> Read:
    shares = (fields.number("partial_rotary_factor", 0, above=True) for fields in (entry, config))
    share = next(filter(None, shares), 1.0)
    rotated = 2 * int(share * dim // 2)
    if rotated < 2:
        raise ConfigError(f"partial_rotary_factor must leave a pair of {dim} channels that turns, got {share:g}")
    return None, Proportional(rotated, entry.number("factor", 1) or 1.0)


_READERS: dict[str, Callable[[Fields, Family, Fields, int, int | None, Warn], Read] | None] = {
    "default": None,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}


def _sets(
    scaling: Scaling | None, kind: str, dim: int, base: float, original: int | None, plain: Array
) -> tuple[Frequencies, ...]:
    if scaling is None:
        return (Frequencies("", plain, 1.0),)
    if not scaling.depends_on_length or original is None:
        return (Frequencies("", *scaling.inv_freq(dim, base)),)
    beyond = original + 1 if kind == "longrope" else math.ceil(original * max(scaling.factor, 2))  # type: ignore[attr-defined]
    after = f"over {original:,} tokens" if kind == "longrope" else f"at {beyond:,} tokens"
    return (
        Frequencies(f"up to {original:,} tokens", *scaling.inv_freq(dim, base, original), original),
        Frequencies(after, *scaling.inv_freq(dim, base, beyond), None if kind == "longrope" else beyond),
    )
