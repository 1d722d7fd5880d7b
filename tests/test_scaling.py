"""Context extension: against transformers and two more packages, against the papers pair by pair, with the numbers
of public threads, by what each method promises, and by what is refused.
"""

import itertools
import math

import numpy as np
import pytest
import rotary_embedding_torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale
from x_transformers.x_transformers import RotaryEmbedding

from posenc_ref import attention
from posenc_ref.positions import causal
from posenc_ref.rotary.longrope_search import search
from posenc_ref.rotary.rope import RoPE, cos_sin, inv_freq, rotate
from posenc_ref.rotary.scaled import NTK, PI, ByParts, DynamicNTK, Llama3, LongRoPE, Proportional, ScaledRoPE, YaRN
from posenc_ref.rotary.scaling import (
    by_parts,
    dynamic_ntk,
    llama3,
    longrope,
    ntk_aware,
    ntk_base,
    position_interpolation,
    proportional,
    yarn,
    yarn_mscale,
)

EPS32 = float(np.finfo(np.float32).eps)
TRAINED = {"original_max_position": 2048}
METHODS = {
    "pi": (position_interpolation, {}),
    "ntk": (ntk_aware, {}),
    "dynamic": (dynamic_ntk, TRAINED | {"length": 4096}),
    "by_parts": (by_parts, TRAINED),
    "yarn": (yarn, TRAINED),
    "llama3": (llama3, TRAINED),
    "longrope": (longrope, TRAINED | {"length": 4096, "short_factor": [1.5] * 64, "long_factor": [3.0] * 64}),
    "proportional": (proportional, {"rotated": 64}),
}
SCALINGS = {
    "pi": PI(4),
    "ntk": NTK(4),
    "dynamic": DynamicNTK(4, 2048),
    "by_parts": ByParts(4, 2048),
    "yarn": YaRN(4, 2048),
    "llama3": Llama3(4, 2048),
    "longrope": LongRoPE([1.5] * 64, [3.0] * 64, 4, 2048),
    "proportional": Proportional(64, 4),
}


def frequencies(method, rotary_dim=128, **changes):
    function, arguments = METHODS[method]
    return function(rotary_dim, **({"factor": 4, "base": 10000.0} | arguments | changes))


# -- other implementations -------------------------------------------------------------------------------------

CONFIGURATIONS = list(itertools.product((16, 128), (1.0, 0.5), (10000.0, 500000.0), (1, 16 / 3, 40)))
ORIGINALS = (256, 4096, 131072)


def transformers(kind, head_dim, base, *, length=None, max_position=4096, partial=1.0, **parameters):
    parameters |= {"rope_type": kind, "rope_theta": base, "partial_rotary_factor": partial}
    config = LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
        max_position_embeddings=max_position, rope_parameters=parameters,
    )  # fmt: skip
    theta, factor = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=length)
    return theta.numpy(), factor


def assert_float32(ours, theirs, base, growth=1.0):
    """Ours in float64 is theirs in float32: their powers err by ln(base)/2 + 4 roundings; a ramp passes these on to
    the share of a pair that stays, which counts ``growth`` times in the frequency."""
    assert ours[0].dtype == np.float64
    assert_allclose(theirs[0], ours[0], rtol=(math.log(base) / 2 + 4) * EPS32 * growth)
    assert_allclose(ours[1], theirs[1], rtol=1e-12)


def test_position_interpolation_equals_three_packages():
    for head_dim, partial, base, factor in CONFIGURATIONS:
        d = int(head_dim * partial)
        ours = position_interpolation(d, factor=factor, base=base)
        assert_float32(ours, transformers("linear", head_dim, base, partial=partial, factor=factor), base)
        one, _ = RotaryEmbedding(d, interpolation_factor=factor, base=base)(torch.tensor([1000]))
        rotary = rotary_embedding_torch.RotaryEmbedding(d, interpolate_factor=factor, theta=base)
        two = rotary(rotary.get_seq_pos(1, offset=1000))
        for angles in (one[0, 0, ::2], two[0, ::2]):
            assert_float32((1000 * ours[0], 1.0), (angles.detach().numpy(), 1.0), base)


def test_ntk_aware_equals_two_packages():
    for head_dim, _, base, factor in CONFIGURATIONS:
        ours = ntk_aware(head_dim, factor=factor, base=base)
        one = RotaryEmbedding(head_dim, base=base, base_rescale_factor=factor).inv_freq
        two = rotary_embedding_torch.RotaryEmbedding(head_dim, theta=base, theta_rescale_factor=factor).freqs.detach()
        for theirs in (one, two):
            assert_float32(ours, (theirs.numpy(), 1.0), ntk_base(head_dim, factor=factor, base=base))


