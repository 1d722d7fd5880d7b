"""What :func:`~posenc_ref.configs.model.read_config` found, in words, as JSON, as a figure."""

import math
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np

from posenc_ref.checks import Array
from posenc_ref.configs.model import Layers, Model
from posenc_ref.configs.rope import TEST_POSITION, Frequencies, Rotary

WIDTH, LABEL = 80, 13
TITLES = {
    "rope": "RoPE: queries and keys turn with their positions, values do not",
    "none": "none: these layers are told nothing about position",
    "alibi": "ALiBi: a penalty on the logits that grows with distance",
    "t5": "T5's bias: a learned number on the logits, by bucket of distance",
    "mpnet": "a learned table in the input, and T5's bias on the logits",
    "deberta": "DeBERTa: content meets relative position in the logits",
    "learned": "a learned table, added to the input once",
    "sinusoidal": "sines and cosines, added to the input once",
    "transformer_xl": "Transformer-XL: content meets relative position in the logits",
}
LAYOUTS = {
    "half": "half: channel g turns with channel g + {pairs}",
    "interleaved": "interleaved: channel 2g turns with channel 2g + 1",
}


def as_text(model: Model) -> str:
    """Return the report in plain words, at most 80 columns wide.

    >>> from posenc_ref.configs import read_config
    >>> print(as_text(read_config('{"model_type": "mamba", "n_layer": 2}')))
    Mamba (model_type mamba), 2 layers
    ==================================
    Encoding     none: these layers are told nothing about position
    Order        comes from the recurrence: there is no attention to tell positions
                 to
    """
    count = f", {model.num_layers} layer{'s' if model.num_layers != 1 else ''}" if model.num_layers else ""
    title = f"{model.family.title} (model_type {model.model_type}){count}"
    lines = [title, "=" * len(title)]
    if model.context:
        lines += _row("Context", f"{model.context:,} tokens")
    for i, group in enumerate(model.layers):
        if len(model.layers) > 1:
            lines += ["", _heading(group, model.num_layers or 0)]
        first = next((g for g in model.layers[:i] if g.rotary is not None and g.rotary is group.rotary), None)
        lines += _group_rows(model, group, first)
    for note in model.family.notes:
        lines += ["", *textwrap.wrap(note, WIDTH)]
    if model.warnings:
        lines += ["", "Watch out"]
        for warning in model.warnings:
            lines += textwrap.wrap(warning, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=True)
    return "\n".join(lines)


def _row(label: str, text: str) -> list[str]:
    indent = " " * LABEL
    lines = textwrap.wrap(text, WIDTH, initial_indent=f"{label:<{LABEL}}", subsequent_indent=indent)
    return [line.replace("\u00a0", " ") for line in lines]


def _heading(group: Layers, count: int) -> str:
    numbers = group.numbers or tuple(range(count))
    name = group.layer_type.replace("_", " ")
    text = f"-- {name}: {len(numbers)} of {count} layers, {_ranges(numbers)} "
    return text + "-" * (WIDTH - len(text))


def _ranges(numbers: tuple[int, ...]) -> str:
    """Layers in few words, counted from 0: ``0–2, 4–6, …, 28–30``.

    >>> _ranges((0, 1, 2, 4)), _ranges(tuple(range(0, 40, 2)))
    ('0–2, 4', '0, 2, 4, …, 38')
    """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in runs]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:3], "…", texts[-1]])


def _group_rows(model: Model, group: Layers, first: Layers | None) -> list[str]:
    lines = _row("Encoding", TITLES[group.encoding])
    if group.layer_type != "full_attention":
        word = "Chunks" if group.layer_type == "chunked_attention" else "Window"
        size = f"{group.window:,} tokens" if group.window else "its size is not in the file"
        if model.model_type == "modernbert" and group.window:
            size += f", {group.window // 2:,} to each side"
        lines += _row(word, size)
    for label, text in group.facts:
        lines += _row(label, text)
    if first is not None:
        lines += _row("Rotation", f"as that of the layers with {first.layer_type.replace('_', ' ')}")
    elif group.rotary is not None:
        lines += _rotary_rows(group, group.rotary, model.context)
    if "offsets" in group.values:
        lines += ["", *_table(_bucket_table(group.values))]
    return lines


