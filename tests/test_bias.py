"""The biases on the logits against public implementations, the papers' equations in plain loops, and themselves.

No expected value comes from posenc_ref. Where there is no public implementation to call (KERPLE, FIRE), the equation
is written out pair by pair in Python floats. Tolerances are bounds on rounding; U is the unit roundoff.
"""

import math
import subprocess
import sys
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
import torch._dynamo.testing
import x_transformers.x_transformers as x_transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from positional_encodings.torch_encodings import PositionalEncoding1D
from transformers import T5Config
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.mpt import modeling_mpt as mpt
from transformers.models.t5.modeling_t5 import T5Attention

from posenc_ref.attention import NOPE, attention, masked_softmax
from posenc_ref.bias import (
    ALiBi,
    Sandwich,
    alibi_bias,
    alibi_row_bias,
    bias_vector,
    bucket_starts,
    fire_bias,
    kerple_bias,
    offsets,
    sandwich_bias,
    slopes,
    t5_bias,
    t5_bucket,
)
from posenc_ref.bias.modules import FireBias, KerpleBias, T5Bias
from posenc_ref.positions import causal, packed_positions, positions_from_mask

U = {"float64": 2.0**-53, "float32": 2.0**-24}

# Sizes that hide nothing: all different, heads no power of two, fewer key heads than query heads.
BATCH, HEADS, KV_HEADS, HEAD_DIM, WIDTH = 2, 6, 3, 8, 5
SLOPES = [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]  # of six heads, from case A31

rng = np.random.default_rng(0)
TABLE = rng.standard_normal((8, HEADS))
R1, R2 = rng.uniform(0.1, 2, HEADS), rng.uniform(0.1, 2, HEADS)
C, THRESHOLD = 0.3, 5.0  # a low threshold, so that most queries lie beyond it
FIRE = {
    "hidden_weight": rng.standard_normal((WIDTH, 1)),
    "hidden_bias": rng.standard_normal(WIDTH),
    "out_weight": rng.standard_normal((HEADS, WIDTH)),
    "out_bias": rng.standard_normal(HEADS),
}


def functions(as_array):
    """Each bias as a function of ``(q_positions, k_positions, dtype=…)``, with parameters of one library."""
    table, r1, r2 = (as_array(a) for a in (TABLE, R1, R2))
    return {
        "alibi causal": partial(alibi_bias, num_heads=HEADS, causal=True),
        "alibi symmetric": partial(alibi_bias, num_heads=HEADS, causal=False),
        "t5 bidirectional": partial(t5_bias, table=table, bidirectional=True, max_distance=20),
        "t5 causal": partial(t5_bias, table=table, bidirectional=False, max_distance=20),
        "kerple log": partial(kerple_bias, r1=r1, r2=r2, variant="log"),
        "kerple power": partial(kerple_bias, r1=r1, r2=r2, variant="power"),
        "sandwich": partial(sandwich_bias, num_heads=HEADS, d_bar=12),
        "fire": partial(fire_bias, c=C, threshold=THRESHOLD, **{k: as_array(w) for k, w in FIRE.items()}),
    }


def encodings(dtype=torch.float64):
    torch.manual_seed(0)
    return {
        "alibi causal": ALiBi(HEADS, causal=True),
        "alibi symmetric": ALiBi(HEADS, causal=False),
        "t5 bidirectional": T5Bias(HEADS, bidirectional=True, num_buckets=8, max_distance=20, init_std=1.0).to(dtype),
        "t5 causal": T5Bias(HEADS, bidirectional=False, num_buckets=8, max_distance=20, init_std=1.0).to(dtype),
        "kerple log": KerpleBias(HEADS, variant="log").to(dtype),
        "kerple power": KerpleBias(HEADS, variant="power").to(dtype),
        "sandwich": Sandwich(HEADS, d_bar=12),
        "fire": FireBias(HEADS, width=WIDTH, c=C, threshold=THRESHOLD).to(dtype),
    }


NAMES = tuple(functions(np.asarray))
TOEPLITZ = tuple(name for name in NAMES if name != "fire")
MODULES = tuple(name for name, encoding in encodings().items() if isinstance(encoding, torch.nn.Module))

# ---------------------------------------------------------------- the papers' equations, pair by pair


def t5_bucket_by_logarithms(distance, buckets, max_distance):
    """E + ⌊N · log(n/E) / log(max/E)⌋ with 200 digits, enough to tell an exact boundary from a near miss."""
    exact = buckets // 2
    if distance < exact:
        return distance, False
    with mpmath.workdps(200):
        n = buckets - exact
        x = n * mpmath.log(mpmath.mpf(distance) / exact) / mpmath.log(mpmath.mpf(max_distance) / exact)
        boundary = abs(x - mpmath.nint(x)) < mpmath.mpf(10) ** -150
        return min(exact + int(mpmath.floor(x + mpmath.mpf(10) ** -150)), buckets - 1), bool(boundary)