@pytest.mark.parametrize("length", [None, 1, 256, 4097, 10**6])
def test_dynamic_ntk_equals_transformers(length):
    for (head_dim, partial, base, factor), original in itertools.product(CONFIGURATIONS, ORIGINALS):
        d = int(head_dim * partial)
        same = {"partial": partial, "factor": factor}
        theirs = transformers("dynamic", head_dim, base, length=length, max_position=original, **same)
        ours = dynamic_ntk(d, factor=factor, base=base, original_max_position=original, length=length or original)
        assert_float32(ours, theirs, ours[0][-1] ** (-d / (d - 2)))  # the base it must have come from


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_equals_transformers(truncate):
    betas = ((32, 1), (16, 2), (64, 0.5))
    for (head_dim, partial, base, factor), original, (fast, slow) in itertools.product(
        CONFIGURATIONS, ORIGINALS, betas
    ):
        same = {"factor": factor, "beta_fast": fast, "beta_slow": slow, "truncate": truncate}
        theirs = transformers(
            "yarn", head_dim, base, partial=partial, original_max_position_embeddings=original, **same
        )
        ours = yarn(int(head_dim * partial), base=base, original_max_position=original, **same)
        assert_float32(ours, theirs, base, factor)


@pytest.mark.parametrize("length", [None, 256, 257, 10**6])
def test_longrope_equals_transformers(length):
    rng = np.random.default_rng(0)
    for (head_dim, partial, base, factor), original in itertools.product(CONFIGURATIONS, ORIGINALS):
        d = int(head_dim * partial)
        same = {"short_factor": rng.uniform(1, 2, d // 2).tolist(), "long_factor": rng.uniform(2, 60, d // 2).tolist()}
        for explicit in (None, 1.19):
            same |= {"factor": factor, "attention_factor": explicit}
            old = {"original_max_position_embeddings": original}
            theirs = transformers("longrope", head_dim, base, length=length, partial=partial, **old, **same)
            ours = longrope(d, base=base, original_max_position=original, length=length or 1, **same)
            assert_float32(ours, theirs, base)


def test_llama3_equals_transformers_and_the_three_cases():
    def cases(theta, factor, low, high, original):
        wavelength = 2 * math.pi / theta
        if wavelength < original / high:
            return theta
        if wavelength > original / low:
            return theta / factor
        smooth = (original / wavelength - low) / (high - low)
        return (1 - smooth) * theta / factor + smooth * theta

    for (head_dim, partial, base, factor), original in itertools.product(CONFIGURATIONS, ORIGINALS):
        for low, high in ((1, 4), (0.5, 32), (2, 2.5), (1, 1)):
            d = int(head_dim * partial)
            same = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
            old = {"original_max_position_embeddings": original}
            theirs = transformers("llama3", head_dim, base, partial=partial, **old, **same)
            ours = llama3(d, base=base, original_max_position=original, **same)
            steepness = high / (high - low) if low < high else 1  # equal: a step
            assert_float32(ours, theirs, base, factor * steepness)
            expected = [cases(theta, factor, low, high, original) for theta in inv_freq(d, base=base)]
            assert_allclose(ours[0], expected, rtol=1e-12)


def test_proportional_equals_transformers():
    for head_dim, _, base, factor in CONFIGURATIONS:
        for partial in (1.0, 0.75, 0.5, 0.25):
            ours = proportional(head_dim, rotated=int(head_dim * partial), factor=factor, base=base)
            assert_float32(ours, transformers("proportional", head_dim, base, partial=partial, factor=factor), base)


def test_rotations_ramp_is_the_papers_pair_by_pair():
    for (d, _, base, s), original in itertools.product(CONFIGURATIONS, ORIGINALS):
        ours, _ = by_parts(d, factor=s, original_max_position=original, base=base, ramp="rotations")
        for g in range(d // 2):
            theta = base ** (-2 * g / d)
            r = original / (2 * math.pi * base ** (2 * g / d))  # equation 10
            gamma = 0 if r < 1 else 1 if r > 32 else (r - 1) / (32 - 1)  # equation 11
            assert math.isclose(ours[g], (1 - gamma) * theta / s + gamma * theta, rel_tol=1e-12)  # equation 13


def test_deepseek_softmax_scale_equals_transformers():
    for s, m in itertools.product((1, 4, 40), (0.0, 0.707, 1.0)):
        theirs = yarn_apply_mscale({"rope_type": "yarn", "factor": s, "mscale_all_dim": m}, 192**-0.5)
        rope = ScaledRoPE(64, "half", YaRN(s, 4096, mscale_all_dim=m))
        assert math.isclose(rope.logit_scale(192), theirs, rel_tol=1e-12)


# -- where implementations and papers disagree -----------------------------------------------------------------


def test_the_ramps_of_paper_and_code_are_two_methods():
    """At d = 128, base 10000, L0 = 4096 the code's frequencies are above the paper's by up to 73 % (s = 4) and 204 %
    (s = 16)."""
    for s, difference in ((4, 0.73), (16, 2.04)):
        code, paper = (
            by_parts(128, factor=s, original_max_position=4096, ramp=r)[0] for r in ("dim", "rotations")
        )  # fmt: skip
        assert round((code / paper - 1).max(), 2) == difference


def test_truncation_alone_matters():
    """At d = 128, base 10000, L0 = 2048 it moves a frequency by 9 % (s = 4) to 76 % (s = 32)."""
    for s, difference in ((4, 0.09), (32, 0.76)):
        a, b = (by_parts(128, factor=s, original_max_position=2048, truncate=t)[0] for t in (True, False))
        assert round(abs(a / b - 1).max(), 2) == difference


def test_transformers_ignores_mscale_on_its_own():
    """DeepSeek's code has m(mscale)/m(mscale_all_dim) with mscale_all_dim = 0 if absent; transformers wants both."""
    _, theirs = transformers("yarn", 64, 10000.0, factor=40, original_max_position_embeddings=4096, mscale=0.707)
    _, ours = yarn(64, factor=40, original_max_position=4096, mscale=0.707)
    assert math.isclose(theirs, 0.1 * math.log(40) + 1)
    assert math.isclose(ours, 0.1 * 0.707 * math.log(40) + 1)


def test_transformers_inverts_an_empty_ramp():
    """If the clamped range ends before it begins, its ramp runs backwards: with L0 = 10^12 every pair of 8 channels
    turns more than 32 times and should stay, and with L0 = 2 none turns once and all but pair 0 should be divided."""
    for original, right, wrong in ((10**12, [1, 1, 1, 1], [4, 4, 4, 4]), (2, [1, 4, 4, 4], [1, 1, 1, 1])):
        theta = inv_freq(8)
        same = {"factor": 4, "truncate": False}
        theirs, _ = transformers("yarn", 8, 10000.0, original_max_position_embeddings=original, **same)
        ours, _ = by_parts(8, original_max_position=original, **same)
        assert_allclose(theta / ours, right, rtol=1e-12)
        assert_allclose(theta / theirs, wrong, rtol=1e-5)


# -- numbers of public threads ---------------------------------------------------------------------------------


def test_pi_divides_positions():  # llama.cpp 2019 and 2054, exllama 158, mlx-lm 1553
    theta, _ = position_interpolation(4, factor=4)
    assert_allclose(6 * theta, [1.5, 0.015], rtol=1e-12)
    assert not np.allclose(6 * theta, [24.0, 0.24])  # multiplied


def test_ntk_base_has_the_exponent():  # exllama 115 and 118
    bases = [ntk_base(128, factor=alpha) for alpha in (2.0, 4.0, 8.0)]
    assert_allclose(bases, [20221.2617, 40889.9424, 82684.6226], rtol=1e-8)
    assert not np.isclose(bases, [20000.0, 40000.0, 80000.0], rtol=1e-3).any()


def test_dynamic_ntk_base_by_length():  # vllm 5093, 3488 and 41301, transformers 25104, mlx-lm 1553
    lengths = (1024, 2048, 2049, 4096, 8192)
    last = [dynamic_ntk(128, factor=2, original_max_position=2048, length=n)[0][-1] for n in lengths]
    bases = np.array(last) ** (-128 / 126)
    assert_allclose(bases, [10000.0, 10000.0, 10009.9207, 30527.7367, 72195.8601], rtol=1e-8)
    assert len(set(bases.round())) == 4  # a static table has one base, a dropped factor leaves 10000


def test_yarn_frequencies():  # torchtitan 3787, tvm 18576, aprender 2161, minimind 602
    same = {"factor": 4.0, "original_max_position": 2048}
    theta, factor = yarn(16, **same)
    expected = [1.0, 0.316227766, 0.1, 0.025693506, 0.00625, 0.00138349648, 0.00025, 7.90569415e-05]
    assert_allclose(theta, expected, rtol=1e-8)
    assert_allclose((1 - theta / inv_freq(16)) / (1 - 1 / 4), [0, 0, 0, 0.25, 0.5, 0.75, 1, 1], atol=1e-12)  # the ramp
    assert math.isclose(factor, 1.13862944, rel_tol=1e-8)
    exact = [1.0, 0.316227766, 0.1, 0.0238701923, 0.00505697152, 0.000811290382, 0.00025, 7.90569415e-05]
    assert_allclose(yarn(16, truncate=False, **same)[0], exact, rtol=1e-8)
    for wrong in (
        [0.25, 0.0790569415, 0.025, 0.00790569415, 0.00625, 0.00316227766, 0.001, 0.000316227766],  # betas swapped
        [1.0, 0.316227766, 0.1, 0.0284178363, 0.0075, 0.0017877499, 0.000353553391, 9.40150773e-05],  # s in the power
        [1.0, 0.259412817, 0.0672950096, 0.0150693146, 0.00351430916, 0.00088662247, 0.00025, 7.90569415e-05],  # NTK
    ):
        assert not np.allclose(theta, wrong, rtol=1e-3, atol=0)


def test_yarn_mscale():  # vllm 46280, sglang 33558, TensorRT-LLM 16379, exllamav3 259, mlx-lm 1507
    factors = (1, 4, 8, 16, 32, 40, 64, 128)
    expected = [1.0, 1.13862944, 1.20794415, 1.27725887, 1.34657359, 1.36888795, 1.41588831, 1.48520303]
    ours = [yarn(64, factor=s, original_max_position=4096)[1] for s in factors]
    assert_allclose(ours, expected, rtol=1e-8)
    assert not np.isclose(ours, [2.20582803]).any()  # squared at s = 128
    assert not np.isclose(ours, [1.58885139]).any()  # the logarithm twice at s = 64
    deepseek = YaRN(factor=40, original_max_position=4096, mscale=1.0, mscale_all_dim=1.0)
    assert deepseek.inv_freq(64)[1] == 1.0
    assert math.isclose(deepseek.logit_factor, 1.87385421, rel_tol=1e-8)
    explicit = YaRN(factor=40, original_max_position=4096, mscale=0.5, mscale_all_dim=1.0, attention_factor=1.25)
    assert explicit.inv_freq(64)[1] == 1.25  # verbatim
    assert math.isclose(explicit.logit_factor, 1.87385421, rel_tol=1e-8)  # of the softmax scale, which it leaves


# -- what each method promises ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pi", "ntk", "by_parts", "yarn", "llama3", "longrope", "proportional"])
def test_factor_one_is_plain_rope(method):
    same = {"short_factor": [1.0] * 64, "long_factor": [1.0] * 64} if method == "longrope" else {}
    if method == "proportional":
        same = {"rotated": 128}
    theta, factor = frequencies(method, factor=1, **same)
    assert_allclose(theta, inv_freq(128), rtol=1e-14)
    assert factor == 1.0


@pytest.mark.parametrize("method", METHODS)
def test_frequencies_lie_between_plain_and_interpolated(method):
    theta, factor = frequencies(method)
    turning = theta[: 32 if method == "proportional" else 64]
    ratio = inv_freq(128)[: len(turning)] / turning
    largest = 10 if method == "dynamic" else 4  # NTK by 1 + 4·(4096/2048 − 1) = 5
    assert (ratio >= 1 - 1e-12).all() and (ratio <= largest * (1 + 1e-12)).all() and (np.diff(turning) < 0).all()
    assert ratio[-1] > 1.5  # something is scaled
    assert factor == {"yarn": yarn_mscale(4), "longrope": math.sqrt(1 + math.log(4) / math.log(2048))}.get(method, 1.0)


def test_interpolated_position_4096_has_the_angles_of_2048():
    theta, _ = position_interpolation(128, factor=2)
    for ours, plain in zip(cos_sin(np.array(4096), theta), cos_sin(np.array(2048), inv_freq(128)), strict=True):
        assert_array_equal(ours, plain)  # halving is exact


def test_ntk_divides_the_last_pair_by_the_factor_and_leaves_the_first():
    for d, s in itertools.product((4, 64, 128), (1.5, 4, 40)):
        ratio = inv_freq(d) / ntk_aware(d, factor=s)[0]
        assert ratio[0] == 1
        assert math.isclose(ratio[-1], s, rel_tol=1e-12)
        assert_allclose(ratio, s ** (np.arange(0, d, 2) / (d - 2)), rtol=1e-12)  # all but the first change


@pytest.mark.parametrize("ramp", ["dim", "rotations"])
def test_yarn_leaves_fast_pairs_and_interpolates_slow_ones(ramp):
    turns = 4096 * inv_freq(128) / (2 * math.pi)
    theta, _ = yarn(128, factor=8, original_max_position=4096, ramp=ramp, truncate=False)
    ratio = inv_freq(128) / theta
    assert_array_equal(ratio[turns >= 32], 1)
    assert_allclose(ratio[turns <= 1], 8, rtol=1e-14)
    between = ratio[(turns > 1) & (turns < 32)]
    assert len(between) > 10 and (between > 1).all() and (between < 8).all() and (np.diff(between) > 0).all()


def test_dynamic_ntk_starts_after_the_original_length():
    plain = inv_freq(128)
    for length in (1, 2047, 2048):
        for factor in (1, 4, 1e17):
            theta, _ = dynamic_ntk(128, factor=factor, original_max_position=2048, length=length)
            assert_array_equal(theta, plain)
    assert (dynamic_ntk(128, factor=4, original_max_position=2048, length=2049)[0][1:] < plain[1:]).all()
    paper, _ = dynamic_ntk(128, factor=1, original_max_position=2048, length=6144)  # s = l'/L, section 3.4
    assert_allclose(paper, ntk_aware(128, factor=3)[0], rtol=1e-12)


def test_longrope_switches_above_the_original_length():
    for length, expected in ((1, 1.5), (2047, 1.5), (2048, 1.5), (2049, 3.0), (10**6, 3.0)):
        theta, _ = frequencies("longrope", length=length)
        assert_allclose(inv_freq(128) / theta, expected, rtol=1e-14)


def test_rotary_dim_alone_decides():
    """Partial rotary: the frequencies of 64 turning channels are those of a head of 64, however wide the head."""
    k = np.random.default_rng(0).normal(size=(1, 1, 3, 128))
    wide = ScaledRoPE(128, "half", YaRN(4, 2048), rotary_dim=64)
    narrow = ScaledRoPE(64, "half", YaRN(4, 2048))
    turned = wide.rotate_keys(k, np.arange(3))
    assert_array_equal(turned[..., :64], narrow.rotate_keys(k[..., :64], np.arange(3)))
    assert_array_equal(turned[..., 64:], k[..., 64:])  # the attention factor leaves the others alone


# -- the encoding ----------------------------------------------------------------------------------------------


def qkv(seq=7, head_dim=128, heads=4, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, heads, seq, head_dim)), *(rng.normal(size=(2, 2, seq, head_dim)) for _ in range(2))]


@pytest.mark.parametrize("method", METHODS)
def test_each_class_is_its_function(method):
    expected = frequencies(method)
    theta, factor = SCALINGS[method].inv_freq(128, 10000.0, length=4096)
    assert_array_equal(theta, expected[0])
    assert factor == expected[1]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_factor_one_attends_as_rope(layout):
    q, k, v = qkv()
    p = {"q_positions": np.arange(7), "k_positions": np.arange(7)}
    plain = attention(q, k, v, encoding=RoPE(128, layout), **p)
    assert_allclose(attention(q, k, v, encoding=ScaledRoPE(128, layout, YaRN(1, 2048)), **p), plain, atol=1e-12)


def test_attention_factor_squared_is_the_inverse_temperature():
    """softmax(q·k/(t√d)) with √(1/t) = 0.1 ln s + 1: cos and sin carry it, and DeepSeek's softmax scale as well."""
    q, k, v = qkv()
    p = {"q_positions": np.arange(7), "k_positions": np.arange(7)}
    s, t = 16, (0.1 * math.log(16) + 1) ** -2
    assert t < 1  # sharper
    unscaled = attention(q / t, k, v, encoding=ScaledRoPE(128, "half", ByParts(s, 2048)), **p)
    on_cos_and_sin = ScaledRoPE(128, "half", YaRN(s, 2048))
    on_the_softmax = ScaledRoPE(128, "half", YaRN(s, 2048, mscale=1.0, mscale_all_dim=1.0))
    for encoding in (on_cos_and_sin, on_the_softmax):
        assert_allclose(attention(q, k, v, encoding=encoding, **p), unscaled, atol=1e-12)
    assert math.isclose(on_the_softmax.logit_scale(128), 1 / (t * math.sqrt(128)))


def test_with_partial_rotary_only_the_softmax_scale_reaches_all_channels():
    q, k, v = qkv()
    p = {"q_positions": np.arange(7), "k_positions": np.arange(7)}
    t = (0.1 * math.log(16) + 1) ** -2
    right = attention(q / t, k, v, encoding=ScaledRoPE(128, "half", ByParts(16, 2048), rotary_dim=64), **p)
    plain = ScaledRoPE(128, "half", YaRN(16, 2048), rotary_dim=64)
    deepseek = ScaledRoPE(128, "half", YaRN(16, 2048, mscale=1.0, mscale_all_dim=1.0), rotary_dim=64)
    assert abs(attention(q, k, v, encoding=plain, **p) - right).max() > 0.01
    assert_allclose(attention(q, k, v, encoding=deepseek, **p), right, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_decoding_and_shifting_change_nothing(method):
    q, k, v = qkv()
    rope = ScaledRoPE(128, "half", SCALINGS[method]).at(7)
    p = np.arange(7)
    full = attention(q, k, v, encoding=rope, q_positions=p, k_positions=p, mask=causal(p, p))
    far = attention(q, k, v, encoding=rope, q_positions=p + 10**6, k_positions=p + 10**6, mask=causal(p, p))
    assert_allclose(far, full, atol=1e-8)  # a float64 angle near 10^6 errs by 10^-10
    for t in range(7):
        one = attention(
            q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1],
            encoding=rope, q_positions=p[t : t + 1], k_positions=p[: t + 1],
        )  # fmt: skip
        assert_allclose(one[:, :, 0], full[:, :, t], atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_turned_keys_are_cached_only_if_every_length_turns_them_alike(method):
    q, k, _ = qkv()
    rope = ScaledRoPE(128, "half", SCALINGS[method])
    if method in ("dynamic", "longrope"):
        for encoding in (rope, rope.at(4097)):
            with pytest.raises(ValueError, match=f"cached before .* got {type(SCALINGS[method]).__name__}"):
                encoding.rotate_keys(k, np.arange(7))
        with pytest.raises(ValueError, match=r"length must be given.* got None"):
            rope.rotate(q, k, q_positions=np.arange(7), k_positions=np.arange(7))
    else:
        both = rope.rotate(q, k, q_positions=np.arange(7), k_positions=np.arange(7))
        assert_array_equal(rope.rotate_queries(q, np.arange(7)), both[0])
        assert_array_equal(rope.rotate_keys(k, np.arange(7)), both[1])


def test_what_caching_turned_keys_under_dynamic_ntk_would_cost():
    """Between lengths 4097 and 8192 (s = 2, L0 = 4096, d = 128) the key at position 4096 moves on by up to 172 rad."""
    rope = ScaledRoPE(128, "half", DynamicNTK(2, 4096))
    early, late = (rope.at(length).inv_freq()[0] for length in (4097, 8192))
    assert round(abs(4096 * (early - late)).max()) == 172
    k = np.random.default_rng(0).normal(size=(1, 1, 1, 128))
    p = np.array([4096])
    cached, right = (rope.at(length).rotate(k, k, q_positions=p, k_positions=p)[1] for length in (4097, 8192))
    assert abs(cached - right).max() > 1
    # rotations add up, so such a key can still be brought up to date
    assert_allclose(rotate(cached, *cos_sin(p, late - early), layout="half"), right, atol=1e-9)


@pytest.mark.parametrize("method", ["dynamic", "longrope"])
def test_no_call_remembers_another_and_no_row_another_row(method):
    rope = ScaledRoPE(128, "half", SCALINGS[method])
    q, k, _ = qkv()
    rows = np.stack([np.arange(7), np.arange(5000, 5007)])  # a short text beside a long one

    def turn(length, q=q, k=k, rows=rows):
        return rope.at(length).rotate(q, k, q_positions=rows, k_positions=rows)

    before = turn(7)
    turn(8192)
    for a, b, alone in zip(before, turn(7), turn(7, q[:1], k[:1], rows[:1]), strict=True):
        assert_array_equal(a, b)
        assert_array_equal(a[:1], alone)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_torch_equals_numpy(method, dtype):
    q, k, _ = qkv()
    rope = ScaledRoPE(128, "interleaved", SCALINGS[method]).at(10**6)
    p = np.array([0, 1, 2, 4095, 4096, 131071, 999999])
    q, k = (torch.tensor(x, dtype=dtype) for x in (q, k))
    ours = rope.rotate(q, k, q_positions=torch.tensor(p), k_positions=torch.tensor(p))
    expected = rope.rotate(*(x.double().numpy() for x in (q, k)), q_positions=p, k_positions=p)
    eps, table = torch.finfo(dtype).eps, min(torch.finfo(dtype).eps, EPS32)
    for y, exact in zip(ours, expected, strict=True):
        assert y.dtype == dtype
        # the result is rounded once, and tables and products in float32 at least
        assert (abs(y.double().numpy() - exact) <= eps / 2 * abs(exact) + 6 * table * abs(exact).max()).all()


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_compiled_it_is_one_graph_with_float64_frequencies():
    """NumPy's lines inside a compiled function would run in float32: 0.05 off at position 10^6."""
    rope = ScaledRoPE(128, "half", YaRN(4, 2048))
    q, k = (torch.tensor(x) for x in qkv()[:2])
    p = {"q_positions": torch.arange(7) + 999_990, "k_positions": torch.arange(7)}
    for a, b in zip(
        torch.compile(rope.rotate, fullgraph=True, backend="eager")(q, k, **p), rope.rotate(q, k, **p), strict=True
    ):
        assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-14)


def test_inputs_are_left_alone():
    q, k, _ = qkv()
    before = q.copy(), k.copy()
    p = np.arange(7)
    ScaledRoPE(128, "half", YaRN(4, 2048)).rotate(q, k, q_positions=p, k_positions=p)
    for x, y in zip((q, k, p), (*before, np.arange(7)), strict=True):
        assert_array_equal(x, y)


# -- the search ------------------------------------------------------------------------------------------------


def starts(pairs, factor):
    """The factors of PI, NTK-aware and YaRN."""
    d = 2 * pairs
    scaled = (PI(factor), NTK(factor), YaRN(factor, 4096))
    return [inv_freq(d) / scaling.inv_freq(d)[0] for scaling in scaled]


def toy(pairs, factor, calls=None):
    goal = np.sort(np.random.default_rng(5).uniform(1, factor, pairs))

    def score(factors):
        if calls is not None:
            calls.append(factors.copy())
        return float(np.square(np.log(factors / goal)).sum())

    return score


def test_search_beats_its_starts_and_keeps_the_rules():
    calls: list = []
    found = search(toy(16, 8, calls), factor=8, starts=starts(16, 8), rng=np.random.default_rng(0))
    score = toy(16, 8)
    assert found.score < 0.2 * min(score(s) for s in starts(16, 8))
    assert math.isclose(found.score, score(found.factors)) and found.score == min(map(score, calls))
    tried = np.array(calls)
    assert found.evaluations == len(calls) == len(np.unique(tried, axis=0)) <= 64 + 40 * 32
    assert (np.diff(tried, axis=1) >= 0).all()  # λ_g ≤ λ_{g+1}
    assert tried.min() >= 1 and tried.max() <= 1.25 * 8 and tried.max() > 8
    assert_allclose(tried * 100, np.rint(tried * 100), atol=1e-9)  # steps of 0.01
    assert len(found.history) == 41 and (np.diff(found.history) <= 0).all()
    for start in starts(16, 8):  # they are in the first population, on the grid
        assert (abs(tried[:64] - start).max(axis=1) < 0.0051).any()


def test_search_is_repeatable_and_finds_what_it_started_with():
    one, two, other = (
        search(toy(8, 4), factor=4, starts=starts(8, 4), rng=np.random.default_rng(seed), iterations=5)
        for seed in (0, 0, 1)
    )  # fmt: skip
    assert_array_equal(one.factors, two.factors)
    assert one.history == two.history
    assert one.history != other.history
    best = np.array([1, 1.5, 2, 4])
    kept = search(lambda x: abs(x - best).sum(), factor=4, starts=[best], rng=np.random.default_rng(0), iterations=2)
    assert_array_equal(kept.factors, best)


def test_search_takes_nan_for_the_worst():
    score = toy(8, 4)
    rng = np.random.default_rng(0)
    found = search(lambda x: score(x) if x[0] > 1.1 else math.nan, factor=4, starts=starts(8, 4), rng=rng)
    assert found.factors[0] > 1.1 and math.isfinite(found.score)
    with pytest.raises(ValueError, match=r"score must be finite .* got inf"):
        search(lambda x: math.nan, factor=4, starts=starts(8, 4), rng=rng)


def test_search_result_goes_into_longrope():
    found = search(toy(64, 4), factor=4, starts=starts(64, 4), rng=np.random.default_rng(0), iterations=1)
    scaling = LongRoPE(tuple(np.ones(64)), tuple(found.factors), factor=4, original_max_position=2048)
    assert_allclose(inv_freq(128) / scaling.inv_freq(128, length=2049)[0], found.factors, rtol=1e-14)


# -- errors ----------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
WITH_ORIGINAL = [method for method, (_, arguments) in METHODS.items() if "original_max_position" in arguments]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        *(("factor", v, ValueError) for v in (0.5, 0, -4, NAN, INF)),
        *(("factor", v, TypeError) for v in (None, "4", True, 4j)),
        *(("rotary_dim", v, ValueError) for v in (0, -2, 7)),
        *(("rotary_dim", v, TypeError) for v in (128.0, None)),
        *(("base", v, ValueError) for v in (1, 0, -10, NAN, INF)),
        ("base", None, TypeError),
    ],
)  # fmt: skip
def test_common_arguments_are_checked(method, argument, value, error):
    changes = {argument: value}
    with pytest.raises(error, match=f"{argument} must be .*got {value!r}|{argument} must be .*got {value}"):
        frequencies(method, **changes)