def _rotary_rows(group: Layers, rotary: Rotary, context: int | None) -> list[str]:
    pairs = rotary.rotary_dim // 2
    turning = 2 * int(np.count_nonzero(rotary.sets[0].inv_freq))
    still = rotary.head_dim - turning
    which = "all" if not still else turning if turning < rotary.rotary_dim else f"the first {turning}"
    lines = _row(
        "Head",
        f"{rotary.head_dim} channels, {which} of them turn: {turning // 2} pairs"
        + (f"; {still} pass through" if still else ""),
    )
    lines += _row("Pairs", LAYOUTS[rotary.layout].format(pairs=pairs))
    lines += _row("Base", f"{rotary.base:,.10g}")
    lines += _row("Scaling", _scaling(rotary))
    if rotary.sections:
        t, h, w = rotary.sections
        lines += _row("Sections", f"{t} pairs turn by time, {h} by height, {w} by width")
    length = rotary.original or context
    for found in rotary.sets:
        if found.when:
            lines += ["", f"Texts {found.when}:"]
        if found.attention_factor != 1:
            c = found.attention_factor
            lines += _row("cos and sin", f"times {c:.8g}, so logits of channels that turn times {c * c:.8g}")
        if rotary.logit_factor != 1:
            lines += _row("Softmax", f"its scale, 1/√head_dim of the whole head, times {rotary.logit_factor:.8g}")
        lines += _bands(rotary, found)
        lines += _turning(rotary, found, context, group.window)
        lines += ["", *_table(_pair_table(rotary, found, length)), ""]
        lines += _must_match(rotary, found)
    return lines


def _scaling(rotary: Rotary) -> str:
    if rotary.rope_type == "default":
        return "none"
    hidden = {"original_max_position", "short_factor", "long_factor", "ramp"}
    if rotary.settings.get("mscale_all_dim") == 0:
        hidden |= {"mscale", "mscale_all_dim"}
    parts = [f"{k} {v:g}" if not isinstance(v, bool) else f"{k} {str(v).lower()}" for k, v in rotary.settings.items()
             if k not in hidden]  # fmt: skip
    if rotary.original:
        parts.append(f"trained length {rotary.original:,}")
    return ", ".join([rotary.rope_type, *parts])


def divided_by(rotary: Rotary, found: Frequencies) -> Array:
    """Return by how much each frequency is smaller than that of plain RoPE; inf where a pair stands still."""
    with np.errstate(divide="ignore"):
        return rotary.plain / found.inv_freq


def _bands(rotary: Rotary, found: Frequencies) -> list[str]:
    if rotary.rope_type == "default":
        return []
    by = divided_by(rotary, found)
    kept, still = int(np.sum(np.abs(by - 1) < 1e-6)), int(np.sum(np.isinf(by)))
    factor = float(rotary.settings.get("factor", 1.0))
    full = int(np.sum(np.abs(by / factor - 1) < 1e-6)) if factor != 1 else 0
    mixed = by[(np.abs(by - 1) >= 1e-6) & (np.abs(by / factor - 1) >= 1e-6) & np.isfinite(by)]
    parts = [f"{kept} pairs keep their frequency" if kept > 1 else "1 pair keeps its frequency"] if kept else []
    if mixed.size:
        parts.append(f"{mixed.size} are divided by {mixed.min():.4g} to {mixed.max():.4g}")
    if full:
        parts.append(f"{full} by the whole factor {factor:g}")
    if still:
        parts.append(f"{still} stand still")
    return _row("Bands", ", ".join(parts))