def by_equation(name, i, j, h):
    """The bias between the query at i and the key at j in head h = 0, 1, …"""
    distance = abs(i - j)
    if name == "alibi causal":
        return -SLOPES[h] * (i - j)
    if name == "alibi symmetric":
        return -SLOPES[h] * distance
    if name == "t5 bidirectional":
        return TABLE[t5_bucket_by_logarithms(distance, 4, 20)[0] + (4 if j > i else 0), h]
    if name == "t5 causal":
        return TABLE[t5_bucket_by_logarithms(max(i - j, 0), 8, 20)[0], h]
    if name == "kerple log":
        return -R1[h] * math.log(1 + R2[h] * distance)
    if name == "kerple power":
        return -R1[h] * distance ** R2[h]
    if name == "sandwich":  # p_i · p_j over the compression ratio
        return sum(math.cos((i - j) / 10000 ** (2 * t / 12)) for t in range(6)) / (8 * (h + 1) / HEADS)
    quotient = math.log(C * distance + 1) / math.log(C * max(THRESHOLD, i) + 1)  # FIRE
    hidden = [max(w * quotient + b, 0.0) for w, b in zip(FIRE["hidden_weight"][:, 0], FIRE["hidden_bias"], strict=True)]
    return sum(w * x for w, x in zip(FIRE["out_weight"][h], hidden, strict=True)) + FIRE["out_bias"][h]


def rounding(name, q, k):
    """Bound on the error of each entry in units of U, from counting operations; heads are axis 1."""
    offset = (k[:, None, :] - q[:, :, None])[:, None].astype(float)
    d = np.maximum(np.abs(offset), 1.0)
    r1, r2, slope, ratio = (np.array(a)[:, None, None] for a in (R1, R2, SLOPES, 8 * np.arange(1, 7) / HEADS))
    if name.startswith("alibi"):
        return 2 * slope * d  # slope and product
    if name.startswith("t5"):
        return np.abs(TABLE).max() + 0 * d
    if name == "kerple log":
        return 8 * r1 * (1 + np.log1p(r2 * d))  # r1, r2, their products, log1p (whose condition is at most 1)
    if name == "kerple power":
        return (6 + r2 * np.log(d)) * r1 * d**r2  # a relative error u in r2 becomes r2·ln(d)·u in the power
    if name == "sandwich":  # one cast; before it, in float64, six angles up to d, each off by (ln base + 3)·u
        return 6 / ratio
    w1, b1, w2, b2 = (np.abs(w) for w in FIRE.values())
    per_head = [(w2 @ w1)[:, 0], w2 @ b1 + b2]  # the size of all terms: linear in the quotient, which is below this
    size = [a[:, None, None] for a in per_head]
    return (12 + 2 * WIDTH) * (size[0] * np.log1p(C * d) / math.log1p(C * THRESHOLD) + size[1])


def within(got, expected, tolerance):
    got, expected = (np.asarray(a.detach() if torch.is_tensor(a) else a, dtype=float) for a in (got, expected))
    assert got.shape == expected.shape
    excess = np.abs(got - expected) - tolerance
    assert (excess <= 0).all(), (
        f"beyond rounding by {excess.max():.3g} at {np.unravel_index(excess.argmax(), got.shape)}"
    )


# batch 2, queries and keys of different lengths and starts; the second row starts again, as packing does
Q = np.array([[3, 4, 30, 5], [0, 7, 8, 9]])
K = np.array([[0, 1, 2, 3, 4, 5, 40], [9, 8, 0, 1, 2, 3, 4]])