@pytest.mark.parametrize(
    ("method", "changes", "error", "message"),
    [
        ("ntk", {"rotary_dim": 2}, ValueError, "rotary_dim must be at least 4 .* got 2"),
        ("ntk", {"factor": 1e300, "rotary_dim": 4}, ValueError, "factor is too large .* got 1e\\+300"),
        *((m, {"original_max_position": 0}, ValueError, "original_max_position .* got 0") for m in WITH_ORIGINAL),
        *((m, {"original_max_position": 2048.0}, TypeError, "original_max_position .* 2048.0") for m in WITH_ORIGINAL),
        *((m, {"length": 0}, ValueError, "length must be at least 1, got 0") for m in ("dynamic", "longrope")),
        *((m, {"length": None}, TypeError, "length must be an integer, got None") for m in ("dynamic", "longrope")),
        ("by_parts", {"beta_fast": 1, "beta_slow": 32}, ValueError, "beta_fast must be at least beta_slow = 32, got 1"),
        ("by_parts", {"beta_slow": 0}, ValueError, "beta_slow must be .* above 0, got 0"),
        ("by_parts", {"beta_fast": NAN}, ValueError, "beta_fast must be .* got nan"),
        ("yarn", {"ramp": "linear"}, ValueError, "ramp must be one of 'dim', 'rotations', got 'linear'"),
        ("yarn", {"truncate": "no"}, TypeError, "truncate must be .* got 'no'"),
        ("yarn", {"mscale": -1}, ValueError, "mscale must be .* got -1"),
        ("yarn", {"attention_factor": 0}, ValueError, "attention_factor must be .* got 0"),
        ("longrope", {"attention_factor": NAN}, ValueError, "attention_factor must be .* got nan"),
        ("longrope", {"original_max_position": 1}, ValueError, "original_max_position must be at least 2, got 1"),
        ("longrope", {"long_factor": [1.0] * 63}, ValueError, "long_factor must have .* 64 pairs, got shape \\(63,\\)"),
        ("longrope", {"short_factor": [0.0] * 64}, ValueError, "short_factor must be finite and above 0, got"),
        ("longrope", {"short_factor": [NAN] * 64}, ValueError, "short_factor must be finite and above 0, got"),
        ("llama3", {"low_freq_factor": 5, "high_freq_factor": 4}, ValueError, "high_freq_factor must be .* got 4"),
        ("llama3", {"low_freq_factor": -1}, ValueError, "low_freq_factor must be .* got -1"),
        ("proportional", {"rotated": 130}, ValueError, "rotary_dim must be at most head_dim = 128, got 130"),
        ("proportional", {"rotated": 3}, ValueError, "must be even, got 3"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(method, changes, error, message):
    with pytest.raises(error, match=message):
        frequencies(method, **changes)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"head_dim": 0}, ValueError, "head_dim must be at least 1, got 0"),
        ({"layout": "split"}, ValueError, "layout must be one of .* got 'split'"),
        ({"rotary_dim": 130}, ValueError, "rotary_dim must be at most head_dim = 128, got 130"),
        ({"scaling": "yarn"}, TypeError, "scaling must be a Scaling .* got 'yarn'"),
        ({"scaling": PI(0.5)}, ValueError, "factor must be .* got 0.5"),
        ({"scaling": LongRoPE([1.0], [1.0], 4, 2048)}, ValueError, "short_factor .* got shape \\(1,\\)"),
        ({"scaling": DynamicNTK(4, 2048), "length": 0}, ValueError, "length must be at least 1, got 0"),
        ({"base": NAN}, ValueError, "base must be .* got nan"),
    ],
)
def test_the_encoding_is_checked_when_made(arguments, error, message):
    with pytest.raises(error, match=message):
        ScaledRoPE(**({"head_dim": 128, "layout": "half", "scaling": PI(4)} | arguments))