def _turning(rotary: Rotary, found: Frequencies, context: int | None, window: int | None) -> list[str]:
    """How many pairs make less than one turn: in training, as far as its length is known, and within reach."""
    parts = []
    if rotary.original:
        parts.append(f"{_slow(rotary.plain, rotary.original)} of {len(rotary.plain)} pairs in training")
    if reach := min((n for n in (found.longest or context, window) if n), default=None):
        where = f"{reach:,} tokens" if reach != window else f"the {reach:,} tokens in reach"
        parts.append(f"{_slow(found.inv_freq, reach)} of {len(rotary.plain)} pairs in {where}")
    return _row("No full turn", "; ".join(parts)) if parts else []


def _slow(inv_freq: Array, tokens: int) -> int:
    return int(np.sum(tokens * inv_freq < 2 * math.pi))


def _chosen(pairs: int) -> list[int]:
    """At most eight pairs that show the whole: evenly spread, with first and last."""
    return sorted({round(i * (pairs - 1) / 7) for i in range(8)})


def _pair_table(rotary: Rotary, found: Frequencies, length: int | None) -> list[list[str]]:
    by = divided_by(rotary, found)
    head = ["pair", "divided by", "wavelength in tokens", f"turns in {length:,}" if length else "turns in 1,000"]
    rows = [head]
    for g in _chosen(len(found.inv_freq)):
        w = float(found.inv_freq[g])
        wave = 2 * math.pi / w if w else math.inf
        rows.append(
            [
                str(g),
                f"{by[g]:.4g}" if w else "–",
                f"{wave:,.1f}" if wave < 1e12 else f"{wave:.3g}" if w else "stands still",
                _number((length or 1000) * w / (2 * math.pi)),
            ]
        )
    return rows


def _number(x: float) -> str:
    return f"{x:,.0f}" if 100 <= x < 1e12 else f"{x:.3g}"


def _bucket_table(values: dict[str, Any]) -> list[list[str]]:
    names = [n for n in values if n in ("encoder_buckets", "decoder_buckets", "buckets", "rows")]
    head = ["key − query", *(n.replace("_", " ").replace("rows", "row") for n in names)]
    columns = [values["offsets"], *(values[n] for n in names)]
    return [head, *([f"{v}" for v in row] for row in zip(*columns, strict=True))]


