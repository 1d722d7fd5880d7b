"""Relatives of RoPE: xPos, axial and multimodal rotation, proportional rotary, and moving keys in a cache."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import rotary_embedding_torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding, Qwen2VLVisionRotaryEmbedding
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding, Qwen3VLVisionRotaryEmbedding
from x_transformers.x_transformers import RotaryEmbedding
from x_transformers.x_transformers import apply_rotary_pos_emb as apply_xpos

from posenc_ref import attention
from posenc_ref.positions import causal
from posenc_ref.rotary.axial import AxialRoPE, MultimodalRoPE, cos_sin_axes, section_axes
from posenc_ref.rotary.rerotate import rerotate
from posenc_ref.rotary.rope import RoPE, cos_sin, inv_freq, rotate
from posenc_ref.rotary.scaled import Proportional, ScaledRoPE, YaRN
from posenc_ref.rotary.xpos import XPos, decay

EPS32 = float(np.finfo(np.float32).eps)
LAYOUTS = ("half", "interleaved")


def qkv(seq=7, head_dim=64, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, 3, seq, head_dim)).astype(dtype) for _ in range(3)]


def turn(encoding, q, k, positions):
    return encoding.rotate(q, k, q_positions=positions, k_positions=positions)


def logits(q, k):
    return q @ k.swapaxes(-1, -2)


def assert_float32(theirs, ours, largest_angle):
    """Theirs used float32 angles, off by half an ulp of the angle and by that of the frequency times the position."""
    bound = (3 * largest_angle + 8) * EPS32 * abs(ours).max()
    assert_allclose(theirs, ours, rtol=0, atol=bound)


# -- xPos ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [1, 6, 7, 300])
def test_xpos_equals_two_packages(seq):
    q, k, _ = qkv(seq, dtype=np.float32)
    q_, k_ = torch.tensor(q), torch.tensor(k)
    rotary = rotary_embedding_torch.RotaryEmbedding(64, use_xpos=True)
    one = rotary.rotate_queries_and_keys(q_, k_)
    freqs, scale = RotaryEmbedding(64, use_xpos=True)(torch.arange(seq))
    two = apply_xpos(q_, freqs, scale), apply_xpos(k_, freqs, scale**-1)
    ours = turn(XPos(64, "interleaved", reference=seq // 2), q, k, np.arange(seq))  # their middle
    for theirs in (one, two):
        for a, b in zip(theirs, ours, strict=True):
            assert_float32(a.detach().numpy(), b, seq)


def test_xpos_is_equation_10_of_the_paper():
    """With B = 1 and r = 0: q ζ̂^n e^{inθ} and k ζ̂^−n e^{inθ}, written with complex numbers."""
    q, k, _ = qkv(9)
    ours = turn(XPos(64, "interleaved", reference=0, scale_base=1.0), q, k, np.arange(9))
    for x, y, sign in ((q, ours[0], 1), (k, ours[1], -1)):
        for n in range(9):
            for i in range(32):
                zeta, theta = (i / 32 + 0.4) / 1.4, 10000 ** (-2 * i / 64)
                z = (x[..., n, 2 * i] + 1j * x[..., n, 2 * i + 1]) * zeta ** (sign * n) * np.exp(1j * n * theta)
                assert_allclose(y[..., n, 2 * i], z.real, rtol=1e-12, atol=1e-12 * abs(z).max())
                assert_allclose(y[..., n, 2 * i + 1], z.imag, rtol=1e-12, atol=1e-12 * abs(z).max())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_xpos_logits_depend_on_distance_and_not_on_the_reference(layout):
    q, k, _ = qkv()
    p = np.arange(7)
    expected = logits(*turn(XPos(64, layout, reference=0), q, k, p))
    for reference, shift in ((3, 0), (500, 0), (0.5, 0), (0, 2000), (10**6, 10**6)):
        ours = logits(*turn(XPos(64, layout, reference=reference), q, k, p + shift))
        assert_allclose(ours, expected, atol=1e-7)
    assert abs(logits(*turn(RoPE(64, layout), q, k, p)) - expected).max() > 1e-3


def test_xpos_decays_with_the_distance_and_is_rope_without_decay():
    assert_allclose(decay(128)[[0, -1]], [0.4 / 1.4, (126 / 128 + 0.4) / 1.4])
    assert (np.diff(decay(128)) > 0).all() and decay(128)[-1] < 1
    x = np.zeros((1, 1, 1, 2))
    x[..., 0] = 1
    one_pair = XPos(2, "half", reference=0)
    for m, n in ((512, 0), (1024, 512), (700, 188)):
        q, _ = one_pair.rotate(x, x, q_positions=np.array([m]), k_positions=np.array([0]))
        _, k = one_pair.rotate(x, x, q_positions=np.array([0]), k_positions=np.array([n]))
        assert_allclose((q * k).sum(), 0.4 / 1.4 * math.cos(m - n), rtol=1e-9)  # ζ once every 512 tokens
    q, k, _ = qkv()
    p = np.arange(7)
    flat = turn(XPos(64, "half", reference=0, gamma=1e15), q, k, p)
    for a, b in zip(flat, turn(RoPE(64, "half"), q, k, p), strict=True):
        assert_allclose(a, b, atol=1e-12)


def test_xpos_decodes_from_cached_turned_keys():
    q, k, v = qkv(40)
    p = np.arange(40)
    xpos = XPos(64, "half", reference=20)
    full = attention(q, k, v, encoding=xpos, q_positions=p, k_positions=p, mask=causal(p, p))
    cache = np.concatenate([xpos.rotate_keys(k[:, :, t : t + 1], p[t : t + 1]) for t in range(40)], axis=2)
    for t in range(40):
        one = xpos.rotate_queries(q[:, :, t : t + 1], p[t : t + 1])
        assert_allclose(attention(one, cache[:, :, : t + 1], v[:, :, : t + 1])[:, :, 0], full[:, :, t], atol=1e-12)


def test_a_reference_that_moves_with_the_text_spoils_cached_keys():
    """Published code takes the middle of the text so far. Keys cached with that of 1,024 tokens meet a query with that
    of 2,048: the fastest pair weighs 1/ζ = 3.5 times what it should."""
    q, k, _ = qkv(1)
    m, n = np.array([2047]), np.array([511])
    query, right = XPos(64, "half", reference=1024).rotate(q, k, q_positions=m, k_positions=n)
    stale = XPos(64, "half", reference=512).rotate_keys(k, n)
    assert_allclose(stale[..., [0, 32]] / right[..., [0, 32]], 3.5, rtol=1e-9)
    wrong, true = (query * stale).sum(-1), (query * right).sum(-1)
    assert abs(wrong / true - 1).max() > 0.1


def test_rotary_embedding_torch_decodes_xpos_with_two_references():
    """Its rotate_queries_with_cached_keys centres queries on their own number: one query meets other logits."""
    q, k, _ = qkv(512, dtype=np.float32)
    rotary = rotary_embedding_torch.RotaryEmbedding(64, use_xpos=True)
    q_, k_ = torch.tensor(q), torch.tensor(k)
    full = logits(*(x.detach().numpy() for x in rotary.rotate_queries_and_keys(q_, k_)))[:, :, -1:]
    one = logits(*(x.detach().numpy() for x in rotary.rotate_queries_with_cached_keys(q_[:, :, -1:], k_)))
    assert abs(one - full).max() > 0.1 * abs(full).max()
    xpos = XPos(64, "interleaved", reference=256)
    ours = logits(xpos.rotate_queries(q[:, :, -1:], np.array([511])), xpos.rotate_keys(k, np.arange(512)))
    assert_allclose(ours, full, atol=2e-3)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 3966), (torch.bfloat16, 35694), (torch.float32, 35694)])
def test_xpos_refuses_positions_whose_factors_are_no_numbers(dtype, limit):
    x = torch.ones((1, 1, 1, 64), dtype=dtype)
    xpos = XPos(64, "half", reference=100)
    for sign in (1, -1):
        q, k = turn(xpos, x, x, torch.tensor([100 + sign * limit]))
        assert q.isfinite().all() and k.isfinite().all() and abs(q[..., [0, 32]]).max() > 0
        with pytest.raises(ValueError, match=f"q_positions must lie within {limit} tokens .* got one {limit + 1} away"):
            turn(xpos, x, x, torch.tensor([100 + sign * (limit + 1)]))


# -- axial and multimodal --------------------------------------------------------------------------------------


def grid(height, width):
    return np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1).reshape(-1, 2)


def test_axial_equals_rotary_embedding_torch():
    q, k, _ = qkv(5 * 8, dtype=np.float32)
    rotary = rotary_embedding_torch.RotaryEmbedding(32)
    freqs = rotary.get_axial_freqs(5, 8).reshape(40, 64)
    ours = turn(AxialRoPE(64, "interleaved"), q, k, grid(5, 8))
    for x, y in zip((q, k), ours, strict=True):
        theirs = rotary_embedding_torch.apply_rotary_emb(freqs, torch.tensor(x)).detach().numpy()
        assert_float32(theirs, y, 8)


@pytest.mark.parametrize("oracle", [Qwen2VLVisionRotaryEmbedding, Qwen3VLVisionRotaryEmbedding])
def test_axial_equals_the_vision_towers_of_qwen(oracle):
    q, k, _ = qkv(40, 80, dtype=np.float32)
    config = SimpleNamespace(rope_parameters={"rope_type": "axial", "rope_theta": 10000.0}, head_dim=80)
    config.embed_dim = config.hidden_size = config.num_attention_heads = 80
    cos, sin = oracle(config)(torch.ones(1), torch.tensor(grid(5, 8)))
    theirs = apply_rotary_pos_emb(torch.tensor(q), torch.tensor(k), cos[None], sin[None])
    for a, b in zip(theirs, turn(AxialRoPE(80, "half"), q, k, grid(5, 8)), strict=True):
        assert_float32(a.numpy(), b, 8)


def test_pixtral_shares_frequencies_out_in_turn():
    """Another axial way: rows take the even frequencies of one RoPE, columns the odd ones, none of them twice."""
    config = SimpleNamespace(rope_parameters={"rope_type": "axial", "rope_theta": 10000.0}, head_dim=64)
    config.hidden_size = config.num_attention_heads = 64
    theirs = PixtralVisionRotaryEmbedding(config)(torch.ones(1), torch.tensor(grid(5, 8)))
    theta = inv_freq(64)
    ours = cos_sin_axes(grid(5, 8), np.concatenate([theta[::2], theta[1::2]]), np.repeat([0, 1], 16))
    for a, b in zip(theirs, ours, strict=True):
        assert_float32(a[:, :32].numpy(), b, 8)


MROPE = {
    (16, 24, 24): (False, Qwen2VLRotaryEmbedding, Qwen2VLTextConfig),
    (24, 20, 20): (True, Qwen3VLTextRotaryEmbedding, Qwen3VLTextConfig),
    (4, 30, 30): (False, Qwen2VLRotaryEmbedding, Qwen2VLTextConfig),
    (44, 10, 10): (True, Qwen3VLTextRotaryEmbedding, Qwen3VLTextConfig),
}


@pytest.mark.parametrize("sections", MROPE)
def test_multimodal_equals_qwen(sections):
    interleaved, oracle, config = MROPE[sections]
    q, k, _ = qkv(11, 128, dtype=np.float32)
    p = np.random.default_rng(1).integers(0, 200, size=(2, 11, 3))
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections)}
    module = oracle(config(hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=rope))
    cos, sin = module(torch.ones(1), torch.tensor(p).permute(2, 0, 1))
    theirs = apply_rotary_pos_emb(torch.tensor(q), torch.tensor(k), cos, sin)
    ours = MultimodalRoPE(128, "half", sections=sections, interleaved=interleaved, base=1e6)
    for a, b in zip(theirs, turn(ours, q, k, p), strict=True):
        assert_float32(a.numpy(), b, 200)


def test_sections_written_out():
    assert section_axes((2, 3, 3), interleaved=False).tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert section_axes((4, 3, 3), interleaved=True).tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    qwen3 = section_axes((24, 20, 20), interleaved=True)
    assert [(qwen3 == a).sum() for a in range(3)] == [24, 20, 20]
    assert qwen3[60:].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("interleaved", [True, False])
def test_text_in_a_multimodal_model_is_plain_rope(layout, interleaved):
    q, k, _ = qkv()
    p = np.arange(3, 10)
    mrope = MultimodalRoPE(64, layout, sections=(12, 10, 10), interleaved=interleaved)
    for a, b in zip(turn(mrope, q, k, np.repeat(p[:, None], 3, 1)), turn(RoPE(64, layout), q, k, p), strict=True):
        assert_array_equal(a, b)


def test_one_axis_is_plain_rope_and_channels_beyond_pass():
    q, k, _ = qkv()
    p = np.arange(7)
    for a, b in zip(
        turn(AxialRoPE(64, "half", axes=1), q, k, p[:, None]), turn(RoPE(64, "half"), q, k, p), strict=True
    ):
        assert_array_equal(a, b)
    positions = np.stack([p, p[::-1]], axis=-1)
    for encoding, n in (
        (AxialRoPE(64, "half", rotary_dim=48), 48),
        (MultimodalRoPE(64, "half", sections=(5, 5), interleaved=False), 20),
    ):
        turned, _ = turn(encoding, q, k, positions)
        assert_array_equal(turned[..., n:], q[..., n:])
        assert (abs(turned[:, :, 1:, :n] - q[:, :, 1:, :n]).max(axis=(0, 1, 2)) > 1e-9).all()


@pytest.mark.parametrize(
    "encoding",
    [
        AxialRoPE(64, "half"), AxialRoPE(64, "interleaved", rotary_dim=32),
        MultimodalRoPE(64, "half", sections=(20, 12), interleaved=False),
        MultimodalRoPE(64, "interleaved", sections=(20, 12), interleaved=True),
    ],
    ids=repr,
)  # fmt: skip
def test_logits_depend_on_both_offsets(encoding):
    q, k, _ = qkv(12)
    p = grid(3, 4)
    expected = logits(*turn(encoding, q, k, p))
    assert_allclose(logits(*turn(encoding, q, k, p + np.array([100, 7]))), expected, atol=1e-10)
    for stretch in ([2, 1], [1, 2]):
        assert abs(logits(*turn(encoding, q, k, p * stretch)) - expected).max() > 1e-2
    batch = np.stack([p, p + 5])  # (batch, seq, axes)
    assert_allclose(logits(*turn(encoding, q, k, batch)), expected, atol=1e-10)


# -- proportional ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_proportional_is_neither_partial_nor_full(layout):
    """Of a head of 64 the first 8 of 32 pairs turn, at full RoPE's frequencies and places."""
    q, k, _ = qkv()
    p = np.arange(7)
    ours, _ = turn(ScaledRoPE(64, layout, Proportional(rotated=16)), q, k, p)
    full, _ = turn(RoPE(64, layout), q, k, p)
    turning = [*range(8), *range(32, 40)] if layout == "half" else list(range(16))
    assert_array_equal(ours[..., turning], full[..., turning])
    still = np.setdiff1d(np.arange(64), turning)
    assert_array_equal(ours[..., still], q[..., still])
    partial, _ = turn(RoPE(64, layout, rotary_dim=16), q, k, p)
    assert abs(partial - ours).max() > 0.1