def test_shapes_are_checked():
    rope = ScaledRoPE(8, "half", PI(4))
    x, p = np.ones((1, 2, 3, 8)), np.arange(3)
    with pytest.raises(ValueError, match=r"k must be \(batch, heads, seq, head_dim = 8\), got shape \(1, 2, 3, 6\)"):
        rope.rotate_keys(x[..., :6], p)
    with pytest.raises(ValueError, match=r"q_positions must have shape \(3,\) or \(1, 3\), got \(2,\)"):
        rope.rotate_queries(x, p[:2])
    with pytest.raises(TypeError, match=r"q_positions must be .* got float16"):
        rope.rotate_queries(x, p.astype(np.float16))
    with pytest.raises(TypeError, match="k must be floating point, got int64"):
        rope.rotate_keys(x.astype(np.int64), p)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0.5}, "factor must be .* got 0.5"),
        ({"starts": []}, "starts must be one or more arrays"),
        ({"starts": [np.ones(3), np.ones(4)]}, r"starts must be .* got \[\(3,\), \(4,\)\]"),
        ({"starts": [np.full(3, NAN)]}, "starts must be finite, got"),
        ({"population": 0}, "population must be at least 1, got 0"),
        ({"mutation_probability": 1.5}, "mutation_probability must be at most 1, got 1.5"),
        ({"step": 0}, "step must be .* above 0, got 0"),
        ({"step": 1e-12}, "step must be at least .* got 1e-12"),
    ],
)
def test_search_arguments_are_named(changes, message):
    arguments = {"factor": 4, "starts": [np.ones(3)], "rng": np.random.default_rng(0)}
    with pytest.raises(ValueError, match=message):
        search(lambda x: 0.0, **(arguments | changes))


