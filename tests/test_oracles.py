"""The reference against independent implementations; no expected value comes from posenc_ref.

Every tolerance is a bound on rounding. With unit roundoff u (2⁻⁵³, 2⁻²⁴, 2⁻⁸ for float64, float32, bfloat16):

- a frequency base^x is off by (ln base)·x·u from rounding x, by 2u for the power (vectorised functions promise one
  unit in the last place) and by u for the reciprocal;
- its product with the position by another u: an angle φ is off by (ln base + 4)·u·φ, and so are cos φ and sin φ,
  which add 2u of their own;
- x₁ cos φ − x₂ sin φ adds 3u for its three operations.
"""

import math
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch
import x_transformers.x_transformers as x_transformers
from esm import rotary_embedding as esm
from positional_encodings.torch_encodings import PositionalEncoding1D
from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import GPTNeoXConfig, Llama4TextConfig, LlamaConfig
from transformers.core_model_loading import PermuteForRope
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.llama4 import modeling_llama4 as llama4
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding
from transformers.models.speech_to_text.modeling_speech_to_text import Speech2TextSinusoidalPositionalEmbedding

from posenc_ref import attention
from posenc_ref.embedding import Sinusoidal, sinusoidal
from posenc_ref.positions import causal, decode_positions
from posenc_ref.rotary import RoPE, convert_projection, cos_sin, inv_freq, rotate

U = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

# Sizes that hide nothing: all different, not powers of two, fewer key heads than query heads; positions out of
# order, with 0, with 257 (no bfloat16 number) and with the far end of the tables.
BATCH, HEADS, KV_HEADS, HEAD_DIM, PARTIAL = 2, 6, 3, 12, 8
POSITIONS = torch.tensor([3, 0, 1, 257, 17, 1000, 256, 100, 511])