# -- moving cached keys ----------------------------------------------------------------------------------------


def test_rerotation_by_the_numbers():  # streaming-llm 53, transformers 33691 and 35350, llama.cpp 24875
    k = np.array([[[[1.0, 2.0, 3.0, 4.0]]]])
    theta = inv_freq(4)
    old = rotate(k, *cos_sin(np.array([9]), theta), layout="half")
    assert_allclose(old[0, 0, 0], [-2.14748572, 1.63239127, -2.3212723, 4.16356803], rtol=1e-8)
    new = rerotate(old, old_positions=np.array([9]), new_positions=np.array([6]), inv_freq=theta, layout="half")
    assert_allclose(new[0, 0, 0], [1.79841678, 1.75654505, 2.60109536, 4.11273017], rtol=1e-8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rotary_dim", [64, 16])
def test_rerotated_keys_are_keys_turned_at_the_new_position(layout, rotary_dim):
    _, k, _ = qkv()
    rope = RoPE(64, layout, rotary_dim=rotary_dim)
    rng = np.random.default_rng(2)
    old, new = rng.integers(0, 10**6, size=(2, 2, 7))  # up, down, far, per row
    _, cached = turn(rope, k, k, old)
    _, expected = turn(rope, k, k, new)
    same = {"inv_freq": inv_freq(rotary_dim), "layout": layout}
    assert_allclose(rerotate(cached, old_positions=old, new_positions=new, **same), expected, atol=1e-8)
    low, high = np.arange(-100, -93, dtype=np.int8), np.arange(100, 107, dtype=np.int8)  # 200 apart: no int8
    up = rerotate(turn(rope, k, k, low)[1], old_positions=low, new_positions=high, **same)
    assert_allclose(up, turn(rope, k, k, high)[1], atol=1e-12)


def test_an_attention_factor_is_not_applied_again():
    _, k, _ = qkv()
    yarn = ScaledRoPE(64, "half", YaRN(4, 2048))
    old, new = np.arange(7) + 100, np.arange(7)
    moved = rerotate(
        yarn.rotate_keys(k, old), old_positions=old, new_positions=new, inv_freq=yarn.inv_freq()[0], layout="half"
    )
    assert_allclose(moved, yarn.rotate_keys(k, new), atol=1e-12)


def test_evicting_the_middle_of_a_cache():
    """Four first tokens and the last eight are kept and closed up: the same as never having seen the others."""
    q, k, v = qkv(30)
    rope, theta = RoPE(64, "half"), inv_freq(64)
    kept = [*range(4), *range(22, 30)]
    _, cache = turn(rope, k, k, np.arange(30))
    place = np.arange(12)
    moved = rerotate(
        cache[:, :, kept], old_positions=np.array(kept), new_positions=place, inv_freq=theta, layout="half"
    )
    query, _ = turn(rope, q[:, :, -1:], q[:, :, -1:], place[-1:])
    expected = attention(
        q[:, :, -1:], k[:, :, kept], v[:, :, kept], encoding=rope, q_positions=place[-1:], k_positions=place
    )
    assert_allclose(attention(query, moved, v[:, :, kept]), expected, atol=1e-12)
    assert abs(attention(query, cache[:, :, kept], v[:, :, kept]) - expected).max() > 1e-2  # left where they were


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_rerotation_rounds_once(dtype):
    """n moves by one err by at most n + 1 roundings of the keys, not more."""
    k = torch.tensor(qkv()[1], dtype=dtype)
    theta, p, moves = inv_freq(64), torch.arange(7), 50
    rope = RoPE(64, "half")
    _, moved = turn(rope, k, k, p + moves)
    for n in range(moves, 0, -1):
        moved = rerotate(moved, old_positions=p + n, new_positions=p + n - 1, inv_freq=theta, layout="half")
    assert moved.dtype == dtype
    _, exact = turn(rope, k.double(), k.double(), p)
    error = (moved.double() - exact).abs().max().item()
    # each rounding, of the table and of the result, is half an eps of a channel at most √2 times a pair's
    assert error <= (moves + 1) * torch.finfo(dtype).eps * 1.5 * k.double().abs().max().item()


# -- all of them -----------------------------------------------------------------------------------------------

AXES = {"xpos": 0, "axial": 2, "multimodal": 3}


def make(name, layout="half"):
    return {
        "xpos": lambda: XPos(64, layout, reference=0),
        "axial": lambda: AxialRoPE(64, layout),
        "multimodal": lambda: MultimodalRoPE(64, layout, sections=(12, 10, 10), interleaved=True),
    }[name]()


def positions_for(name, seq, start=0):
    p = np.arange(start, start + seq)
    return np.stack([(a + 1) * p for a in range(AXES[name])], axis=-1) if AXES[name] else p


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_equals_numpy_in_every_dtype(name, layout):
    q, k, _ = qkv()
    p = positions_for(name, 7, start=1000)
    before = q.copy(), k.copy(), p.copy()
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        q_, k_ = torch.tensor(q, dtype=dtype), torch.tensor(k, dtype=dtype)
        ours = turn(make(name, layout), q_, k_, torch.tensor(p))
        exact = turn(make(name, layout), q_.double().numpy(), k_.double().numpy(), p)
        eps, table = torch.finfo(dtype).eps, min(torch.finfo(dtype).eps, EPS32)
        for y, z in zip(ours, exact, strict=True):
            assert y.dtype == dtype and tuple(y.shape) == z.shape
            # the result is rounded once, and tables and products in float32 at least
            assert (abs(y.double().numpy() - z) <= eps / 2 * abs(z) + 6 * table * abs(z).max()).all()
    for x, y in zip(before, (q, k, p), strict=True):
        assert_array_equal(x, y)


@pytest.mark.parametrize("name", ["xpos", "multimodal"])
@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_compiled_it_is_one_graph_with_float64_frequencies(name):
    q, k = (torch.tensor(x) for x in qkv()[:2])
    p = torch.tensor(positions_for(name, 7, start=10**4))
    same = {"q_positions": p, "k_positions": p}
    encoding = make(name)
    compiled = torch.compile(encoding.rotate, fullgraph=True, backend="eager")(q, k, **same)
    for a, b in zip(compiled, encoding.rotate(q, k, **same), strict=True):
        assert_allclose(a.numpy(), b.numpy(), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("make_it", "error", "message"),
    [
        (lambda: XPos(64, "half", reference=None), TypeError, "reference must be a number, got None"),
        (lambda: XPos(64, "half", reference=math.inf), ValueError, "reference must be .* got inf"),
        (lambda: XPos(64, "half", reference=0, gamma=0), ValueError, "gamma must be .* above 0, got 0"),
        (lambda: XPos(64, "half", reference=0, gamma=math.nan), ValueError, "gamma must be .* got nan"),
        (lambda: XPos(64, "half", reference=0, scale_base=0), ValueError, "scale_base must be .* above 0, got 0"),
        (lambda: XPos(64, "half", reference=0, base=math.nan), ValueError, "base must be .* got nan"),
        (lambda: XPos(63, "half", reference=0), ValueError, "rotary_dim must be even, got 63"),
        (lambda: XPos(64, "split", reference=0), ValueError, "layout must be one of .* got 'split'"),
        (lambda: XPos(64, "half", reference=0, rotary_dim=66), ValueError, "rotary_dim must be at most .* got 66"),
        (lambda: AxialRoPE(62, "half"), ValueError, "a multiple of 2·axes with axes = 2, got 62"),
        (lambda: AxialRoPE(64, "half", axes=0), ValueError, "axes must be at least 1, got 0"),
        (lambda: AxialRoPE(64, "half", rotary_dim=68), ValueError, "rotary_dim must be at most .* got 68"),
        (lambda: AxialRoPE(64, "half", base=1), ValueError, "base must be .* got 1"),
        (lambda: AxialRoPE(64, None), ValueError, "layout must be one of .* got None"),
        (lambda: MultimodalRoPE(64, "half", (16, 24, 24), False), ValueError, "must be at most head_dim = 64, got 128"),
        (lambda: MultimodalRoPE(64, "half", (12, 20, 0), False), ValueError, "sections must be at least 1, got 0"),
        (lambda: MultimodalRoPE(64, "half", (12.0, 20.0), False), TypeError, "sections must be an integer, got 12.0"),
        (lambda: MultimodalRoPE(64, "half", (), False), ValueError, r"sections must be a list .* not empty, got \(\)"),
        (lambda: MultimodalRoPE(64, "half", (4, 14, 14), True), ValueError, r"interleaved, got \[4, 14, 14\]"),
        (lambda: MultimodalRoPE(64, "half", (20, 12), "no"), TypeError, "interleaved must be .* got 'no'"),
        (lambda: MultimodalRoPE(64, "half", (1, 2), True), ValueError, r"interleaved, got \[1, 2\]"),
        (lambda: ScaledRoPE(64, "half", Proportional(rotated=66)), ValueError, "at most head_dim = 64, got 66"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(make_it, error, message):
    with pytest.raises(error, match=message):
        make_it()


@pytest.mark.parametrize("name", AXES)
def test_bad_arrays_are_named(name):
    q, k, _ = qkv()
    p = positions_for(name, 7)
    for bad, error in ((k[..., :62], ValueError), (k[0], ValueError), (k.astype(int), TypeError)):
        with pytest.raises(error, match="k must be"):
            make(name).rotate(q, bad, q_positions=p, k_positions=p)
    for bad, error in ((p[:6], ValueError), (p[..., None], ValueError), (p.astype(np.float16), TypeError)):
        with pytest.raises(error, match="k_positions must"):
            make(name).rotate(q, k, q_positions=p, k_positions=bad)
    with pytest.raises(ValueError, match="q_positions must be finite"):
        make(name).rotate(q, k, q_positions=np.where(p > 3, math.nan, p), k_positions=p)


def test_rerotate_names_what_is_wrong():
    k, p = qkv()[1], np.arange(7)
    same = {"inv_freq": inv_freq(64), "layout": "half"}
    with pytest.raises(TypeError, match=r"old_positions must be .* got float16"):
        rerotate(k, old_positions=p.astype(np.float16), new_positions=p, **same)
    with pytest.raises(ValueError, match=r"new_positions must be finite"):
        rerotate(k, old_positions=p, new_positions=p * math.nan, **same)
    with pytest.raises(ValueError, match=r"k_positions must have shape \(7,\) or \(2, 7\), got \(6,\)"):
        rerotate(k, old_positions=p[:6], new_positions=p[:6], **same)
    with pytest.raises(ValueError, match="rotary_dim must be at most head_dim = 64, got 66"):
        rerotate(k, old_positions=p, new_positions=p, inv_freq=inv_freq(66), layout="half")


SIZES = st.integers(-1, 24)
NUMBERS = st.one_of(st.floats(), st.floats(0.1, 1e4), SIZES, st.none(), st.booleans(), st.just("1"))


@settings(max_examples=200)
@given(st.data())
def test_right_or_refused(data):
    """Whatever the arguments: queries and keys that keep their norm up to xPos's factor, or an error with a value."""
    draw = data.draw
    name = draw(st.sampled_from(sorted(AXES)))
    head_dim, layout = draw(SIZES), draw(st.sampled_from(["half", "interleaved", "split"]))
    rotary_dim, base = draw(st.one_of(st.none(), SIZES)), draw(st.one_of(st.just(1e4), NUMBERS))
    x = np.ones((1, 1, 3, max(head_dim, 0)))
    try:
        if name == "xpos":
            arguments = {
                "reference": draw(st.one_of(SIZES, NUMBERS)),
                "scale_base": draw(NUMBERS),
                "gamma": draw(NUMBERS),
            }
            encoding, axes = XPos(head_dim, layout, rotary_dim=rotary_dim, base=base, **arguments), ()
        elif name == "axial":
            axes = (draw(st.integers(0, 3)),)
            encoding = AxialRoPE(head_dim, layout, axes=axes[0], rotary_dim=rotary_dim, base=base)
        else:
            sections = draw(st.lists(st.integers(0, 6), max_size=3))
            encoding, axes = (
                MultimodalRoPE(head_dim, layout, sections, draw(st.booleans()), base=base),
                (len(sections),),
            )
        p = np.arange(3 * math.prod(axes)).reshape(3, *axes)
        q, k = turn(encoding, x, x, p)
    except (ValueError, TypeError) as error:
        assert "got " in str(error)
        return
    assert q.shape == k.shape == x.shape and np.isfinite(q).all() and np.isfinite(k).all()
    if name != "xpos":
        assert_allclose(np.linalg.norm(q, axis=-1), math.sqrt(head_dim), rtol=1e-12)
    for shift in (0, 5):  # a logit with itself is that of unturned channels, whatever the encoding
        q, k = turn(encoding, x, x, p + shift)
        assert_allclose((q * k).sum(-1), head_dim, rtol=1e-9)
