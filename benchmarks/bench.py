"""Times the package against what people use and against the memory's own speed; ``make bench`` prints the tables.

All forms of one work are timed in turn, ROUNDS times, in one process, and compared by their medians, so that a busy
machine slows all of them alike. A ratio of 1 is the first line of its table. Extra memory is the peak above what
was resident before, of one call. Results go to ``benchmarks/results.json``; ``python benchmarks/bench.py steps``
runs one work only and leaves the tables of the others as they are.
"""

import ctypes
import importlib.metadata
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from posenc_ref.bias import ALiBi
from posenc_ref.bias.modules import KerpleBias, T5Bias
from posenc_ref.content import (
    deberta_bias,
    deberta_bias_by_pair,
    shaw_bias,
    shaw_bias_by_pair,
    shaw_values,
    shaw_values_by_pair,
    transformer_xl_bias,
    transformer_xl_bias_by_pair,
    transformer_xl_bias_shifted,
)
from posenc_ref.fast import sdpa
from posenc_ref.files import write_whole
from posenc_ref.rotary import RoPE, cos_sin, inv_freq, rotate, rotate_

ROUNDS, STARTS = 20, 3
RESULTS = Path(__file__).with_name("results.json")
Forms = dict[str, Callable[[], Any]]


def extra_memory(call: Callable[[], Any]) -> float:
    """MiB at the peak of one call, above what was resident before (Linux; NaN elsewhere)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forget earlier peaks
        before = _resident("VmRSS")
        call()
        return (_resident("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return float("nan")


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def compare(
    title: str,
    forms: Forms,
    *,
    memory: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], Any] = lambda: None,
) -> dict[str, Any]:
    """Time the forms in turn; return and print the median of each as a ratio to the first.

    ``before`` is called ahead of each form, outside the measured time.
    """
    for call in forms.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in forms}
    for done in range(ROUNDS):
        for name, call in forms.items():
            before()
            start = clock()
            call()
            times[name].append(clock() - start)
        print(f"\r{title}: {done + 1}/{ROUNDS}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 100 + "\r", end="", file=sys.stderr)
    first, *_ = medians = {name: statistics.median(t) for name, t in times.items()}
    print(f"\n{title}   ({1000 * medians[first]:.3g} ms = 1)")
    rows = {}
    for name, median in medians.items():
        rows[name] = {"ratio": round(median / medians[first], 3)}
        if memory:
            rows[name]["extra_mib"] = round(extra_memory(forms[name]), 1)
        print(f"  {name:44} {rows[name]['ratio']:8.2f}" + (f" {rows[name]['extra_mib']:9.1f} MiB" if memory else ""))
    return {"title": title, "first_ms": round(1000 * medians[first], 3), "forms": rows}


def rotation(dtype: torch.dtype, length: int) -> dict[str, Any]:
    """Queries and keys of one layer, H = 32, D = 128; the tables are made before."""
    q, k = (torch.randn(1, 32, length, 128).to(dtype) for _ in range(2))
    cos, sin = cos_sin(torch.arange(length), inv_freq(128), dtype=torch.float32)

    def plain(layout: Any) -> Any:
        return rotate(q, cos, sin, layout=layout), rotate(k, cos, sin, layout=layout)

    there = torch.empty_like(q), torch.empty_like(k)
    forms: Forms = {
        "clone q and k": lambda: (q.clone(), k.clone()),
        "copy q and k to arrays made before": lambda: [a.copy_(b) for a, b in zip(there, (q, k), strict=True)],
    }
    for layout in ("half", "interleaved"):
        forms[f"ours, in place, {layout}"] = lambda f=layout: [rotate_(x, cos, sin, layout=f) for x in (q, k)]
        forms[f"ours, plain, {layout}"] = partial(plain, layout)
        forms[f"ours, compiled, {layout}"] = partial(torch.compile(plain, dynamic=False), layout)
    # in half precision the others' angles are too, which is another work, and slow: transformers stands for them
    forms |= peers(q, k, cos, sin, length, only_transformers=dtype != torch.float32)
    return compare(f"rotate q and k, {str(dtype)[6:]}, S = {length}", forms)


def peers(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, length: int, *, only_transformers: bool
) -> Forms:
    """The rotation of other packages, with their own tables made before where they allow it."""
    from rotary_embedding_torch import RotaryEmbedding
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama
    from x_transformers.x_transformers import RotaryEmbedding as XRotary
    from x_transformers.x_transformers import apply_rotary_pos_emb as x_rotate

    twice = [torch.cat([table, table], -1)[None].to(q.dtype) for table in (cos, sin)]
    forms: Forms = {"transformers (llama)": lambda: llama(q, k, *twice)}
    if only_transformers:
        return forms
    lucid = RotaryEmbedding(128, cache_max_seq_len=length)
    freqs, _ = XRotary(128)(torch.arange(length))
    forms |= {
        "rotary-embedding-torch": lambda: [lucid.rotate_queries_or_keys(x) for x in (q, k)],
        "x-transformers": lambda: [x_rotate(x, freqs) for x in (q, k)],
    }
    spec = importlib.util.find_spec("torchtune")  # optional: its package asks for torchao, the one file does not
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "modules" / "position_embeddings.py"
        one_file = importlib.util.spec_from_file_location("torchtune_rope", path)
        assert one_file is not None and one_file.loader is not None
        module = importlib.util.module_from_spec(one_file)
        one_file.loader.exec_module(module)
        tune = module.RotaryPositionalEmbeddings(128, max_seq_len=length)
        rows = [x.transpose(1, 2).contiguous() for x in (q, k)]  # it takes (batch, seq, heads, head_dim)
        forms["torchtune"] = lambda: [tune(x) for x in rows]
    return forms


def decoding() -> dict[str, Any]:
    """One new token of q and k, tables and all."""
    from rotary_embedding_torch import RotaryEmbedding
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    q, k = torch.randn(1, 32, 1, 128), torch.randn(1, 32, 1, 128)
    rope, omega = RoPE(128, layout="half"), torch.from_numpy(inv_freq(128))
    tables = LlamaRotaryEmbedding(LlamaConfig(hidden_size=4096, num_attention_heads=32, head_dim=128))
    lucid = RotaryEmbedding(128, cache_if_possible=False)

    def ours(p: torch.Tensor) -> Any:
        cos, sin = cos_sin(p, omega, dtype=torch.float32)
        return [rotate_(x, cos, sin, layout="half") for x in (q, k)]

    def llama(p: torch.Tensor) -> Any:
        return apply_rotary_pos_emb(q, k, *tables(q, p[None]))

    far, near = torch.tensor([100_000]), torch.tensor([10])
    forms: Forms = {
        "transformers, at 100,000": partial(llama, far),
        "transformers, at 10": partial(llama, near),
        "ours, at 100,000": partial(ours, far),
        "ours, at 10": partial(ours, near),
        "ours, RoPE.rotate, at 100,000": lambda: rope.rotate(q, k, q_positions=far, k_positions=far),
        "rotary-embedding-torch, at 100,000": lambda: [lucid.rotate_queries_or_keys(x, offset=100_000) for x in (q, k)],
    }
    return compare("decode one token", {name: partial(_many, call) for name, call in forms.items()})


def _many(call: Callable[[], Any]) -> None:
    for _ in range(50):  # a call takes less than the clock can tell
        call()


def step(length: int) -> dict[str, Any]:
    """One decoding step of attention behind ``length`` cached keys, without the layer's matrices.

    Ahead of each form a large array is read, as a model reads its weights: no form finds the keys in the processor's
    cache because the form before it left them there. A ratio is the median of STARTS comparisons, each in arrays of its
    own, as a buffer that lies badly in memory can slow one form throughout. Times are the processor's, since
    differences of a few per cent are asked for.
    """
    title, weights = f"one step behind {length} keys", torch.ones(2**24)  # 64 MiB
    with torch.no_grad():
        runs = [compare(title, step_forms(length), clock=time.process_time, before=weights.sum) for _ in range(STARTS)]
    rows = {}
    for name in runs[0]["forms"]:
        ratios = sorted(run["forms"][name]["ratio"] for run in runs)
        rows[name] = {"ratio": statistics.median(ratios), "range": [ratios[0], ratios[-1]]}
    return {"title": title, "first_ms": statistics.median(run["first_ms"] for run in runs), "forms": rows}


def step_forms(length: int) -> Forms:
    """Ways to write a new key and value into room made before, and to attend; H = 8, D = 128.

    RoPE is the usual few lines of PyTorch: the checks of our own would weigh more here than the rotation.
    """
    heads, head_dim, total = 8, 128, length + 1
    q, k, v = torch.randn(3, 1, heads, 1, head_dim)
    keys, values = torch.randn(2, 1, heads, total, head_dim)
    p = torch.arange(total)
    cos, sin = cos_sin(p, torch.from_numpy(inv_freq(head_dim)), dtype=torch.float32)
    here = cos[-1:], sin[-1:]
    slopes = 2.0 ** -torch.arange(1, heads + 1)[None, :, None, None]
    row = slopes * p  # (1, heads, 1, total)

    def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def attend(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        keys[:, :, -1:], values[:, :, -1:] = k, v
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)

    def all_turned() -> torch.Tensor:
        keys[:, :, -1:], values[:, :, -1:] = k, v
        return F.scaled_dot_product_attention(turned(q, *here), turned(keys, cos, sin), values)

    forms: Forms = {
        "no encoding": lambda: attend(q, k),
        "RoPE, query and new key turned": lambda: attend(turned(q, *here), turned(k, *here)),
        "ALiBi, row made before": lambda: attend(q, k, row),
        "ALiBi, row made anew": lambda: attend(q, k, slopes * torch.arange(total)),
    }
    if length <= 8192:
        forms["RoPE, all keys turned"] = all_turned
    if length <= 2048:
        text = torch.randn(1, heads, total, head_dim)
        forms["no cache, all queries"] = lambda: F.scaled_dot_product_attention(text, keys, values, is_causal=True)
    return forms


def biases(length: int) -> dict[str, Any]:
    """Causal attention with a bias, forward, H = 8, D = 128."""
    q, k, v = (torch.randn(1, 8, length, 128) for _ in range(3))
    p = torch.arange(length)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    alibi = ALiBi(8, causal=True)
    t5, kerple = T5Bias(8, bidirectional=False), KerpleBias(8, variant="log")

    def built(bias: Any) -> Any:
        mask = bias(p, p).masked_fill(future, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    prebuilt = alibi(p, p).masked_fill(future, -torch.inf)
    forms: Forms = {
        "causal SDPA, no bias": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "ALiBi, ours": lambda: sdpa(q, k, v, encoding=alibi, causal=True),
        "ALiBi, full bias made before": lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=prebuilt),
        "T5, ours": lambda: sdpa(q, k, v, encoding=t5, causal=True),
        "T5, full bias made each time": partial(built, t5),
        "KERPLE, ours": lambda: sdpa(q, k, v, encoding=kerple, causal=True),
    }
    with torch.no_grad():
        return compare(f"causal attention with a bias, S = {length}", forms, memory=True)


def contents(length: int) -> list[dict[str, Any]]:
    """Relative logits that depend on content, against the papers' form with a vector for every pair."""
    heads, head_dim = 8, 64
    q, k = torch.randn(1, heads, length, head_dim), torch.randn(1, heads, length, head_dim)
    p = torch.arange(length)
    shaw = torch.randn(65, head_dim)
    weights = torch.randn(1, heads, length, length).softmax(-1)
    xl: dict[str, Any] = {
        "u": torch.randn(heads, head_dim), "v": torch.randn(heads, head_dim),
        "w_r": torch.randn(heads, head_dim, heads * head_dim) / 22,
    }  # fmt: skip
    deberta: dict[str, Any] = {
        "keys": torch.randn(heads, 128, head_dim), "queries": torch.randn(heads, 128, head_dim),
        "p2c_index": "released",
    }  # fmt: skip
    works: dict[str, Forms] = {
        "Shaw, logits": {
            "a vector for every pair": lambda: shaw_bias_by_pair(q, p, p, shaw),
            "ours": lambda: shaw_bias(q, p, p, shaw),
        },
        "Shaw, values": {
            "a vector for every pair": lambda: shaw_values_by_pair(weights, p, p, shaw),
            "ours": lambda: shaw_values(weights, p, p, shaw),
        },
        "Transformer-XL, logits": {
            "a vector for every pair": lambda: transformer_xl_bias_by_pair(q, k, p, p, **xl),
            "ours": lambda: transformer_xl_bias(q, k, p, p, **xl),
            "ours, shifted": lambda: transformer_xl_bias_shifted(q, k, causal=True, **xl),
        },
        "DeBERTa, logits": {
            "a vector for every pair": lambda: deberta_bias_by_pair(q, k, p, p, **deberta),
            "ours": lambda: deberta_bias(q, k, p, p, **deberta),
        },
    }
    return [compare(f"{name}, S = {length}", forms, memory=True) for name, forms in works.items()]