SMALL = st.integers(-2, 300)
ANY = st.one_of(st.floats(), st.floats(1, 100), SMALL, st.none(), st.booleans(), st.just("4"))
FUZZED = {
    "rotary_dim": SMALL, "factor": ANY, "base": st.one_of(ANY, st.floats(2, 1e6)),
    "original_max_position": st.one_of(SMALL, st.integers(1, 2**63), ANY),
    "length": st.one_of(st.integers(0, 2**63), ANY),
    "beta_fast": ANY, "beta_slow": ANY, "ramp": st.sampled_from(["dim", "rotations", "paper", None]),
    "truncate": st.one_of(st.booleans(), ANY), "mscale": ANY, "mscale_all_dim": ANY, "attention_factor": ANY,
    "low_freq_factor": ANY, "high_freq_factor": ANY, "rotated": st.one_of(SMALL, ANY),
}  # fmt: skip
ACCEPTS = {
    "pi": (), "ntk": (), "dynamic": ("original_max_position", "length"),
    "by_parts": ("original_max_position", "beta_fast", "beta_slow", "ramp", "truncate"),
    "yarn": ("original_max_position", "beta_fast", "ramp", "mscale", "mscale_all_dim", "attention_factor"),
    "llama3": ("original_max_position", "low_freq_factor", "high_freq_factor"),
    "longrope": ("original_max_position", "length", "attention_factor"), "proportional": ("rotated",),
}  # fmt: skip


@settings(max_examples=200)
@given(st.data())
def test_right_or_refused(data):
    """Whatever comes in: frequencies from 0 to those of RoPE and a positive factor, or an error that shows a value."""
    method = data.draw(st.sampled_from(sorted(METHODS)))
    names = data.draw(
        st.lists(st.sampled_from(["rotary_dim", "factor", "base", *ACCEPTS[method]]), unique=True, max_size=3)
    )
    changes = {name: data.draw(FUZZED[name], label=name) for name in names}
    try:
        theta, factor = frequencies(method, **changes)
    except (ValueError, TypeError) as error:
        assert "got " in str(error)
        return
    d, base = changes.get("rotary_dim", 128), changes.get("base", 10000.0)
    assert theta.shape == (d // 2,) and theta.dtype == np.float64
    assert (theta >= 0).all() and (theta <= inv_freq(d, base=base) * (1 + 1e-12)).all()
    assert isinstance(factor, float) and 0 < factor < INF