def equation(name, q, k):
    rows = zip(q.tolist(), k.tolist(), strict=True)
    return [
        [[[by_equation(name, i, j, h) for j in keys] for i in queries] for h in range(HEADS)] for queries, keys in rows
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("as_array", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_equation_pair_by_pair(name, as_array, dtype):
    q, k = as_array(Q), as_array(K)
    got = functions(as_array)[name](q, k, dtype=getattr(np if as_array is np.asarray else torch, dtype))
    assert str(got.dtype).removeprefix("torch.") == dtype
    tolerance = 2 * U[dtype] * rounding(name, Q, K) + 1000 * U["float64"] * (name == "sandwich")
    within(got, equation(name, Q, K), tolerance)
    assert np.array_equal(np.asarray(q), Q) and np.array_equal(np.asarray(k), K)  # inputs are left alone
    single = functions(as_array)[name](q[1], k[1], dtype=got.dtype)  # (len,) is one row of (batch, len)
    within(single[0], got[1], tolerance[1])
    if not name.startswith("t5"):  # positions may be fractions
        got = functions(np.asarray)[name](Q + 0.1, K + 0.7, dtype=np.float64)
        tolerance = 20 * U["float64"] * rounding(name, Q, K) + 1000 * U["float64"]
        within(got, equation(name, Q + 0.1, K + 0.7), tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_equals_torch_and_float32_equals_float64_up_to_a_million(name):
    q, k = np.array([[0, 999_999, 1_000_000]]), np.array([[0, 1, 500_000, 999_000, 999_998, 1_000_000]])
    exact = functions(np.asarray)[name](q, k, dtype=np.float64)
    bound = rounding(name, q, k)
    in_torch = functions(torch.tensor)[name](torch.tensor(q), torch.tensor(k), dtype=torch.float64)
    angles = 1e6 * 6 * 13 * U["float64"] if name == "sandwich" else 0.0
    within(in_torch, exact, 2 * U["float64"] * bound + angles)
    for as_array, float32 in ((np.asarray, np.float32), (torch.tensor, torch.float32)):
        got = functions(as_array)[name](as_array(q), as_array(k), dtype=float32)
        assert got.dtype == float32
        within(got, exact, U["float32"] * bound + angles)


def test_default_dtype_is_float32_unless_the_parameters_are_better():
    p = np.arange(3)
    single = {name: a.astype(np.float32) for name, a in FIRE.items()}
    assert alibi_bias(p, p, num_heads=3, causal=True).dtype == np.float32
    assert sandwich_bias(p, p, num_heads=3).dtype == np.float32
    assert t5_bias(p, p, TABLE, bidirectional=True).dtype == np.float64
    assert t5_bias(p, p, TABLE.astype(np.float16), bidirectional=True).dtype == np.float32
    assert kerple_bias(p, p, r1=R1.astype(np.float32), r2=R2, variant="log").dtype == np.float64
    assert fire_bias(p, p, c=np.float64(C), threshold=np.array(THRESHOLD), **single).dtype == np.float32


# ---------------------------------------------------------------- ALiBi


def test_slopes_equal_bloom_mpt_and_x_transformers_for_every_head_count():
    for n in range(1, 130):
        power = 2 ** math.ceil(math.log2(n))
        # all three work in float32, with bases raised to powers up to 2n: that many roundings of the base
        for other in (
            bloom._get_alibi_slopes(n, torch.device("cpu")),
            mpt.build_mpt_alibi_tensor(n, 2)[:, 0, 0] / -1,
            x_transformers.AlibiPositionalBias(n).slopes[:, 0, 0],
        ):
            within(slopes(n), other, (2 * power + 8) * U["float32"] * slopes(n))


@pytest.mark.parametrize(
    ("heads", "right"),
    [
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]),
        (12, [2.0**-h for h in range(1, 9)] + [0.707106781, 0.353553391, 0.176776695, 0.0883883476]),
        (20, [2 ** (-h / 2) for h in range(1, 17)] + [0.840896415, 0.594603558, 0.420448208, 0.297301779]),
    ],
)
def test_A31_slopes(heads, right):
    assert slopes(heads) == pytest.approx(right, abs=5e-10)


def test_A31_slopes_of_112_heads_and_the_wrong_ones():
    many = slopes(112)
    assert many[:3] == pytest.approx([0.917004043, 0.840896415, 0.771105413], abs=5e-10)
    assert [many[63], many[64], many[111], many.sum()] == pytest.approx(
        [0.00390625, 0.957603281, 0.0163167779, 22.3632909], abs=5e-8
    )
    assert abs(slopes(6)[0] - 0.396850263) > 0.1  # 2^(−8h/6): the rule for powers of two, misused
    assert abs(slopes(12)[0] - 0.629960525) > 0.1
    assert slopes(8)[0] != 1.0  # h from 0
    assert list(slopes(12)) != sorted(slopes(12), reverse=True)


SCORES = np.array([0.1, 0.2, 0.3, 0.4])
RIGHT_CAUSAL = [0.0820217832, 0.149453433, 0.272321911, 0.496202873]


def test_A32_causal_row():
    p = np.arange(4)
    bias = alibi_bias(p, p, num_heads=8, causal=True, dtype=np.float64)[0, 0]
    assert bias[3].tolist() == [-1.5, -1.0, -0.5, 0.0]
    weights = masked_softmax(SCORES + bias, causal(p, p)[0])[3]
    assert weights == pytest.approx(RIGHT_CAUSAL, abs=5e-10)
    row = alibi_row_bias(p, num_heads=8, dtype=np.float64)[0, 0]
    assert not np.allclose(row, bias)  # another matrix, the same after the causal softmax
    within(*(masked_softmax(np.tile(SCORES, (4, 1)) + b, causal(p, p)[0]) for b in (bias, row)), 8 * U["float64"])
    assert np.abs(weights - [0.413079208, 0.276895273, 0.185608452, 0.124417066]).max() > 0.3  # sign flipped


def test_A33_bidirectional_row():
    p = np.arange(4)
    bias = alibi_bias(p, p, num_heads=8, causal=False, dtype=np.float64)[0, 0]
    assert masked_softmax(SCORES + bias[1]) == pytest.approx(
        [0.205666003, 0.374747891, 0.251201024, 0.168385082], abs=5e-10
    )
    column = alibi_row_bias(p, num_heads=8, dtype=np.float64)[0, 0, 0]  # not valid without a mask: the known wrong row
    assert masked_softmax(SCORES + column) == pytest.approx(RIGHT_CAUSAL, abs=5e-10)


def test_alibi_symmetric_equals_x_transformers():
    witness = x_transformers.AlibiPositionalBias(HEADS)
    q, k = torch.arange(4, 7), torch.arange(7)  # q_len < k_len: the queries are the last tokens
    within(alibi_bias(q, k, num_heads=HEADS, causal=False)[0], witness.forward(3, 7), 0)
    q, k = torch.tensor(Q), torch.tensor(K)
    within(alibi_bias(q, k, num_heads=HEADS, causal=False), witness.forward_custom_pos(q, k), 0)


def test_alibi_causal_equals_mpt_and_bloom_after_the_softmax():
    length = 7
    row = alibi_row_bias(torch.arange(length), num_heads=HEADS)
    within(row[0], mpt.build_mpt_alibi_tensor(HEADS, length), 0)
    padding = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])  # BLOOM counts positions from the mask
    other = bloom.build_alibi_tensor(padding, HEADS, torch.float32).reshape(BATCH, HEADS, 1, length)
    positions = positions_from_mask(padding)
    scores = torch.from_numpy(rng.standard_normal((BATCH, HEADS, length, length))).float()
    ids = torch.arange(length)
    mask = causal(ids, ids) & (padding == 1)[:, None, None, :]
    ours = alibi_bias(positions, positions, num_heads=HEADS, causal=True)
    both = [masked_softmax(scores + bias, mask) for bias in (ours, other)]
    within(*both, 40 * U["float32"])  # logits below 10 in both