def in_numpy(length: int) -> dict[str, Any]:
    """NumPy's rotation against copying, H = 32, D = 128."""
    x = np.random.default_rng(0).standard_normal((1, 32, length, 128), dtype=np.float32)
    cos, sin = (table.astype(np.float32) for table in cos_sin(np.arange(length), inv_freq(128)))
    forms: Forms = {"copy": x.copy}
    for layout in ("half", "interleaved"):
        forms[f"in place, {layout}"] = lambda f=layout: rotate_(x, cos, sin, layout=f)
        forms[f"plain, {layout}"] = lambda f=layout: rotate(x, cos, sin, layout=f)
    return compare(f"rotate in NumPy, float32, S = {length}", forms)


WORKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "rotation": lambda: [rotation(dtype, s) for dtype in (torch.float32, torch.bfloat16) for s in (2048, 8192)],
    "decoding": lambda: [decoding()],
    "biases": lambda: [biases(4096)],
    "contents": lambda: contents(256),
    "in_numpy": lambda: [in_numpy(2048)],
    "steps": lambda: [step(n) for n in (512, 2048, 8192, 32768)],
}


def main(*names: str) -> None:
    """Run the works called so, or all, and write their tables in the place of earlier ones with the same title."""
    if odd := [name for name in names if name not in WORKS]:
        raise SystemExit(f"works are {', '.join(WORKS)}, got {odd[0]!r}")
    packages = ("numpy", "torch", "transformers", "rotary-embedding-torch", "x-transformers")
    result: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "rounds": ROUNDS,
    }
    earlier = json.loads(RESULTS.read_text()) if names else {}
    tables = {table["title"]: table for table in earlier.pop("tables", [])}
    if names and earlier != result:
        raise SystemExit(f"the earlier tables are of {earlier}, not of {result}: run all works")
    torch.manual_seed(0)
    tables |= {table["title"]: table for name in names or WORKS for table in WORKS[name]()}
    write_whole(RESULTS, json.dumps(result | {"tables": list(tables.values())}, indent=1) + "\n")
    print(f"\nwritten to {RESULTS}")


if __name__ == "__main__":
    main(*sys.argv[1:])