def draw(seed, *shape, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def exact_angles(positions, dim, base=10000, exponent=lambda i, dim: mpmath.mpf(2 * i) / dim):
    """p · base^(−2i/dim) with 50 digits."""
    with mpmath.workdps(50):
        omega = [mpmath.mpf(base) ** -exponent(i, dim) for i in range((dim + 1) // 2)]
        return [[int(p) * w for w in omega] for p in positions]


def exact(function, angles):
    with mpmath.workdps(50):
        return np.array([[float(function(a)) for a in row] for row in angles])


def angle_error(positions, dim, base, u):
    angles = np.abs(exact(mpmath.mpf, exact_angles(positions, dim, base)))
    return (math.log(base) + 4) * u * angles + 2 * u


def within(got, expected, tolerance):
    got, expected = (np.asarray(a.detach().double() if torch.is_tensor(a) else a) for a in (got, expected))
    assert got.shape == expected.shape
    excess = np.abs(got - expected) - tolerance
    assert (excess <= 0).all(), (
        f"beyond rounding by {excess.max():.3g} at {np.unravel_index(excess.argmax(), got.shape)}"
    )


# ---------------------------------------------------------------- sinusoidal


def by_positional_encodings(length, d_model):
    return PositionalEncoding1D(d_model)(torch.zeros(1, length, d_model))[0]


def by_distilbert(length, d_model):
    return create_sinusoidal_embeddings(length, d_model, torch.empty(length, d_model))


def by_roformer(length, d_model):
    return RoFormerSinusoidalPositionalEmbedding(length, d_model).create_weight()


def by_gptj(length, d_model):
    return gptj.create_sinusoidal_positions(length, d_model)


def by_speech_to_text(length, d_model):
    return Speech2TextSinusoidalPositionalEmbedding.get_embedding(length, d_model)


@pytest.mark.parametrize(
    ("layout", "exponent", "d_model", "oracle", "angles_in"),
    [
        ("interleaved", "paper", 12, by_positional_encodings, torch.float32),
        ("interleaved", "paper", 12, by_distilbert, torch.float64),
        ("interleaved", "paper", 7, by_distilbert, torch.float64),
        ("concatenated", "paper", 12, by_roformer, torch.float64),
        ("concatenated", "paper", 7, by_roformer, torch.float64),
        ("concatenated", "paper", 12, by_gptj, torch.float32),
        ("concatenated", "tensor2tensor", 12, by_speech_to_text, torch.float32),
    ],
)
def test_sinusoidal_equals_public_tables(layout, exponent, d_model, oracle, angles_in):
    length = 600
    table = sinusoidal(np.arange(length), d_model, layout=layout, exponent=exponent)
    # the largest angle of each row, that of frequency 1, bounds the error of all; oracles store float32
    tolerance = angle_error(range(length), 1, 10000, U[angles_in]) + U[torch.float32]
    within(table, oracle(length, d_model), tolerance)


@pytest.mark.parametrize("as_array", [np.array, torch.tensor])
@pytest.mark.parametrize("base", [10000, 500000])
@pytest.mark.parametrize("exponent", ["paper", "tensor2tensor"])
def test_sinusoidal_equals_the_formula_with_50_digits(exponent, base, as_array):
    positions, d_model = [0, 1, 257, 131_071, 999_999], 12
    power = {"paper": lambda i, d: mpmath.mpf(2 * i) / d, "tensor2tensor": lambda i, d: mpmath.mpf(i) / (d // 2 - 1)}
    angles = exact_angles(positions, d_model, base, power[exponent])
    expected = np.concatenate([exact(mpmath.sin, angles), exact(mpmath.cos, angles)], axis=-1)
    table = sinusoidal(as_array(positions), d_model, layout="concatenated", base=base, exponent=exponent)
    within(table, expected, (math.log(base) + 4) * U[torch.float64] * (np.array(positions)[:, None] + 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_sinusoidal_is_added_with_one_rounding(dtype):
    x = draw(1, BATCH, 7, 12, dtype=dtype)
    expected = x.double() + by_distilbert(7, 12).double()
    y = Sinusoidal(12, layout="interleaved").embed(x, positions=torch.arange(7))
    assert y.dtype == dtype
    within(y, expected, U[dtype] * expected.abs().numpy() + 2 * U[torch.float32])  # the oracle's table is float32


# ---------------------------------------------------------------- RoPE


def scattered(rotate_from_zero):
    """Give an oracle that starts at position 0 any positions: put each token at its place in a longer sequence."""

    def rotate_at(q, k, base, dim):
        def one(x):
            long = torch.zeros(*x.shape[:2], int(POSITIONS.max()) + 1, x.shape[3], dtype=x.dtype)
            long[:, :, POSITIONS] = x
            return rotate_from_zero(long, base, dim)[:, :, POSITIONS]

        return one(q), one(k)

    return rotate_at


def config(of, base, **more):
    sizes = {"hidden_size": HEADS * HEAD_DIM, "num_attention_heads": HEADS}
    return of(**sizes, rope_parameters={"rope_type": "default", "rope_theta": float(base), **more})


def by_llama(q, k, base, dim):
    return llama.apply_rotary_pos_emb(q, k, *llama.LlamaRotaryEmbedding(config(LlamaConfig, base))(q, POSITIONS[None]))


def by_gpt_neox(q, k, base, dim):
    settings = config(GPTNeoXConfig, base, partial_rotary_factor=dim / HEAD_DIM)
    return gpt_neox.apply_rotary_pos_emb(q, k, *gpt_neox.GPTNeoXRotaryEmbedding(settings)(q, POSITIONS[None]))


@scattered
def by_esm(x, base, dim):
    flat = x.reshape(-1, *x.shape[2:])
    return esm.RotaryEmbedding(dim)(flat, flat)[0].reshape(x.shape)


def by_gptj_rotation(q, k, base, dim):
    assert base == 10000
    sin, cos = gptj.create_sinusoidal_positions(1001, dim)[POSITIONS][None].split(dim // 2, dim=-1)

    def one(x):
        turned = gptj.apply_rotary_pos_emb(x[..., :dim].transpose(1, 2), sin, cos).transpose(1, 2)
        return torch.cat([turned, x[..., dim:]], dim=-1)

    return one(q), one(k)


def by_x_transformers(q, k, base, dim):
    angles, _ = x_transformers.RotaryEmbedding(dim, base=base)(POSITIONS)
    return tuple(x_transformers.apply_rotary_pos_emb(x, angles) for x in (q, k))


@scattered
def by_rotary_embedding_torch(x, base, dim):
    return RotaryEmbedding(dim, theta=base).rotate_queries_or_keys(x)


def by_llama4(q, k, base, dim):
    settings = config(Llama4TextConfig, base)
    settings.head_dim = HEAD_DIM  # its own default, 128, does not follow from the other sizes
    table = llama4.Llama4TextRotaryEmbedding(settings)
    turned = llama4.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), table(q, POSITIONS[None]))
    return tuple(x.transpose(1, 2) for x in turned)


ROTARY = [
    ("half", HEAD_DIM, 500000, by_llama),
    ("half", HEAD_DIM, 10000, by_esm),
    ("half", PARTIAL, 500000, by_gpt_neox),
    ("interleaved", HEAD_DIM, 10000, by_gptj_rotation),
    ("interleaved", PARTIAL, 10000, by_gptj_rotation),
    ("interleaved", HEAD_DIM, 500000, by_x_transformers),
    ("interleaved", PARTIAL, 500000, by_x_transformers),
    ("interleaved", HEAD_DIM, 500000, by_rotary_embedding_torch),
    ("interleaved", HEAD_DIM, 500000, by_llama4),
]


def spread(per_pair, layout, head_dim):
    """Give both channels of a pair, and a zero to those that pass through, what belongs to the pair."""
    pairs = per_pair.shape[-1]
    both = np.tile(per_pair, 2) if layout == "half" else np.repeat(per_pair, 2, axis=-1)
    return np.pad(both, [(0, 0)] * (both.ndim - 1) + [(0, head_dim - 2 * pairs)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("layout", "dim", "base", "oracle"), ROTARY)
def test_rope_equals_public_rotations(layout, dim, base, oracle, dtype):
    q = draw(1, BATCH, HEADS, len(POSITIONS), HEAD_DIM, dtype=dtype)
    k = draw(2, BATCH, KV_HEADS, len(POSITIONS), HEAD_DIM, dtype=dtype)
    rope = RoPE(HEAD_DIM, layout=layout, base=base, rotary_dim=dim)
    got = rope.rotate(q, k, q_positions=POSITIONS, k_positions=POSITIONS)
    expected = oracle(q.float(), k.float(), base, dim)  # all oracles make their tables in float32
    u = U[torch.float32]
    table = spread(angle_error(POSITIONS, dim, base, u) + 3 * u, layout, HEAD_DIM)
    for x, y, z in zip((q, k), got, expected, strict=True):
        assert y.dtype == dtype
        rounding = U[dtype] * z.abs().numpy()
        within(y, z, 2 * x.double().abs().max().numpy() * table + u * x.abs().double().numpy() + rounding)


def llama_turn(x, cos, sin):
    return llama.apply_rotary_pos_emb(x, x, *(torch.cat([t, t], dim=-1)[None] for t in (cos, sin)))[0]


def esm_turn(x, cos, sin):
    both = (torch.cat([t, t], dim=-1)[None] for t in (cos, sin))
    return esm.apply_rotary_pos_emb(x.flatten(0, 1), *both).view_as(x)


def gptj_turn(x, cos, sin):
    return gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin[None], cos[None]).transpose(1, 2)


def rotary_embedding_torch_turn(x, cos, sin):
    return apply_rotary_emb(torch.atan2(sin, cos).repeat_interleave(2, dim=-1), x)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("layout", "oracle"),
    [
        ("half", llama_turn),
        ("half", esm_turn),
        ("interleaved", gptj_turn),
        ("interleaved", rotary_embedding_torch_turn),
    ],
)
def test_rope_in_float64_with_exact_tables(layout, oracle, library):
    """Frequencies, angles and rotation to the last digits: the oracles rotate by tables made with 50 digits."""
    positions = [0, 1, 257, 4095, 131_071, 999_999]
    angles = exact_angles(positions, HEAD_DIM)
    cos, sin = (torch.from_numpy(exact(f, angles)) for f in (mpmath.cos, mpmath.sin))
    x = draw(1, BATCH, HEADS, len(positions), HEAD_DIM)
    ours, at = (x.numpy(), np.array(positions)) if library == "numpy" else (x, torch.tensor(positions))
    got = RoPE(HEAD_DIM, layout=layout).rotate(ours, ours[:, :KV_HEADS], q_positions=at, k_positions=at)[0]
    u = U[torch.float64]
    tolerance = spread(angle_error(positions, HEAD_DIM, 10000, u) + 8 * u, layout, HEAD_DIM)
    within(got, oracle(x, cos, sin), 2 * x.abs().max().item() * tolerance)


def test_interleaved_rotation_equals_the_matrix_of_equation_15():
    position, d = 1234, 6
    with mpmath.workdps(50):
        R = mpmath.zeros(d)
        for g in range(d // 2):
            angle = position * mpmath.mpf(10000) ** (-mpmath.mpf(2 * g) / d)
            R[2 * g, 2 * g] = R[2 * g + 1, 2 * g + 1] = mpmath.cos(angle)
            R[2 * g, 2 * g + 1], R[2 * g + 1, 2 * g] = -mpmath.sin(angle), mpmath.sin(angle)
        x = [3, -1, 4, 1, -5, 9]
        expected = [float(y) for y in R * mpmath.matrix(x)]
    cos, sin = cos_sin(np.array(position), inv_freq(d))
    got = rotate(np.array(x, dtype=float), cos, sin, layout="interleaved")
    within(got, np.array(expected), 2 * 9 * (angle_error([position], 1, 10000, 2.0**-53) + 3 * 2.0**-53))


# ---------------------------------------------------------------- converting weights


def projections():
    wq, wk = draw(3, HEADS * HEAD_DIM, 10), draw(4, KV_HEADS * HEAD_DIM, 10)
    return wq, wk


def by_permute_for_rope(weight, heads, inverse=False):
    settings = SimpleNamespace(num_attention_heads=heads)  # it takes this number for keys too, so tell it theirs
    return PermuteForRope(inverse=inverse).convert({"w": [weight]}, ["w"], ["w"], settings)["w"]


def by_gguf(weight, name):
    sizes = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    return LlamaTensorProcessor(sizes).process(weight.numpy(), f"blk.0.{name}.weight").weights


def test_conversion_equals_the_permutation_of_transformers():
    wq, wk = projections()
    for weight, heads, name in ((wq, HEADS, "attn_q"), (wk, KV_HEADS, "attn_k"), (wq[:, 0], HEADS, "attn_q")):
        half = convert_projection(weight, head_dim=HEAD_DIM, source="interleaved", target="half")
        assert torch.equal(half, by_permute_for_rope(weight, heads))
        assert np.array_equal(half.numpy(), by_gguf(weight, name))
        back = convert_projection(weight, head_dim=HEAD_DIM, source="half", target="interleaved")
        assert torch.equal(back, by_permute_for_rope(weight, heads, inverse=True))


@pytest.mark.parametrize("dim", [HEAD_DIM, PARTIAL])
def test_a_converted_model_keeps_its_logits(dim):
    """Logits of public interleaved rotation with given weights = those of public half-split with converted ones."""
    x = draw(5, BATCH, len(POSITIONS), 10, dtype=torch.float32)

    def project(weight):
        return (x @ weight.float().T).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)

    def logits(rotate_by, wq, wk):
        q, k = rotate_by(project(wq), project(wk), 10000, dim)
        return q @ k.repeat_interleave(HEADS // KV_HEADS, 1).mT

    moved = [convert_projection(w, head_dim=HEAD_DIM, source="interleaved", target="half", rotary_dim=dim)
             for w in projections()]  # fmt: skip
    before, after = logits(by_x_transformers, *projections()), logits(by_gpt_neox, *moved)
    # both make the same float32 table; left are the rotations and a sum of HEAD_DIM products in another order
    size = max(float(project(w).abs().max()) for w in projections()) ** 2 * HEAD_DIM
    within(before, after, 2 * (HEAD_DIM + 6) * U[torch.float32] * size)
    assert (logits(by_gpt_neox, *projections()) - before).abs().max() > 1  # without conversion: visibly another model


# ---------------------------------------------------------------- attention


def attention_error(q, k, v, dtype):
    """Logits are sums of head_dim products, weights sums of k_len exponentials, outputs sums of k_len products."""
    size = float((q.abs().max() * k.abs().max()) * math.sqrt(HEAD_DIM))
    u = max(U[dtype], U[torch.float32]) if dtype != torch.float64 else U[dtype]
    inside = U[torch.float64 if dtype == torch.float64 else torch.float32]
    return float(v.abs().max()) * (2 * inside * (2 * (HEAD_DIM + 2) * size + 2 * k.shape[2]) + (u if u > inside else 0))


def qkv(q_len, k_len, heads, kv_heads, dtype, seed=0):
    shapes = (heads, q_len), (kv_heads, k_len), (kv_heads, k_len)
    return tuple(draw(seed + i, BATCH, h, n, HEAD_DIM, dtype=dtype) for i, (h, n) in enumerate(shapes))


def as_library(library, *arrays):
    return [a.numpy() if library == "numpy" else a for a in arrays]


LIBRARIES = [("numpy", torch.float64), ("torch", torch.float64), ("torch", torch.float32), ("torch", torch.bfloat16)]


@pytest.mark.parametrize(("library", "dtype"), LIBRARIES)
@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
@pytest.mark.parametrize("masked", ["full", "causal", "random"])
def test_attention_equals_torch(masked, kv_heads, library, dtype):
    q, k, v = qkv(9, 9, HEADS, kv_heads, dtype)
    keep = torch.from_numpy(np.random.default_rng(7).random((BATCH, 1, 9, 9)) < 0.5) | torch.eye(9, dtype=torch.bool)
    mask = {"full": None, "causal": causal(torch.arange(9), torch.arange(9)), "random": keep}[masked]
    wide = dtype if dtype == torch.float64 else torch.float32
    expected = sdpa(
        q.to(wide), k.to(wide), v.to(wide), is_causal=masked == "causal", enable_gqa=True,
        attn_mask=keep if masked == "random" else None,
    )  # fmt: skip
    ours = as_library(library, q, k, v) + ([None] if mask is None else as_library(library, mask))
    got = attention(*ours[:3], mask=ours[3])
    assert tuple(got.shape) == tuple(q.shape) and str(got.dtype).endswith(str(dtype).removeprefix("torch."))
    within(got, expected, attention_error(q.double(), k.double(), v.double(), dtype))


@pytest.mark.parametrize(("library", "dtype"), LIBRARIES)
def test_attention_with_a_cache_equals_the_last_rows_of_torch(library, dtype):
    q, k, v = qkv(11, 11, HEADS, KV_HEADS, dtype)
    wide = dtype if dtype == torch.float64 else torch.float32
    full = sdpa(q.to(wide), k.to(wide), v.to(wide), is_causal=True, enable_gqa=True)
    new = torch.tensor(decode_positions(4, cache_len=7))
    ours = as_library(library, q[:, :, 7:], k, v, new, torch.arange(11))
    got = attention(*ours[:3], q_positions=ours[3], k_positions=ours[4], mask=causal(ours[3], ours[4]))
    within(got, full[:, :, 7:], attention_error(q.double(), k.double(), v.double(), dtype))


def test_attention_equals_equation_1_in_plain_python():
    q, k, v = qkv(2, 3, 2, 1, torch.float64)
    got = attention(q.numpy(), k.numpy(), v.numpy())
    for b, h, i in np.ndindex(BATCH, 2, 2):
        logits = [sum(map(float.__mul__, q[b, h, i].tolist(), key.tolist())) / HEAD_DIM**0.5 for key in k[b, 0]]
        weights = [math.exp(x) / sum(map(math.exp, logits)) for x in logits]
        expected = [sum(w * row[c].item() for w, row in zip(weights, v[b, 0], strict=True)) for c in range(HEAD_DIM)]
        within(got[b, h, i], np.array(expected), attention_error(q, k, v, torch.float64))