def test_trap_the_causal_form_pays_the_future_without_a_mask():
    p = np.arange(4)
    assert alibi_bias(p, p, num_heads=8, causal=True)[0, 0, 0].tolist() == [0.0, 0.5, 1.0, 1.5]
    assert alibi_bias(p, p, num_heads=8, causal=False)[0, 0, 0].tolist() == [0.0, -0.5, -1.0, -1.5]


def test_trap_row_form_at_far_positions_keeps_float32_exact():
    p = np.arange(4)
    near, far = (alibi_row_bias(x, num_heads=20) for x in (p, p + 1_000_003))
    assert np.array_equal(near, far)
    naive = slopes(20).astype(np.float32)[0] * (p + 1_000_003).astype(np.float32)
    assert np.abs((naive - naive[-1]) - near[0, 0, 0]).max() > 0.01  # slope · key from 0


# ---------------------------------------------------------------- T5


def test_A35_buckets():
    offset = [-200, -128, -127, -91, -90, -64, -33, -32, -23, -22, -16, -15, -12, -11, -9, -8, -7, -1]
    offset += [0, 1, 7, 8, 15, 16, 127, 128, 200]
    right = [15, 15, 15, 15, 14, 14, 12, 12, 11, 10, 10, 9, 9, 8, 8, 8, 7, 1, 0, 17, 23, 24, 25, 26, 31, 31, 31]
    for as_array in (np.asarray, torch.tensor):
        assert t5_bucket(as_array(offset), bidirectional=True).tolist() == right


def test_first_distances_of_the_published_configuration():
    causal_starts = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert bucket_starts(32, 128) == causal_starts
    bucket = t5_bucket(-np.arange(300), bidirectional=False)
    assert [int(np.argmax(bucket == b)) for b in range(32)] == causal_starts


@pytest.mark.parametrize("max_distance", [18, 27, 32, 81, 98, 128, 160, 250, 320])
def test_buckets_equal_exact_logarithms_and_public_code_except_where_floats_miss_a_boundary(max_distance):
    distance = np.arange(max_distance + 3)
    for buckets in (2, 3, 4, 5, 8, 9, 10, 16, 17, 19, 20, 32):
        right, boundary = np.array([t5_bucket_by_logarithms(int(n), buckets, max_distance) for n in distance]).T
        ours = t5_bucket(-distance, bidirectional=False, num_buckets=buckets, max_distance=max_distance)
        both = t5_bucket(
            np.stack([-distance, distance]), bidirectional=True, num_buckets=2 * buckets, max_distance=max_distance
        )
        assert np.array_equal(ours, right)
        assert np.array_equal(both, [right, np.where(distance > 0, right + buckets, right)])
        for public in (T5Attention, x_transformers.RelativePositionBias):
            direction = {"bidirectional": False} if public is T5Attention else {"causal": True}
            theirs = public._relative_position_bucket(
                torch.from_numpy(-distance), **direction, num_buckets=buckets, max_distance=max_distance
            ).numpy()
            # float32 logarithms may land just below an exact boundary, e.g. 17 buckets, 27, distance 18
            assert np.all((theirs == right) | (boundary & (theirs == right - 1)))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_of_the_published_configuration_equal_public_code_everywhere(bidirectional):
    offset = torch.arange(-3000, 3001)
    ours = t5_bucket(offset, bidirectional=bidirectional)
    assert torch.equal(ours, T5Attention._relative_position_bucket(offset, bidirectional=bidirectional))
    theirs = x_transformers.RelativePositionBias._relative_position_bucket(offset, causal=not bidirectional)
    assert torch.equal(ours, theirs)


def test_trap_order_of_operations():
    # log(8)·(8/log 16) is 5.999… in float64: the bucket of distance 64 would be 13
    assert t5_bucket(np.array(-64), bidirectional=False, num_buckets=16).tolist() == 14


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_bias_equals_transformers_and_x_transformers_with_a_cache(bidirectional):
    config = T5Config(num_heads=HEADS, is_decoder=not bidirectional)
    hugging = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    lucidrains = x_transformers.RelativePositionBias(1.0, causal=not bidirectional, heads=HEADS)
    table = torch.from_numpy(rng.standard_normal((32, HEADS))).float()
    ours = T5Bias(HEADS, bidirectional=bidirectional)
    for module, name in (
        (hugging, "relative_attention_bias.weight"),
        (lucidrains, "relative_attention_bias.weight"),
        (ours, "table"),
    ):
        module.load_state_dict({**module.state_dict(), name: table})
    bias = ours(torch.arange(140, 150), torch.arange(150))
    assert torch.equal(bias, hugging.compute_bias(10, 150, past_seen_tokens=140))
    assert torch.equal(bias[0], lucidrains(10, 150))