def _table(rows: list[list[str]]) -> Iterable[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ("   ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows)


def _must_match(rotary: Rotary, found: Frequencies) -> list[str]:
    w = found.inv_freq
    ends = [0, 1, 2, len(w) - 1] if len(w) > 3 else list(range(len(w)))
    lines = ["A port must match"]
    lines += _row("inv_freq", ", ".join(f"[{i}]\u00a0{w[i]:.8g}" for i in ends))
    _, y = rotary.test_vector(found)
    d, r = rotary.head_dim, rotary.rotary_dim
    shown = sorted({0, 1, r // 2 - 1, r // 2, r - 2, r - 1, d - 1})
    lines += _row("test vector", f"x[j] = (j + 1)/{d} at position {TEST_POSITION} becomes")
    cells = [f"[{j}]\u00a0{y[j]:.5f}" for j in shown]
    return lines + _row("", ", ".join(cells))


# -- JSON and figure -----------------------------------------------------------------------------------------------


def as_json(model: Model) -> dict[str, Any]:
    """Return the report as an object for :func:`json.dumps`, with all frequencies and the whole test vector.

    >>> from posenc_ref.configs import read_config
    >>> as_json(read_config('{"model_type": "mamba"}'))["layers"][0]["encoding"]
    'none'
    """
    return {
        "model_type": model.model_type,
        "family": model.family.title,
        "num_layers": model.num_layers,
        "context": model.context,
        "layers": [_group_json(group, model.num_layers) for group in model.layers],
        "notes": list(model.family.notes),
        "warnings": list(model.warnings),
    }


def _group_json(group: Layers, count: int | None) -> dict[str, Any]:
    numbers = group.numbers if group.numbers is not None else range(count or 0)
    found: dict[str, Any] = {
        "encoding": group.encoding,
        "layer_type": group.layer_type,
        "numbers": list(numbers),
        "window": group.window,
        **group.values,
    }
    if group.rotary is not None:
        r = group.rotary
        found |= {
            "head_dim": r.head_dim,
            "rotary_dim": r.rotary_dim,
            "layout": r.layout,
            "base": r.base,
            "rope_type": r.rope_type,
            "settings": r.settings,
            "original_max_position": r.original,
            "logit_factor": r.logit_factor,
            "sections": r.sections and list(r.sections),
            "frequencies": [_set_json(r, s) for s in r.sets],
        }
    return found


def _set_json(rotary: Rotary, found: Frequencies) -> dict[str, Any]:
    x, y = rotary.test_vector(found)
    by = divided_by(rotary, found)
    return {
        "when": found.when or "always",
        "inv_freq": found.inv_freq.tolist(),
        "divided_by": [float(v) if math.isfinite(v) else None for v in by],
        "attention_factor": found.attention_factor,
        "test_vector": {"position": TEST_POSITION, "input": x.tolist(), "output": y.tolist()},
    }


def plot(model: Model, path: str) -> None:
    """Draw what there is to see, with matplotlib: wavelengths against the context, or slopes, or buckets."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.6), dpi=110, constrained_layout=True)
    ax = figure.subplots()
    groups = [g for g in model.layers if g.rotary is not None or "slopes" in g.values or "offsets" in g.values]
    if not groups:
        title = TITLES[model.layers[0].encoding]
        raise ValueError(f"--plot: {model.family.title} has no curve to draw; its encoding is {title}")
    if groups[0].rotary is not None:
        _plot_waves(ax, model, groups)
    elif "slopes" in groups[0].values:
        distance = np.arange(0, 65)
        for slope in groups[0].values.get("slopes_after_scaling", groups[0].values["slopes"]):
            ax.plot(distance, -slope * distance, lw=1)
        ax.set(xlabel="distance to the key in tokens", ylabel="bias on the logit, one line a head")
    else:
        values = groups[0].values
        for name in ("encoder_buckets", "decoder_buckets", "buckets", "rows"):
            if name in values:
                ax.plot(values["offsets"], values[name], "o", ms=4, label=name.replace("_", " "))
        ax.set(xlabel="key − query in tokens", ylabel="row of the learned table", xscale="symlog")
        ax.legend(frameon=False)
    ax.set_title(f"{model.family.title}", loc="left", fontsize=11)
    figure.savefig(path, metadata={"Software": None} if path.lower().endswith(".png") else None)


def _plot_waves(ax: Any, model: Model, groups: list[Layers]) -> None:
    seen: list[Rotary] = []
    for group in groups:
        r = group.rotary
        if r is None or any(r is s for s in seen):
            continue
        seen.append(r)
        name = group.layer_type.replace("_", " ") if len(groups) > 1 else "as configured"
        g = np.arange(len(r.plain))
        if r.rope_type != "default":
            ax.plot(g, 2 * np.pi / r.plain, ":", color="#777777", lw=1.5, label="without scaling")
        for found in r.sets:
            turning = found.inv_freq > 0
            wave = 2 * np.pi / found.inv_freq[turning]
            ax.plot(g[turning], wave, lw=1.8, label=found.when or name)
    for length, style in ((seen[0].original, "--"), (model.context, "-")):
        if length:
            ax.axhline(length, color="#bbbbbb", lw=1, ls=style)
            ax.text(0, length, f"{length:,} tokens", va="bottom", fontsize=9, color="#666666")
    ax.set(yscale="log", xlabel="number of the pair", ylabel="wavelength in tokens")
    ax.legend(frameon=False, fontsize=9, loc="lower right")
