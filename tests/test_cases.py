"""Mistakes found in public code, each with the right value and the wrong one (tests/cases.json).

The numbers were computed by hand or with the projects named in the threads, never with posenc_ref. A case that
"needs" a module is skipped until that module exists, and then fails until it is tested: here by a function of its
kind, or elsewhere by a test that has its number in its name, as test_A31_slopes.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from posenc_ref import create
from posenc_ref.checks import check_positions
from posenc_ref.embedding import Sinusoidal, sinusoidal
from posenc_ref.embedding.sinusoidal import frequencies
from posenc_ref.positions import decode_positions, positions_from_mask
from posenc_ref.rotary import cos_sin, inv_freq, permutation, rotate

CASES = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))


def turn(x, position, layout, rotary_dim=None):
    x = np.array(x, dtype=float)
    return rotate(x, *cos_sin(np.array(position), inv_freq(rotary_dim or len(x))), layout=layout)


def sinusoidal_table(length, **arguments):
    return {"table": sinusoidal(np.arange(length), **arguments)}


def layout_permutation(d_model, positions):
    tables = {c: sinusoidal(np.array(positions), d_model, layout=c) for c in ("interleaved", "concatenated")}
    dots = {f"dot_{c}": a @ b for c, (a, b) in tables.items()}
    # "half" is to channels what "concatenated" is to columns
    order = permutation(d_model, source="interleaved", target="half")
    return {c: table[0] for c, table in tables.items()} | dots | {"permutation": order}


def sinusoidal_freqs(d_model, base):
    return {e: frequencies(d_model, base=base, exponent=e) for e in ("paper", "tensor2tensor")}


def add_pe_axis(shape):
    y = Sinusoidal(shape[2], layout="interleaved").embed(np.zeros(shape), positions=np.arange(shape[1]))
    return {"row 0, token 3": y[0, 3], "row 3, token 0": y[3, 0]}


def positions_from_ids(attention_mask, starts):
    mask = np.array(attention_mask)
    return {"rows of real tokens": (positions_from_mask(mask) + np.array(starts)[:, None])[mask == 1]}


def rope_apply(x, position):
    turned = {layout: turn(x, position, layout) for layout in ("half", "interleaved")}
    return turned | {"permutation of 8": permutation(8, source="interleaved", target="half")}


def rope_relative_property(q, k, pairs):
    return {c: [turn(q, m, c) @ turn(k, n, c) for m, n in pairs] for c in ("half", "interleaved")}


def rope_sign(x, position, q, k, pairs):
    return {
        "rotated": turn(x, position, "interleaved"),
        "scores": [turn(q, m, "interleaved") @ turn(k, n, "interleaved") for m, n in pairs],
    }


def rope_inv_freq(rotary_dim, base):
    return {"inv_freq": inv_freq(rotary_dim, base=base)}


def rope_axis(tokens, heads, head_dim):
    x = np.ones((1, heads, tokens, head_dim))
    p = np.arange(tokens)
    y, _ = create("rope", head_dim=head_dim, layout="half").rotate(x, x, q_positions=p, k_positions=p)
    return {f"token {t}, head {h}": y[0, h, t] for t in range(tokens) for h in range(heads)}


def rope_decode(q, K, cache_len, scale, layout):
    rope = create("rope", head_dim=len(q), layout=layout)
    q, k = rope.rotate(
        np.array(q)[None, None, None],
        np.array(K)[None, None],
        q_positions=np.asarray(decode_positions(1, cache_len)),
        k_positions=np.arange(len(K)),
    )
    return {"logits": (q @ k.swapaxes(2, 3))[0, 0, 0] * scale}


def rope_table_dtype(rotary_dim, position, pair):
    cos, _ = cos_sin(np.array(position), inv_freq(rotary_dim))
    return {"angle": position * inv_freq(rotary_dim)[pair], "cos": cos[pair]}


def bf16_positions(positions):
    stored = torch.tensor(positions).to(torch.bfloat16)
    with pytest.raises(TypeError, match="half precision merges positions"):
        check_positions(stored)
    return {"stored": stored.double().numpy()}


def rope_partial(x, pos, head_dim, rotary_dim, base, layout):
    rope = create("rope", head_dim=head_dim, rotary_dim=rotary_dim, base=base, layout=layout)
    x = np.array(x)[None, None, None]
    y, _ = rope.rotate(x, x, q_positions=np.array([pos]), k_positions=np.array([pos]))
    return {"inv_freq": inv_freq(rotary_dim, base=base), "out": y[0, 0, 0]}


def rope_qk_distinct(q, k, position, layout):
    p = np.array([position])
    q, k = (np.array(x, dtype=float)[None, None, None] for x in (q, k))
    q, k = create("rope", head_dim=4, layout=layout).rotate(q, k, q_positions=p, k_positions=p)
    return {"q": q[0, 0, 0], "k": k[0, 0, 0]}


def rope_rerotate(k, old, new, layout):
    at_old = turn(k, old, layout)
    return {"at old": at_old, "moved": turn(at_old, new - old, layout), "at new": turn(k, new, layout)}


def rope_pi(head_dim, base, factor, pos):
    from posenc_ref.rotary.scaling import position_interpolation

    return {"angles": pos * position_interpolation(head_dim, factor=factor, base=base)[0]}


def rope_ntk_base(base, head_dim, factors):
    from posenc_ref.rotary.scaling import ntk_base

    return {"bases": [ntk_base(head_dim, factor=f, base=base) for f in factors]}


def rope_dynamic_ntk_base(head_dim, lengths, **settings):
    from posenc_ref.rotary.scaling import dynamic_ntk

    slowest = [dynamic_ntk(head_dim, length=n, **settings)[0][-1] for n in lengths]
    return {"bases": [f ** -(head_dim / (head_dim - 2)) for f in slowest]}


def rope_yarn(**settings):
    from posenc_ref.rotary.scaling import yarn

    theta, factor = yarn(**settings)
    return {"inv_freq": theta, "attention_factor": factor, "not truncated": yarn(**settings, truncate=False)[0]}


def yarn_mscale(factors):
    from posenc_ref.rotary.scaling import yarn, yarn_mscale

    def cos_sin_factor(**settings):
        return yarn(16, factor=40, original_max_position=2048, **settings)[1]

    values = [yarn_mscale(f) for f in factors]
    return {
        "mscale": values,
        "of 64": values[-2],
        "of 128": values[-1],
        "cos and sin, equal mscales, 40": cos_sin_factor(mscale=1, mscale_all_dim=1),
        "softmax, 40": yarn_mscale(40) ** 2,
        "explicit 1.5": cos_sin_factor(attention_factor=1.5),
    }


def exists(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def same(a, b):
    """Equal to the nine digits that the cases are written with."""
    return np.allclose(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']}-{c['kind']}")
def test_case(case):
    compute = globals().get(case["kind"])
    if "needs" in case and not exists(case["needs"]):
        pytest.skip(f"needs {case['needs']}, which is not written yet")
    if compute is None:
        test = f"test_{case['id'][:3]}_"
        found = any(f"\ndef {test}" in p.read_text(encoding="utf-8") for p in Path(__file__).parent.glob("test_*.py"))
        assert found, f"{case['needs']} is written: compute {case['kind']} here, or test it elsewhere as {test}…"
        return
    got = compute(**case["inputs"])
    for name, value in case["right"].items():
        assert same(got[name], value), name
    for mistake, values in case.get("wrong", {}).items():
        assert values, mistake
        for name, value in values.items():
            assert not same(got[name], value), f"{name}: {mistake}"


def test_cases_name_their_threads_and_mistakes():
    for case in CASES:
        assert case["mistake"] and all(t.startswith("https://") for t in case["threads"]), case["id"]
        assert case["kind"] in globals() or "needs" in case
    assert len({c["id"] for c in CASES}) == len(CASES)