def test_t5_shares_one_table_and_leaves_the_logits_unscaled():
    shared = T5Bias(HEADS, bidirectional=True)
    layers = torch.nn.ModuleList(torch.nn.ModuleDict({"position": shared}) for _ in range(3))
    assert [p.shape for p in layers.parameters()] == [(32, HEADS)]
    p = torch.arange(5)
    sum((layer["position"](p, p).sum() * (n + 1) for n, layer in enumerate(layers)), torch.tensor(0.0)).backward()
    assert shared.table.grad[0].tolist() == [6.0 * 5] * HEADS  # five pairs at offset 0, weights 1 + 2 + 3
    assert T5Bias(100, bidirectional=True, init_std=0.5).table.std().item() == pytest.approx(0.5, rel=0.1)
    assert shared.logit_scale(64) == 1.0 and ALiBi(2, causal=True).logit_scale(64) == 1 / 8


# ---------------------------------------------------------------- KERPLE, FIRE, Sandwich


def test_kerple_power_with_exponent_1_is_symmetric_alibi():
    got = kerple_bias(Q, K, r1=slopes(HEADS), r2=np.ones(HEADS), variant="power")
    within(got, alibi_bias(Q, K, num_heads=HEADS, causal=False, dtype=np.float64), 4 * U["float64"] * 40)


def test_kerple_disagreement_equation_1_divides_the_kernel_by_sqrt_d_and_the_code_does_not():
    p, d = np.arange(5), 16
    scores = rng.standard_normal((1, HEADS, 5, 5))
    equation_1 = (scores + kerple_bias(p, p, r1=R1, r2=R2, variant="log")) / math.sqrt(d)
    ours = scores / math.sqrt(d) + kerple_bias(p, p, r1=R1 / math.sqrt(d), r2=R2, variant="log")
    within(ours, equation_1, 32 * U["float64"])


@pytest.mark.parametrize("variant", ["log", "power"])
@pytest.mark.parametrize("seed", range(5))
def test_trap_kerple_is_not_zero_at_initialisation(variant, seed):
    torch.manual_seed(seed)
    kerple = KerpleBias(12, variant=variant)
    assert kerple.r1.min() >= 0.0099 and kerple.r2.min() >= 0.0099
    assert kerple.r1.max() <= (2 if variant == "log" else 1) and kerple.r2.max() <= (1 if variant == "log" else 2)
    kerple.bias_vector(1, 9, like=kerple.raw_r1)[:, 0].sum().backward()
    assert (kerple.raw_r1.grad != 0).all() and (kerple.raw_r2.grad != 0).all()
    for value in (-30.0, 30.0):  # training cannot leave the range
        torch.nn.init.constant_(kerple.raw_r2, value)
        assert (kerple.r2 > 0).all() and (variant == "log" or (kerple.r2 <= 2).all())


def test_sandwich_is_the_inner_product_of_public_sinusoidal_tables():
    table = PositionalEncoding1D(128)(torch.zeros(1, 50, 128))[0].double()
    p = torch.arange(50)
    got = sandwich_bias(p, p, num_heads=HEADS, dtype=torch.float64)
    # float32 angles up to 50 in the witness, each sine off by 13 u · 50
    within(got[0], (table @ table.T)[None] / (torch.arange(1, 7)[:, None, None] * 8 / HEADS), 128 * 650 * U["float32"])
    assert got[0, :, 0, 0].tolist() == pytest.approx([64 * HEADS / (8 * h) for h in range(1, 7)])


def test_sandwich_disagreement_nemo_starts_its_frequencies_at_1():
    distance = np.arange(20)
    paper, nemo = (
        [sum(math.cos(n * 1e4 ** (-i / 64)) for i in start) for n in distance] for start in (range(64), range(1, 65))
    )
    ours = sandwich_bias(np.array([0]), distance, num_heads=8, dtype=np.float64)[0, 0, 0]  # ratio of head 1: 1
    within(ours, paper, 64 * 300 * U["float64"])
    assert np.abs(masked_softmax(ours) - masked_softmax(np.array(nemo) - 64)).max() > 1e-3  # the constant cancels


def test_fire_quotient_is_1_for_the_first_key_beyond_the_threshold_and_shifts_matter_there_only():
    identity = {
        "hidden_weight": np.ones((1, 1)),
        "hidden_bias": np.zeros(1),
        "out_weight": np.ones((1, 1)),
        "out_bias": np.zeros(1),
    }
    fire = partial(fire_bias, c=0.1, threshold=512.0, **identity)
    first = fire(np.array([512, 513, 5000, 10**6]), np.array([0]))[0, 0, :, 0]
    assert first == pytest.approx(np.ones(4), abs=1e-14)
    p = np.arange(100)
    near, shifted, far = (fire(p + s, p + s) for s in (0, 400, 1000))
    within(near, shifted, 0)
    assert np.abs(far - near).max() > 0.05


# ---------------------------------------------------------------- properties


@pytest.mark.parametrize("name", TOEPLITZ)
def test_a_common_shift_changes_nothing(name):
    bias = functions(np.asarray)[name]
    near, far = bias(Q, K, dtype=np.float64), bias(Q + 100_000, K + 100_000, dtype=np.float64)
    within(far, near, 1e5 * 6 * 13 * U["float64"] if name == "sandwich" else 0)
    assert encodings()[name].spec.shift_invariant


@pytest.mark.parametrize(("q_len", "k_len"), [(1, 7), (3, 7), (7, 7), (7, 3)])
@pytest.mark.parametrize("name", TOEPLITZ)
def test_bias_vector_holds_the_diagonals_of_the_full_bias(name, q_len, k_len):
    encoding = encodings()[name]
    vector = encoding.bias_vector(q_len, k_len, like=torch.zeros(1), dtype=torch.float64)
    assert vector.shape == (HEADS, q_len + k_len - 1)
    full = encoding(torch.arange(k_len - q_len, k_len), torch.arange(k_len), dtype=torch.float64)[0].detach()
    # log and power may round otherwise in another place of a vector register
    tolerance = 100 * U["float64"] + 8 * U["float64"] * full.abs().numpy()
    for i in range(q_len):
        within(vector[:, q_len - 1 - i : q_len - 1 - i + k_len], full[:, i], tolerance[:, i])
    within(vector.unfold(1, k_len, 1).flip(1), full, tolerance)
    by_function = bias_vector(encoding, q_len, k_len, like=torch.zeros(1), dtype=torch.float64)
    assert torch.equal(vector, by_function)


def qkv(length, dtype=torch.float64):
    draw = np.random.default_rng(1)
    shapes = ((BATCH, HEADS, length, HEAD_DIM), *[(BATCH, KV_HEADS, length, HEAD_DIM)] * 2)
    return [torch.from_numpy(draw.standard_normal(shape)).to(dtype) for shape in shapes]


def causal_attention(encoding, q, k, v, q_positions, k_positions, mask=True):
    allowed = causal(q_positions, k_positions) & mask
    return attention(q, k, v, encoding=encoding, q_positions=q_positions, k_positions=k_positions, mask=allowed)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_decoding_with_a_cache_equals_the_full_pass(name, chunk):
    encoding, length = encodings()[name], 12
    q, k, v = qkv(length)
    p = torch.arange(length)
    full = causal_attention(encoding, q, k, v, p, p)
    for start in range(0, length, chunk):
        end = start + chunk
        part = causal_attention(encoding, q[:, :, start:end], k[:, :, :end], v[:, :, :end], p[start:end], p[:end])
        # logits and biases below 30, values below 4: 12 terms of relative error 30 u and more
        within(part, full[:, :, start:end], 2000 * U["float64"])
    assert not torch.allclose(full, causal_attention(NOPE, q, k, v, p, p))


@pytest.mark.parametrize("name", NAMES)
def test_padded_and_packed_rows_equal_separate_runs(name):
    encoding = encodings()[name]
    q, k, v = qkv(9)
    alone = [
        causal_attention(encoding, q[:, :, s], k[:, :, s], v[:, :, s], p, p)
        for s, p in ((slice(4), torch.arange(4)), (slice(4, 9), torch.arange(5)))
    ]
    documents = torch.tensor([7] * 4 + [9] * 5)
    p, ids = packed_positions(documents), torch.arange(9)
    mask = (documents[:, None] == documents) & (ids[:, None] >= ids)
    packed = attention(q, k, v, encoding=encoding, q_positions=p, k_positions=p, mask=mask)
    within(packed, torch.cat(alone, dim=2), 2000 * U["float64"])
    padding = torch.tensor([[0] * 4 + [1] * 5, [1] * 9])  # the first row padded on the left, in one batch
    p = positions_from_mask(padding)
    mask = causal(ids, ids) & (padding == 1)[:, None, None, :]
    padded = attention(q, k, v, encoding=encoding, q_positions=p, k_positions=p, mask=mask)
    within(padded[0, :, 4:], alone[1][0], 2000 * U["float64"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_attention_keeps_the_dtype_and_rounds_once(name, dtype):
    q, k, v = qkv(6, dtype)
    p = torch.arange(6)
    exact = causal_attention(encodings()[name], *(x.double() for x in (q, k, v)), p, p)
    better = dtype if dtype == torch.float64 else torch.float32
    encoding = encodings(better)[name]
    assert encoding.bias(q, k, q_positions=p, k_positions=p).dtype == better
    got = causal_attention(encoding, q, k, v, p, p)
    assert got.dtype == dtype
    within(got.double(), exact, (torch.finfo(dtype).eps + 200 * U["float32"] * (dtype != torch.float64)) * 4)


@pytest.mark.parametrize("name", MODULES)
def test_gradients(name):
    encoding = encodings()[name]
    names, parameters = zip(*encoding.named_parameters(), strict=True)
    q, k = torch.tensor([[3, 4], [0, 9]]), torch.tensor([[0, 3, 5], [9, 0, 2]])  # with distance 0

    def bias(*values):
        return torch.func.functional_call(encoding, dict(zip(names, values, strict=True)), (q, k))

    assert torch.autograd.gradcheck(bias, parameters)
    encoding(q, k).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in parameters)


@pytest.mark.parametrize("name", MODULES)
def test_modules_equal_the_functions_and_survive_the_meta_device(name):
    module = encodings()[name]
    q, k = torch.tensor(Q), torch.tensor(K)
    if isinstance(module, T5Bias):
        expected = t5_bias(q, k, module.table, bidirectional=module.bidirectional, max_distance=20)
    elif isinstance(module, KerpleBias):
        expected = kerple_bias(q, k, r1=module.r1, r2=module.r2, variant=module.variant)
    else:
        layers = {f"{n}_{m}": getattr(getattr(module, n), m) for n in ("hidden", "out") for m in ("weight", "bias")}
        expected = fire_bias(q, k, c=C, threshold=THRESHOLD, **layers)
    within(module(q, k), expected.detach(), 1e-6 * (name == "fire"))  # its log c and log threshold were set in float32
    assert not list(module.buffers())  # nothing that to_empty could leave uninitialised
    with torch.device("meta"):
        empty = encodings(torch.float32)[name]
    empty = empty.to_empty(device="cpu")
    empty.reset_parameters()
    assert torch.isfinite(empty(q, k)).all() and empty(q, k).any()
    empty.load_state_dict(module.state_dict())
    within(empty(q, k).double(), module(q, k).detach(), 2e-5)


@pytest.mark.filterwarnings("ignore")  # array_api_compat's lru_cache, harmless
def test_compile_without_a_break_in_at_most_two_graphs():
    every = encodings(torch.float32)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda q, k: {n: e(q, k) for n, e in every.items()}, backend=counter, fullgraph=True)
    for length in (5, 9, 17):
        q, k = torch.arange(length - 3, length), torch.arange(length)
        for name, bias in compiled(q, k).items():
            within(bias, every[name](q, k).detach(), 20 * U["float32"] * (name == "sandwich"))
    assert counter.frame_count <= 2


def test_importing_the_biases_does_not_import_torch():
    code = "import sys, posenc_ref.bias; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- errors

P = np.arange(3)
X = np.zeros((1, 4, 3, 8))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: slopes(0), ValueError, "num_heads must be at least 1, got 0"),
        (lambda: slopes(2.5), TypeError, "num_heads must be an integer, got 2.5"),
        (lambda: alibi_bias(P, P, num_heads=2, causal="False"), TypeError, "causal must be True or False, got 'False'"),
        (lambda: alibi_bias(P, P, num_heads=2, causal=True, dtype=np.float16), TypeError, "dtype must be float32 or"),
        (lambda: alibi_bias(P.astype(np.float16), P, num_heads=2, causal=True), TypeError, "q_positions .* float16"),
        (lambda: alibi_bias([0, 1], P, num_heads=2, causal=True), TypeError, r"q_positions must be .* \[0, 1\]"),
        (lambda: alibi_bias(P, np.array([0.0, np.nan]), num_heads=2, causal=True), ValueError, "k_positions .* nan"),
        (lambda: alibi_row_bias(P.astype(np.float16), num_heads=2), TypeError, "k_positions .* float16"),
        (lambda: offsets(P, np.array(3)), ValueError, r"k_positions must be \(len,\) or .* got shape \(\)"),
        (lambda: offsets(np.ones((2, 3)), np.ones((4, 3))), ValueError, "share the batch, got 2 and 4"),
        (lambda: ALiBi(0, causal=True), ValueError, "num_heads .* got 0"),
        (lambda: ALiBi(2, causal=1), TypeError, "causal .* got 1"),
        (lambda: ALiBi(3, causal=True).bias(X, X, q_positions=P, k_positions=P), ValueError, "num_heads = 3, got"),
        (lambda: ALiBi(3, causal=True).bias_vector(0, 3, like=X), ValueError, "q_len must be at least 1, got 0"),
        (lambda: bucket_starts(1, 128), ValueError, "num_buckets must be at least 2 in each direction, got 1"),
        (lambda: bucket_starts(32, 16), ValueError, "max_distance must exceed the exact range of 16 distances, got 16"),
        (lambda: t5_bucket(P, bidirectional=True, num_buckets=31), ValueError, "num_buckets must be even, got 31"),
        (lambda: t5_bucket(P, bidirectional=True, num_buckets=2), ValueError, "at least 2 in each direction, got 1"),
        (lambda: t5_bucket(P, bidirectional=None), TypeError, "bidirectional must be True or False, got None"),
        (lambda: t5_bucket(P, bidirectional=True, max_distance=8), ValueError, "max_distance .* got 8"),
        (lambda: t5_bias(P * 1.0, P, TABLE, bidirectional=True), TypeError, "must be signed integers .* float64"),
        (lambda: t5_bias(P, P, TABLE[0], bidirectional=True), ValueError, r"table must be .* got shape \(6,\)"),
        (lambda: t5_bias(P, P, np.ones((8, 2), int), bidirectional=True), TypeError, "table .* got int64"),
        (lambda: kerple_bias(P, P, r1=R1, r2=R2, variant="linear"), ValueError, "variant must be one of .* 'linear'"),
        (lambda: kerple_bias(P, P, r1=R1, r2=R2[:2], variant="log"), ValueError, r"r1 and r2 .* \(6,\) and \(2,\)"),
        (lambda: kerple_bias(P, P, r1=-R1, r2=R2, variant="log"), ValueError, r"r1 must be positive .* \[-"),
        (lambda: kerple_bias(P, P, r1=R1, r2=R2 * np.nan, variant="log"), ValueError, "r2 .* nan"),
        (lambda: kerple_bias(P, P, r1=R1, r2=R2 + 2, variant="power"), ValueError, r"r2 .* at most 2.0, got \["),
        (lambda: fire_bias(P, P, c=0.0, threshold=5.0, **FIRE), ValueError, "c must be positive and finite, got 0.0"),
        (lambda: fire_bias(P, P, c=1.0, threshold=math.inf, **FIRE), ValueError, "threshold .* got inf"),
        (lambda: fire_bias(P, P, c="1", threshold=5.0, **FIRE), TypeError, "c must be an array, got '1'"),
        (lambda: fire_bias(P, P, c=1.0, threshold=5.0, **{**FIRE, "out_bias": R1[:2]}), ValueError, r"bias .* \(2,\)"),
        (lambda: fire_bias(P, P, c=1.0, threshold=5.0, **{**FIRE, "out_weight": R1}), ValueError, r"weight .* \(6,\)"),
        (lambda: sandwich_bias(P, P, num_heads=2, d_bar=5), ValueError, "d_bar must be even, got 5"),
        (lambda: sandwich_bias(P, P, num_heads=2, base=1.0), ValueError, "base .* got 1.0"),
        (lambda: Sandwich(2, base=math.nan), ValueError, "base .* got nan"),
        (lambda: T5Bias(4, bidirectional=False, max_distance=16), ValueError, "max_distance .* got 16"),
        (lambda: KerpleBias(4, variant="square"), ValueError, "variant .* 'square'"),
        (lambda: FireBias(4, threshold=-1.0), ValueError, "threshold .* got -1.0"),
    ],
)  # fmt: skip
def test_errors_name_the_value_and_the_rule(call, error, message):
    with pytest.raises(error, match=message):
        call()


# ---------------------------------------------------------------- drawn inputs

POSITIONS = st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=5)
COUNTS = st.integers(1, 20)


@settings(max_examples=50)
@given(POSITIONS, POSITIONS, COUNTS, st.booleans(), st.integers(1, 10), st.sampled_from([np.asarray, torch.tensor]))
def test_drawn_closed_forms_are_finite_and_right(q, k, heads, flag, half, as_array):
    for bias, size in (
        (alibi_bias(as_array(q), as_array(k), num_heads=heads, causal=flag), None),
        (sandwich_bias(as_array(q), as_array(k), num_heads=heads, d_bar=2 * half), half * heads / 8),
    ):
        bias = np.asarray(bias)
        assert bias.shape == (1, heads, len(q), len(k)) and bias.dtype == np.float32 and np.isfinite(bias).all()
        assert size is None or np.abs(bias).max() <= size * (1 + 1e-6)
    power = 1 << (heads.bit_length() - 1)
    slope = 2.0 ** (-8 * heads / power) if heads == power else 2.0 ** (-8 * (2 * (heads - power) - 1) / (2 * power))
    offset = k[-1] - q[0] if flag else -abs(k[-1] - q[0])
    last = np.asarray(alibi_bias(as_array(q), as_array(k), num_heads=heads, causal=flag))[0, -1, 0, -1]
    assert last == pytest.approx(slope * offset, rel=4 * U["float32"])


@given(POSITIONS, st.integers(-3, 70), st.integers(-3, 300), st.booleans())
def test_drawn_buckets_are_exact_or_refused(offset, buckets, max_distance, bidirectional):
    call = partial(t5_bucket, bidirectional=bidirectional, num_buckets=buckets, max_distance=max_distance)
    side = buckets // 2 if bidirectional else buckets
    if side < 2 or (bidirectional and buckets % 2) or max_distance <= side // 2:
        with pytest.raises(ValueError, match=r"got -?\d+"):
            call(np.array(offset))
        return
    assume(side * math.log10(max_distance) < 280)  # what 200 digits can decide: N = side / 2 or a little more
    for n, bucket in zip(offset, call(np.array(offset)).tolist(), strict=True):
        distance = abs(n) if bidirectional else max(-n, 0)
        expected = t5_bucket_by_logarithms(distance, side, max_distance)[0]
        assert bucket == expected + (side if bidirectional and n > 0 else 0)


NUMBERS = st.one_of(st.floats(width=32), st.floats(0.0, 3.0))


@given(POSITIONS, POSITIONS, NUMBERS, NUMBERS, st.sampled_from(["log", "power"]))
def test_drawn_kerple_and_fire_are_right_or_refused(q, k, a, b, variant):
    q, k = np.array(q), np.array(k)
    r1, r2 = np.array([a]), np.array([b])
    good = 0 < a < math.inf and 0 < b < (math.inf if variant == "log" else math.nextafter(2, 3))
    if good and a < 1e30 and b < 1e30:
        bias = kerple_bias(q, k, r1=r1, r2=r2, variant=variant)
        d = abs(int(k[0] - q[0]))
        right = -a * (math.log1p(b * d) if variant == "log" else d**b)
        assert bias.shape == (1, 1, len(q), len(k)) and np.isfinite(bias).all()
        assert bias[0, 0, 0, 0] == pytest.approx(right, rel=1e-12, abs=1e-300)
    elif not good:
        with pytest.raises(ValueError, match=r"r[12] must be positive"):
            kerple_bias(q, k, r1=r1, r2=r2, variant=variant)
    if 1e-6 < a < 1e6 and 1e-3 < b < 1e6:
        bias = fire_bias(q, k, c=a, threshold=b, **FIRE)
        assert bias.shape == (1, HEADS, len(q), len(k)) and np.isfinite(bias).all()
    elif not (0 < a < math.inf and 0 < b < math.inf):
        with pytest.raises(ValueError, match=r"(c|threshold) must be positive"):
            fire_bias(q, k, c=a, threshold=b, **FIRE)
