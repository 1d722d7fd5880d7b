"""Logits by offset and content against public implementations, the papers' equations in plain loops, and themselves.

No expected value comes from posenc_ref: the loops below work pair by pair on NumPy vectors. Where a public
implementation cannot be called (Transformer-XL was removed from transformers), the loop is the oracle and a part that
still exists (XLNet's shift) a second witness. Tolerances are bounds on rounding; U is the unit roundoff.
"""

import math
from functools import partial
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch
import x_transformers.x_transformers as x_transformers
from torch._dynamo.testing import CompileCounter
from transformers import DebertaConfig, DebertaV2Config
from transformers.models.deberta import modeling_deberta as deberta_v1
from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta_v2
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as wav2vec2_bert
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from posenc_ref.attention import attention, masked_softmax
from posenc_ref.content import (
    cope_bias,
    cope_counts,
    cope_counts_by_pair,
    deberta_bias,
    deberta_bias_by_pair,
    deberta_bucket,
    deberta_index,
    deberta_scale,
    log_bucket_ends,
    relative_shift,
    shaw_bias,
    shaw_bias_by_pair,
    shaw_bias_skewed,
    shaw_index,
    shaw_values,
    shaw_values_by_pair,
    transformer_xl_bias,
    transformer_xl_bias_by_pair,
    transformer_xl_bias_shifted,
)
from posenc_ref.content.modules import CoPE, DeBERTa, Shaw, TransformerXL
from posenc_ref.positions import causal, packed_positions, positions_from_mask, same_document

U = {"float64": 2.0**-53, "float32": 2.0**-24}

# Sizes that hide nothing: all different, more keys than queries, a width of R that is not heads · head_dim.
BATCH, HEADS, KV_HEADS, Q_LEN, K_LEN, HEAD_DIM, WIDTH = 2, 6, 3, 4, 7, 5, 8
REACH, SPAN, BUCKETS, MAX_POSITION, COUNTED = 2, 3, 8, 33, 4

rng = np.random.default_rng(0)
draw = rng.standard_normal
q, k, v = draw((BATCH, HEADS, Q_LEN, HEAD_DIM)), draw((BATCH, HEADS, K_LEN, HEAD_DIM)), draw((BATCH, HEADS, K_LEN, 3))
KEYS, VALUES = draw((HEADS, 2 * REACH + 1, HEAD_DIM)), draw((HEADS, 2 * REACH + 1, 3))
XL_U, XL_V, XL_W = draw((HEADS, HEAD_DIM)), draw((HEADS, HEAD_DIM)), draw((HEADS, HEAD_DIM, WIDTH))
SPAN_KEYS, SPAN_QUERIES = draw((2, HEADS, 2 * SPAN, HEAD_DIM))
LOG_KEYS, LOG_QUERIES = draw((2, HEADS, 2 * BUCKETS, HEAD_DIM))
COUNT_TABLE = draw((HEADS, COUNTED, HEAD_DIM))

# Each row of the batch has its own positions, out of order, far apart, with a restart as in packing.
Q = np.array([[3, 4, 30, 5], [0, 7, 8, 9]])
K = np.array([[0, 1, 2, 3, 4, 5, 40], [9, 8, 0, 1, 2, 3, 4]])


def functions(as_array):
    """Each bias as a function of ``(q, k, q_positions, k_positions)``, with parameters of one library."""
    a = as_array
    xl = {"u": a(XL_U), "v": a(XL_V), "w_r": a(XL_W), "base": 50.0}
    clip, log = {"keys": a(SPAN_KEYS), "queries": a(SPAN_QUERIES)}, {"keys": a(LOG_KEYS), "queries": a(LOG_QUERIES)}
    return {
        "shaw": lambda q, k, i, j: shaw_bias(q, i, j, a(KEYS)),
        "shaw shared": lambda q, k, i, j: shaw_bias(q, i, j, a(KEYS[0])),
        "transformer_xl": partial(transformer_xl_bias, **xl),
        "deberta paper": partial(deberta_bias, **clip, p2c_index="paper"),
        "deberta released": partial(deberta_bias, **clip, p2c_index="released"),
        "deberta log paper": partial(deberta_bias, **log, p2c_index="paper", max_position=MAX_POSITION),
        "deberta log released": partial(deberta_bias, **log, p2c_index="released", max_position=MAX_POSITION),
        "cope scaled": partial(cope_bias, table=a(COUNT_TABLE), scaled=True),
        "cope": partial(cope_bias, table=a(COUNT_TABLE), scaled=False),
    }


def specifications():
    xl = {"u": XL_U, "v": XL_V, "w_r": XL_W, "base": 50.0}
    clip, log = {"keys": SPAN_KEYS, "queries": SPAN_QUERIES}, {"keys": LOG_KEYS, "queries": LOG_QUERIES}
    return {
        "shaw": lambda q, k, i, j: shaw_bias_by_pair(q, i, j, KEYS),
        "shaw shared": lambda q, k, i, j: shaw_bias_by_pair(q, i, j, KEYS[0]),
        "transformer_xl": partial(transformer_xl_bias_by_pair, **xl),
        "deberta paper": partial(deberta_bias_by_pair, **clip, p2c_index="paper"),
        "deberta released": partial(deberta_bias_by_pair, **clip, p2c_index="released"),
        "deberta log paper": partial(deberta_bias_by_pair, **log, p2c_index="paper", max_position=MAX_POSITION),
        "deberta log released": partial(deberta_bias_by_pair, **log, p2c_index="released", max_position=MAX_POSITION),
    }


def encodings(dtype=torch.float64, std=1.0):
    torch.manual_seed(0)
    made = {
        "shaw": Shaw(HEAD_DIM, max_distance=REACH, init_std=std),
        "shaw by head": Shaw(HEAD_DIM, max_distance=REACH, num_heads=HEADS, init_std=std),
        "transformer_xl": TransformerXL(HEADS, HEAD_DIM, d_model=WIDTH, init_std=std),
        "deberta": DeBERTa(HEADS, HEAD_DIM, span=SPAN, p2c_index="paper", init_std=std / 3),
        "deberta log": DeBERTa(
            HEADS, HEAD_DIM, span=BUCKETS, p2c_index="released", max_position=MAX_POSITION, init_std=std / 3
        ),
        "cope": CoPE(HEAD_DIM, num_positions=COUNTED, scaled=True, init_std=std),
        "cope by head": CoPE(HEAD_DIM, num_positions=COUNTED, scaled=False, num_heads=HEADS, init_std=std),
    }
    return {name: encoding.to(dtype) for name, encoding in made.items()}


NAMES, MODULES = tuple(functions(np.asarray)), tuple(encodings())
NUMPY = functions(np.asarray)

# ---------------------------------------------------------------- the papers' equations, pair by pair


def clip(x, low, high):
    return max(low, min(high, x))


def log_bucket(n, buckets, max_position):
    """⌈log(n/mid) / log((M − 1)/mid) · (mid − 1)⌉ + mid with 200 digits, and whether the quotient is whole."""
    mid = buckets // 2
    if n <= mid:
        return n, False
    with mpmath.workdps(200):
        x = mpmath.log(mpmath.mpf(n) / mid) / mpmath.log(mpmath.mpf(max_position - 1) / mid) * (mid - 1)
        whole = abs(x - mpmath.nint(x)) < mpmath.mpf(10) ** -150
        return int(mpmath.nint(x) if whole else mpmath.ceil(x)) + mid, bool(whole)


def delta(name, i, j):
    """Equation 3 of DeBERTa, with the bucket of v2 in the place of i − j."""
    if "log" not in name:
        return clip(i - j + SPAN, 0, 2 * SPAN - 1)
    bucket = min(log_bucket(abs(i - j), BUCKETS, MAX_POSITION)[0], BUCKETS - 1)
    return clip((bucket if i > j else -bucket) + BUCKETS, 0, 2 * BUCKETS - 1)


def by_equation(name, b, h, m, n):
    """The bias between query m at position i and key n at position j, row b, head h."""
    i, j, query, key = int(Q[b, m]), int(K[b, n]), q[b, h, m], k[b, h, n]
    root = math.sqrt(HEAD_DIM)
    if name.startswith("shaw"):
        return query @ KEYS[0 if "shared" in name else h][clip(j - i, -REACH, REACH) + REACH] / root
    if name == "transformer_xl":
        waves = [50.0 ** (-2 * t / WIDTH) for t in range(WIDTH // 2)]
        r = np.array([math.sin((i - j) * w) for w in waves] + [math.cos((i - j) * w) for w in waves])
        return (query @ XL_W[h] @ r + XL_U[h] @ key + XL_V[h] @ XL_W[h] @ r) / root
    if name.startswith("deberta"):
        keys, queries = (LOG_KEYS, LOG_QUERIES) if "log" in name else (SPAN_KEYS, SPAN_QUERIES)
        p2c = delta(name, j, i) if "paper" in name else delta(name, i, j)
        return (query @ keys[h, delta(name, i, j)] + key @ queries[h, p2c]) / math.sqrt(3 * HEAD_DIM)
    gates = [1 / (1 + math.exp(-(query @ k[b, h, t]) / root)) for t in range(K_LEN)]
    count = sum(g for g, t in zip(gates, K[b], strict=True) if j <= t <= i)
    count = min(count, COUNTED - 1)
    low, high = math.floor(count), math.ceil(count)
    e = (count - low) * COUNT_TABLE[h, high] + (1 - (count - low)) * COUNT_TABLE[h, low]
    return query @ e / (root if "scaled" in name else 1)


def equation(name):
    return [
        [[[by_equation(name, b, h, m, n) for n in range(K_LEN)] for m in range(Q_LEN)] for h in range(HEADS)]
        for b in range(BATCH)
    ]


def rounding(name):
    """Bound on the error of any entry in units of U: operations counted, times the size of the largest sum."""
    query, key = np.abs(q).max(), np.abs(k).max()
    if name == "transformer_xl":  # three sums after another, of head_dim, WIDTH and again head_dim
        size = (query + np.abs(XL_V).max()) * np.abs(XL_W).max() * WIDTH + np.abs(XL_U).max() * key
        return (2 * HEAD_DIM + 2 * WIDTH + 12) * HEAD_DIM * size
    table = np.abs(np.concatenate([KEYS.ravel(), LOG_KEYS.ravel(), LOG_QUERIES.ravel(), COUNT_TABLE.ravel()])).max()
    bound = (2 * HEAD_DIM + 12) * HEAD_DIM * table * (query + key)
    # a gate is off by a quarter of its logit's error, a count by K_LEN such, times the difference of two scores
    return bound * (1 + K_LEN * HEAD_DIM * table * query) if name.startswith("cope") else bound


def within(got, expected, tolerance):
    got, expected = (np.asarray(a.detach() if torch.is_tensor(a) else a, dtype=float) for a in (got, expected))
    assert got.shape == expected.shape
    excess = np.abs(got - expected) - tolerance
    assert (excess <= 0).all(), (
        f"beyond rounding by {excess.max():.3g} at {np.unravel_index(excess.argmax(), got.shape)}"
    )


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_equation_pair_by_pair(name):
    expected = equation(name)
    for dtype in ("float64", "float32"):
        for as_array in (np.asarray, torch.tensor):
            kind = getattr(np if as_array is np.asarray else torch, dtype)
            function = functions(as_array)[name]  # parameters stay float64: the result has the dtype of q
            inputs = [as_array(q, dtype=kind), as_array(k, dtype=kind), as_array(Q), as_array(K)]
            got = function(*inputs)
            assert str(got.dtype).removeprefix("torch.") == dtype
            within(got, expected, 2 * U[dtype] * rounding(name))
            alone = function(inputs[0][1:], inputs[1][1:], as_array(Q[1]), as_array(K[1]))  # (len,) is one row
            within(alone, expected[1:], 2 * U[dtype] * rounding(name))
            for array, before in zip(inputs, (q, k, Q, K), strict=True):  # inputs are left alone
                assert np.array_equal(np.asarray(array), before.astype(np.asarray(array).dtype))


@pytest.mark.parametrize("name", tuple(specifications()))
def test_equals_its_own_specification(name):
    within(NUMPY[name](q, k, Q, K), specifications()[name](q, k, Q, K), 2 * U["float64"] * rounding(name))


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_computed_in_float32(name):
    half = torch.tensor(q).half(), torch.tensor(k).half()
    function = functions(torch.tensor)[name]
    at = torch.tensor(Q), torch.tensor(K)
    assert torch.equal(function(*half, *at), function(half[0].float(), half[1].float(), *at))


# ---------------------------------------------------------------- Shaw


def test_A38_index():
    right = [[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]]
    for as_array in (np.asarray, torch.tensor):
        p = as_array([0, 1, 2, 3])
        assert shaw_index(p, p, max_distance=2)[0, 0].tolist() == right


@pytest.mark.parametrize(("q_len", "k_len"), [(3, 3), (9, 9), (4, 9)])
def test_shaw_keys_equal_wav2vec2_bert(q_len, k_len):
    reach = 3
    query, key = (torch.from_numpy(draw((BATCH, HEADS, n, HEAD_DIM))) for n in (q_len, k_len))
    table = torch.nn.Embedding(2 * reach + 1, HEAD_DIM).double()
    module = SimpleNamespace(
        left_max_position_embeddings=reach,
        right_max_position_embeddings=reach,
        distance_embedding=table,
        scaling=HEAD_DIM**-0.5,
    )
    _, theirs = wav2vec2_bert._apply_relative_key_position_encoding(module, query, key)
    ours = shaw_bias(query, torch.arange(q_len), torch.arange(k_len), table.weight)  # it counts both from 0
    within(ours, theirs.detach(), 1e-14)


@pytest.mark.parametrize("shape", ["by head", "shared"])
def test_shaw_values_equal_equation_3_in_a_loop(shape):
    weights = masked_softmax(draw((BATCH, HEADS, Q_LEN, K_LEN)))
    table = VALUES if shape == "by head" else VALUES[0]
    expected = np.zeros((BATCH, HEADS, Q_LEN, 3))
    for b, h, m, n in np.ndindex(weights.shape):
        row = clip(int(K[b, n]) - int(Q[b, m]), -REACH, REACH) + REACH
        expected[b, h, m] += weights[b, h, m, n] * (VALUES[h] if shape == "by head" else VALUES[0])[row]
    within(shaw_values(weights, Q, K, table), expected, 1e-14)
    within(shaw_values_by_pair(weights, Q, K, table), expected, 1e-14)
    within(shaw_values(*(torch.tensor(a) for a in (weights, Q, K, table))), expected, 1e-14)
    within(shaw_values(torch.tensor(weights).float(), torch.tensor(Q), torch.tensor(K), torch.tensor(table)),
           expected, 1e-6)  # fmt: skip


def test_shaw_attention_equals_equations_3_and_4_in_a_loop():
    """Keys and values together, through attention, with values of another width than the keys' vectors."""
    shaw = Shaw(HEAD_DIM, max_distance=REACH, init_std=1.0).double()
    keys, vectors = (p.detach().numpy() for p in (shaw.keys, shaw.value_vectors))
    value = draw((BATCH, HEADS, K_LEN, HEAD_DIM))
    expected = np.zeros((BATCH, HEADS, Q_LEN, HEAD_DIM))
    for b, h, m in np.ndindex(expected.shape[:3]):
        rows = [clip(int(j) - int(Q[b, m]), -REACH, REACH) + REACH for j in K[b]]
        e = [q[b, h, m] @ (k[b, h, n] + keys[r]) / math.sqrt(HEAD_DIM) for n, r in enumerate(rows)]
        alpha = np.exp(e) / np.sum(np.exp(e))
        expected[b, h, m] = sum(
            a * (value[b, h, n] + vectors[r]) for n, (a, r) in enumerate(zip(alpha, rows, strict=True))
        )
    got = attention(
        *(torch.tensor(x) for x in (q, k, value)),
        encoding=shaw,
        q_positions=torch.tensor(Q),
        k_positions=torch.tensor(K),
    )
    within(got, expected, 1e-13)


@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 6), (6, 6), (4, 6)])
@pytest.mark.parametrize("table", [KEYS, KEYS[1]], ids=["by head", "shared"])
def test_shaw_skewed_equals_the_lookup(q_len, k_len, table):
    query = q[:, :, :1].repeat(q_len, axis=2) * draw((q_len, 1))
    ours = shaw_bias_skewed(query, table, k_len=k_len)
    within(ours, shaw_bias(query, np.arange(k_len - q_len, k_len), np.arange(k_len), table), 1e-13)
    in_torch = shaw_bias_skewed(torch.tensor(query), torch.tensor(table), k_len=k_len)
    within(in_torch, ours, 1e-13)


# ---------------------------------------------------------------- the shift


def test_A39_relative_shift_and_its_garbage():
    x = np.arange(1, 16).reshape(3, 5)
    right = [[3, 4, 5, 0, 6], [7, 8, 9, 10, 0], [11, 12, 13, 14, 15]]
    for as_array in (np.asarray, torch.tensor):
        assert relative_shift(as_array(x)).tolist() == right
    valid = np.arange(5) <= np.arange(3)[:, None] + 2
    kept = [x[i, 2 - i + c] for i, c in zip(*np.nonzero(valid), strict=True)]  # moved left by q_len − 1 − i
    assert relative_shift(x)[valid].tolist() == kept


@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 5), (5, 5), (3, 5)])
def test_relative_shift_equals_xlnet_and_plain_indexing(q_len, k_len):
    columns = q_len + k_len  # XLNet has one column more in front: its distances go from k_len down to 1 − q_len
    x = torch.from_numpy(draw((BATCH, HEADS, q_len, columns)))
    theirs = XLNetRelativeAttention.rel_shift_bnij(x, klen=k_len)
    ours = relative_shift(x[..., 1:])[..., :k_len]
    assert torch.equal(ours, theirs)
    for i in range(q_len):
        assert torch.equal(ours[..., i, :], x[..., i, q_len - i : q_len - i + k_len])


# ---------------------------------------------------------------- Transformer-XL


@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 6), (6, 6), (4, 6)])
def test_transformer_xl_shifted_equals_the_general_form_and_nobody_sees_the_garbage(q_len, k_len):
    query, key = draw((BATCH, HEADS, q_len, HEAD_DIM)), draw((BATCH, HEADS, k_len, HEAD_DIM))
    parameters = {"u": XL_U, "v": XL_V, "w_r": XL_W}
    i, j = np.arange(k_len - q_len, k_len), np.arange(k_len)
    general = transformer_xl_bias(query, key, i, j, **parameters)
    within(transformer_xl_bias_shifted(query, key, **parameters, causal=False), general, 1e-12)
    past = transformer_xl_bias_shifted(query, key, **parameters, causal=True)
    mask = np.broadcast_to(causal(i, j), past.shape)
    within(past[mask], general[mask], 1e-12)
    assert np.all(past[~mask] == -np.inf)
    tensors = {name: torch.tensor(p) for name, p in parameters.items()}
    in_torch = transformer_xl_bias_shifted(torch.tensor(query), torch.tensor(key), **tensors, causal=True)
    within(in_torch[torch.tensor(mask)], past[mask], 1e-12)


@pytest.mark.parametrize("memory", [0, 3])
def test_transformer_xl_equals_xlnet_which_keeps_its_attention(memory):
    """XLNet scores with the same terms, in [len, batch, heads, dim]; the memory's keys come first."""
    q_len, k_len = 4, 4 + memory
    query, key, value = (torch.from_numpy(draw((BATCH, HEADS, n, HEAD_DIM))) for n in (q_len, k_len, k_len))
    xl = TransformerXL(HEADS, HEAD_DIM, d_model=WIDTH, init_std=1.0).double()
    table = SimpleNamespace(d_model=WIDTH, attn_type="bi", bi_data=False, clamp_len=-1)
    table.positional_embedding = XLNetModel.positional_embedding
    r = XLNetModel.relative_positional_encoding(table, q_len, k_len, bsz=1).double()
    core = SimpleNamespace(
        r_w_bias=xl.u, r_r_bias=xl.v, scale=HEAD_DIM**-0.5, dropout=torch.nn.Identity(),
        rel_shift_bnij=XLNetRelativeAttention.rel_shift_bnij,
    )  # fmt: skip
    projected = torch.einsum("hde,cbe->cbhd", xl.w_r, r).expand(-1, BATCH, -1, -1)
    i, j = torch.arange(memory, k_len), torch.arange(k_len)
    hidden = ~causal(i, j)[0]  # True hides, there
    mask = hidden[:, :, None, None].double()
    theirs = XLNetRelativeAttention.rel_attn_core(
        core, *(x.permute(2, 0, 1, 3) for x in (query, key, value)), projected, attn_mask=mask
    )
    ours = attention(query, key, value, encoding=xl, q_positions=i, k_positions=j, mask=causal(i, j))
    within(ours, theirs.permute(1, 2, 0, 3).detach(), 1e-5)  # XLNet's table is float32


def test_transformer_xl_sign_of_the_distance_matters():
    """R is indexed by query − key: with the other sign every sine turns."""
    within(NUMPY["transformer_xl"](q, k, Q, K), equation("transformer_xl"), 1e-12)
    assert np.abs(NUMPY["transformer_xl"](q, k, -Q, -K) - np.array(equation("transformer_xl"))).max() > 1


# ---------------------------------------------------------------- DeBERTa

A41 = [0, 1, 127, 128, 129, 130, 200, 256, 300, 511, -128, -129, -200, -511]
A41_RIGHT = [0, 1, 127, 128, 129, 130, 169, 192, 207, 255, -128, -129, -169, -255]
A41_384 = [0, 1, 127, 128, 129, 130, 180, 209, 227, 289, -128, -129, -180, -289]


def test_A41_buckets():
    for as_array in (np.asarray, torch.tensor):
        assert deberta_bucket(as_array(A41), bucket_size=256, max_position=512).tolist() == A41_RIGHT
    by_text_length = deberta_bucket(np.array(A41), bucket_size=256, max_position=384).tolist()
    assert by_text_length != A41_RIGHT  # max_position is the model's, not that of the text
    inside = np.abs(A41) < 384
    assert np.array_equal(np.array(by_text_length)[inside], np.array(A41_384)[inside])


@pytest.mark.parametrize(
    ("buckets", "max_position"), [(256, 512), (128, 512), (32, 128), (8, 33), (9, 33), (16, 129), (4, 9)]
)
def test_buckets_equal_exact_logarithms_and_transformers_except_where_floats_miss_a_boundary(buckets, max_position):
    distance = np.arange(max_position)
    right, whole = np.array([log_bucket(int(n), buckets, max_position) for n in distance]).T
    ours = deberta_bucket(np.stack([distance, -distance]), bucket_size=buckets, max_position=max_position)
    assert np.array_equal(ours, [right, -right])
    theirs = deberta_v2.make_log_bucket_position(torch.from_numpy(distance), buckets, max_position).numpy()
    # a float logarithm may land just above a whole number and be rounded up
    assert np.all((theirs == right) | ((whole == 1) & (theirs == right + 1)))
    if (buckets, max_position) in ((256, 512), (128, 512)):  # published configurations: no exception
        assert np.array_equal(theirs, right)
    assert log_bucket_ends(buckets, max_position)[-1] == max_position - 1


def test_deberta_disagreement_beyond_max_position_transformers_counts_on():
    """Ours stays in the last bucket. Theirs leaves the range; only the clamp of the row stops it, at row 0."""
    far = torch.tensor([511, 512, 600, 5000])
    assert deberta_bucket(far, bucket_size=256, max_position=512).tolist() == [255] * 4
    theirs = deberta_v2.make_log_bucket_position(far, 256, 512).long()
    assert theirs.tolist()[:2] == [255, 256] and (theirs.diff() > 0).all()
    ours = deberta_index(torch.tensor([0]), far, span=256, max_position=512)[0, 0, 0]
    assert ours.tolist() == [1] * 4  # query − key = −511 and below
    assert (256 - theirs).clamp(0, 511).tolist() == [1, 0, 0, 0]


def deberta_layer(version):
    """The attention of transformers in float64, with its relative embeddings."""
    torch.manual_seed(0)
    common = {
        "hidden_size": HEADS * HEAD_DIM, "num_attention_heads": HEADS, "pos_att_type": ["c2p", "p2c"],
        "relative_attention": True,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    if version == 1:
        layer = deberta_v1.DisentangledSelfAttention(DebertaConfig(**common, max_relative_positions=SPAN))
    else:
        config = DebertaV2Config(
            **common, max_relative_positions=MAX_POSITION, position_buckets=BUCKETS, share_att_key=False
        )
        layer = deberta_v2.DisentangledSelfAttention(config)
    torch.nn.init.normal_((layer.pos_q_proj if version == 1 else layer.pos_query_proj).bias)
    if version == 2:  # transformers adds a bias to the keys' projection, which the paper does not have
        torch.nn.init.zeros_(layer.pos_key_proj.bias)
    rows = 2 * (SPAN if version == 1 else BUCKETS)
    return layer.double().eval(), torch.from_numpy(draw((rows, HEADS * HEAD_DIM)))


def our_deberta(layer, embeddings, version, p2c_index):
    ours = DeBERTa(
        HEADS, HEAD_DIM, span=embeddings.shape[0] // 2, p2c_index=p2c_index,
        max_position=None if version == 1 else MAX_POSITION,
    ).double()  # fmt: skip
    key, query = (layer.pos_proj, layer.pos_q_proj) if version == 1 else (layer.pos_key_proj, layer.pos_query_proj)
    for mine, theirs in ((ours.key, key), (ours.query, query)):
        mine.load_state_dict({name: p for name, p in theirs.state_dict().items() if name in mine.state_dict()})
    ours.relative = torch.nn.Parameter(embeddings)
    return ours


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("length", [3, 9])
def test_deberta_equals_transformers_with_the_released_index_and_not_with_the_papers(version, length):
    """By name: the released p2c reads row δ(i, j), the paper's equation 4 says δ(j, i)."""
    layer, embeddings = deberta_layer(version)
    outputs = {index: our_deberta(layer, embeddings, version, index) for index in ("released", "paper")}
    x, p = torch.from_numpy(draw((BATCH, length, HEADS * HEAD_DIM))), torch.arange(length)

    def by_head(y):
        return y.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

    mask = torch.ones(BATCH, 1, length, length)
    theirs = layer(x, mask, rel_embeddings=embeddings, **(
        {"relative_pos": deberta_v1.build_relative_position(x, x)} if version == 1 else {}
    ))[0]  # fmt: skip
    if version == 1:
        query, key, value = layer.transpose_for_scores(layer.in_proj(x)).chunk(3, dim=-1)
        query, value = (y + by_head(b[None, None]) for y, b in ((query, layer.q_bias), (value, layer.v_bias)))
    else:
        query, key, value = (by_head(f(x)) for f in (layer.query_proj, layer.key_proj, layer.value_proj))
    got = {
        index: attention(query, key, value, encoding=e, q_positions=p, k_positions=p).transpose(1, 2).flatten(2)
        for index, e in outputs.items()
    }
    within(got["released"], theirs.detach(), 1e-6)  # transformers takes its square root in float32
    assert (got["paper"] - theirs).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("p2c_index", "right"),
    [
        ("released", [[17.3205081, 23.0940108, 17.3205081], [23.0940108, 34.6410162, 34.6410162],
                      [23.0940108, 46.1880215, 51.9615242]]),
        ("paper", [[17.3205081, 46.1880215, 69.2820323], [11.5470054, 34.6410162, 69.2820323],
                   [5.77350269, 23.0940108, 51.9615242]]),
    ],
)  # fmt: skip
def test_A42_p2c_index_and_scale(p2c_index, right):
    query, key = np.zeros((1, 1, 3, 1)), np.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    queries, p = np.array([[10.0], [20.0], [30.0], [40.0]]), np.arange(3)
    got = deberta_bias(query, key, p, p, keys=0 * queries, queries=queries, p2c_index=p2c_index)
    within(got[0, 0], right, 5e-8)


def test_A42_scale():
    assert 1 / deberta_scale(64, terms=2) == pytest.approx(13.8564065, abs=5e-8)
    deberta = DeBERTa(2, 4, span=2, p2c_index="paper")
    assert 1 / deberta.logit_scale(64) == pytest.approx(13.8564065, abs=5e-8)
    assert abs(1 / deberta.logit_scale(64) - 8.0) > 5  # BERT's
    at = q, k, Q, K
    both, c2p, p2c = (
        deberta_bias(*at, keys=a, queries=b, p2c_index="paper")
        for a, b in ((SPAN_KEYS, SPAN_QUERIES), (SPAN_KEYS, None), (None, SPAN_QUERIES))
    )
    within((c2p + p2c) * math.sqrt(2 / 3), both, 1e-13)  # with one term alone the divisor is √(2d)


# ---------------------------------------------------------------- CoPE


def test_cope_equals_x_transformers_in_causal_attention():
    length = 7
    query, key = torch.from_numpy(draw((2, BATCH, HEADS, length, HEAD_DIM)))
    witness = x_transformers.CoPE(HEAD_DIM, HEADS, COUNTED).double()
    torch.nn.init.normal_(witness.pos_emb)
    p = torch.arange(length)
    mask = causal(p, p)
    # it is given the masked logits, as in the paper's appendix B, so that gates of the future are closed
    logits = (query @ key.mT / math.sqrt(HEAD_DIM)).masked_fill(~mask, -torch.inf)
    theirs = witness(query, logits)
    ours = cope_bias(query, key, p, p, witness.pos_emb, scaled=False)
    within(ours, theirs.detach(), 1e-12)
    within(ours / math.sqrt(HEAD_DIM), cope_bias(query, key, p, p, witness.pos_emb, scaled=True).detach(), 1e-12)


def test_cope_counts_tokens_when_all_gates_are_open_and_stay_at_the_last():
    """q·k → ∞: the count of a key is i − j + 1, so CoPE contains relative positions."""
    ones, p = np.full((1, 1, 6, 1), 40.0), np.arange(6)
    table = np.array([[0.0], [1.0], [4.0], [9.0]]) / 40
    got = cope_bias(ones, ones, p, p, table, scaled=False)[0, 0]
    right = [[min(max(i - j + 1, 0), 3) ** 2 for j in range(6)] for i in range(6)]
    within(got, right, 1e-12)
    assert np.isfinite(cope_bias(ones * 1e30, -ones * 1e30, p, p, table, scaled=False)).all()  # σ does not overflow


def test_cope_counts_equal_their_specification_whatever_the_order_of_keys():
    gates = rng.uniform(size=(BATCH, HEADS, Q_LEN, K_LEN))
    for positions in (K, K[0]):
        within(cope_counts(gates, positions), cope_counts_by_pair(gates, positions), 1e-14)
        within(cope_counts(torch.tensor(gates), torch.tensor(positions)), cope_counts_by_pair(gates, positions), 1e-14)


def test_cope_needs_the_mask_with_padding_and_packing():
    """Masked keys are not counted: padded rows and packed documents equal separate runs, only with the mask."""
    length = 7
    query, key, table = draw((1, 2, length, HEAD_DIM)), draw((1, 2, length, HEAD_DIM)), COUNT_TABLE[0]
    left, right, ids = (
        np.array([[0, 0, 1, 1, 1, 1, 1]]),
        np.array([[1, 1, 1, 1, 1, 0, 0]]),
        np.array([3, 3, 4, 4, 4, 4, 4]),
    )
    for positions, mask, part, needed in (
        (positions_from_mask(left), left[:, None, None, :] == 1, slice(2, 7), False),  # sorted before all others
        (positions_from_mask(right), right[:, None, None, :] == 1, slice(5), True),
        (packed_positions(ids), same_document(ids, ids), slice(2, 7), True),
    ):
        inside = (slice(None), slice(None), part, part)
        keep = np.broadcast_to(causal(positions, positions) & mask, (1, 2, length, length))[inside]
        together = cope_bias(query, key, positions, positions, table, scaled=True, mask=mask)[inside]
        at = np.arange(5)
        alone = cope_bias(query[:, :, part], key[:, :, part], at, at, table, scaled=True)
        within(together[keep], alone[keep], 1e-14)
        without = cope_bias(query, key, positions, positions, table, scaled=True)[inside]
        assert (np.abs(without[keep] - alone[keep]).max() > 1e-2) == needed


def test_cope_disagreement_the_code_divides_the_position_logits_and_appendix_b_does_not():
    scaled, unscaled = (cope_bias(q, k, Q, K, COUNT_TABLE, scaled=s) for s in (True, False))
    within(scaled * math.sqrt(HEAD_DIM), unscaled, 1e-13)
    assert np.abs(scaled - unscaled).max() > 0.1


# ---------------------------------------------------------------- properties of all


def heads(seed, length, count=HEADS):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((BATCH, count, length, HEAD_DIM)))


@pytest.mark.parametrize("name", NAMES)
def test_numpy_equals_torch_at_far_positions(name):
    i, j = np.array([0, 999_999, 1_000_000, 17]), np.array([0, 1, 500_000, 999_000, 999_998, 1_000_000, 16])
    in_torch = functions(torch.tensor)[name](torch.tensor(q), torch.tensor(k), torch.tensor(i), torch.tensor(j))
    angles = 1e6 * 4 * U["float64"] * 1e3 * (name == "transformer_xl")  # the libraries' sines of angles up to 1e6
    within(in_torch, NUMPY[name](q, k, i, j), 2 * U["float64"] * rounding(name) + angles)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shift", [1, 900_000])
def test_a_common_shift_changes_nothing(name, shift):
    tolerance = 1e-7 if name == "transformer_xl" else 0.0  # an angle near 1e6 is a multiple of 2⁻³³
    within(NUMPY[name](q, k, Q + shift, K + shift), NUMPY[name](q, k, Q, K), tolerance)
    assert np.abs(NUMPY[name](q, k, Q + 1, K) - NUMPY[name](q, k, Q, K)).max() > 0.1


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("chunks", [(1,) * 7, (4, 2, 1)])
def test_decoding_with_a_cache_equals_one_pass(name, chunks):
    encoding, p = encodings()[name], torch.arange(7)
    query, key, value = heads(1, 7), heads(2, 7, KV_HEADS), heads(3, 7, KV_HEADS)
    full = attention(query, key, value, encoding=encoding, q_positions=p, k_positions=p, mask=causal(p, p))
    rows, start = [], 0
    for end in np.cumsum(chunks):
        at = {"q_positions": p[start:end], "k_positions": p[:end]}
        mask = causal(p[start:end], p[:end])
        rows.append(
            attention(query[:, :, start:end], key[:, :, :end], value[:, :, :end], encoding=encoding, **at, mask=mask)
        )
        start = end
    within(torch.cat(rows, dim=2), full.detach(), 1e-13)


@pytest.mark.parametrize("name", [name for name in MODULES if "cope" not in name])
def test_padded_rows_and_packed_documents_equal_separate_runs(name):
    encoding, length = encodings()[name], 7
    query, key, value = heads(1, length), heads(2, length), heads(3, length)
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]], dtype=torch.bool)
    ids = torch.tensor([[5, 5, 8, 8, 8, 8, 8], [1, 1, 1, 1, 2, 2, 2]])
    for positions, mask in (
        (positions_from_mask(real), real[:, None, None, :]),
        (packed_positions(ids), same_document(ids, ids)),
    ):
        at = {"q_positions": positions, "k_positions": positions}
        got = attention(query, key, value, encoding=encoding, **at, mask=causal(positions, positions) & mask)
        for b, part in ((0, slice(2, None)), (1, slice(4))):
            p = torch.arange(length)[part] - (part.start or 0)
            alone = [x[b : b + 1, :, part] for x in (query, key, value)]
            expected = attention(*alone, encoding=encoding, q_positions=p, k_positions=p, mask=causal(p, p))
            within(got[b : b + 1, :, part], expected.detach(), 1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_module_adds_its_function_and_keeps_the_dtype(name):
    p = torch.arange(7)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        encoding = encodings()[name]  # float64 parameters, whatever the input
        out = attention(*(heads(s, 7).to(dtype) for s in range(3)), encoding=encoding, q_positions=p, k_positions=p)
        exact = attention(
            *(heads(s, 7).to(dtype).double() for s in range(3)), encoding=encoding, q_positions=p, k_positions=p
        )
        assert out.dtype == dtype and out.isfinite().all()
        unit = torch.finfo(dtype).eps / 2
        # logits are off by a few thousand units of float32 at most (see rounding), the output is rounded once
        inside = 0.0 if dtype == torch.float64 else 1e-3
        assert (out - exact).abs().max() <= 4 * unit * exact.abs().max() + inside
        bias = encoding.bias(heads(0, 7).float(), heads(1, 7).float(), q_positions=p, k_positions=p)
        assert bias.dtype == torch.float32


@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_inputs_and_parameters_are_those_of_finite_differences(name):
    encoding, p = encodings()[name], torch.tensor([4, 0, 9])
    mask = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    x = [heads(s, 3)[:1].requires_grad_() for s in (4, 5, 6)]

    def run(query, key, value, *_):
        return attention(query, key, value, encoding=encoding, q_positions=p, k_positions=p, mask=mask)[:, ::3, :, :2]

    parameters = list(encoding.parameters())
    assert torch.autograd.gradcheck(run, (*x, *parameters), fast_mode=True)
    grads = torch.autograd.grad(run(*x).square().sum(), parameters)
    assert all(g.abs().max() > 0 for g in grads)


@pytest.mark.parametrize("name", MODULES)
def test_meta_device_needs_no_values(name):
    encoding, p = encodings()[name].to("meta"), torch.arange(7, device="meta")
    x = torch.empty(BATCH, HEADS, 7, HEAD_DIM, device="meta")
    out = attention(x, x, x, encoding=encoding, q_positions=p, k_positions=p, mask=causal(p, p))
    assert out.device.type == "meta" and out.shape == x.shape


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("name", ["shaw", "transformer_xl", "deberta log", "cope"])
def test_compiles_to_one_graph_for_all_lengths(name):
    torch._dynamo.reset()
    counter, encoding = CompileCounter(), encodings()[name]

    def run(x, p):
        at = {"q_positions": p, "k_positions": p}
        return encoding.values(encoding.bias(x, x, **at), x, **at)

    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=True)
    for length in (3, 5, 9):
        x, p = heads(length, length), torch.arange(length)
        within(compiled(x, p), run(x, p).detach(), 1e-11)
    assert counter.frame_count == 1


def test_reset_draws_with_the_given_deviation_and_layers_can_share():
    for encoding in encodings(std=0.5).values():
        before = [p.clone() for p in encoding.parameters()]
        encoding.reset_parameters()
        changed = [not torch.equal(a, b) for a, b in zip(before, encoding.parameters(), strict=True)]
        assert sum(changed) >= len(changed) - isinstance(encoding, DeBERTa)  # its bias starts at 0
    assert Shaw(200, max_distance=20, init_std=0.5).keys.std().item() == pytest.approx(0.5, rel=0.1)
    assert not CoPE(4, num_positions=3, scaled=True).table.any()
    first, second = (DeBERTa(2, 4, span=2, p2c_index="paper") for _ in range(2))
    second.relative = first.relative
    assert second.relative is first.relative and len(list(torch.nn.ModuleList([first, second]).parameters())) == 7


# ---------------------------------------------------------------- errors

P3 = np.arange(3)
X3 = np.zeros((1, 2, 3, 4))
T5 = np.zeros((5, 4))
T6 = np.zeros((6, 4))
UV, W = np.zeros((2, 4)), np.zeros((2, 4, 6))
XL = partial(transformer_xl_bias, X3, X3, P3, P3)
DE = partial(deberta_bias, X3, X3, P3, P3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: shaw_bias(X3, P3, P3, T6), ValueError, r"odd number of rows, 2K \+ 1, got 6"),
        (lambda: shaw_bias(X3, P3, P3, np.zeros((5, 3))), ValueError, r"keys must be \(rows, 4\).*got shape \(5, 3\)"),
        (lambda: shaw_bias(X3, P3, P3, np.zeros((3, 5, 4))), ValueError, r"\(2, rows, 4\), got shape \(3, 5, 4\)"),
        (lambda: shaw_bias(X3[0], P3, P3, T5), ValueError, r"q must be .*got shape \(2, 3, 4\)"),
        (lambda: shaw_bias(X3, np.arange(2), P3, T5), ValueError, r"q_positions must have shape \(3,\).*got \(2,\)"),
        (lambda: shaw_bias(X3, P3 * 1.0, P3, T5), TypeError, "integers to look up a table, got float64"),
        (lambda: shaw_bias(X3.astype(int), P3, P3, T5), TypeError, "q must be floating point, got int64"),
        (lambda: shaw_bias(X3, P3, P3, T5.astype(int)), TypeError, "keys must be floating point, got int64"),
        (lambda: shaw_bias(X3, P3.astype(np.float16), P3, T5), TypeError, "float16: half precision"),
        (lambda: shaw_values(X3[..., :3], P3, np.arange(4), T5), ValueError, r"k_positions must have shape \(3,\)"),
        (lambda: shaw_values(X3[..., :3], P3, P3, T6), ValueError, "values must have an odd number of rows.*got 6"),
        (lambda: shaw_index(P3, P3, max_distance=-1), ValueError, "max_distance must be at least 0, got -1"),
        (lambda: shaw_bias_skewed(X3, T5, k_len=2), ValueError, "k_len must be at least q_len = 3, got 2"),
        (lambda: Shaw(4, max_distance=1.5), TypeError, "max_distance must be an integer, got 1.5"),
        (lambda: XL(u=UV[0], v=UV, w_r=W), ValueError, r"u must be \(heads, head_dim\) = \(2, 4\), got shape \(4,\)"),
        (lambda: XL(u=UV, v=UV[:1], w_r=W), ValueError, r"v must be .* got shape \(1, 4\)"),
        (lambda: XL(u=UV, v=UV, w_r=W[..., :5]), ValueError, "d_model of w_r must be even, got 5"),
        (lambda: XL(u=UV, v=UV, w_r=W[0]), ValueError, r"w_r must be .* = \(2, 4, 6\), got shape \(4, 6\)"),
        (lambda: XL(u=UV, v=UV, w_r=None), TypeError, "w_r must be an array, got None"),
        (lambda: XL(u=UV, v=UV, w_r=W, base=math.nan), ValueError, "base must be .* got nan"),
        (
            lambda: transformer_xl_bias_shifted(X3, X3[:, :, :2], u=UV, v=UV, w_r=W, causal=True),
            ValueError,
            "k_len must be at least q_len = 3, got 2",
        ),
        (
            lambda: transformer_xl_bias_shifted(X3, X3, u=UV, v=UV, w_r=W, causal=1),
            TypeError,
            "causal must be True or False, got 1",
        ),
        (lambda: transformer_xl_bias(X3, X3[:, :1], P3, P3, u=UV, v=UV, w_r=W), ValueError, "q and k must share"),
        (lambda: TransformerXL(2, 4, d_model=7), ValueError, "d_model must be even, got 7"),
        (lambda: DE(keys=T6, queries=T6, p2c_index="theirs"), ValueError, "'paper', 'released', got 'theirs'"),
        (lambda: DE(keys=T5, queries=T5, p2c_index="paper"), ValueError, r"same even number of rows, got \[5\]"),
        (lambda: DE(keys=T6, queries=T6[:4], p2c_index="paper"), ValueError, r"same even number of rows, got \[4, 6\]"),
        (lambda: DE(keys=None, queries=None, p2c_index="paper"), ValueError, r"same even number of rows, got \[\]"),
        (lambda: DE(keys=T6, queries=None, p2c_index="paper", max_position=9), ValueError, "bucket_size.*got 3"),
        (lambda: log_bucket_ends(256, 129), ValueError, r"must exceed bucket_size // 2 \+ 1 = 129, got 129"),
        (lambda: deberta_bucket(P3 * 0.5, bucket_size=8, max_position=33), TypeError, "signed integers .* got float64"),
        (lambda: deberta_scale(0, terms=2), ValueError, "head_dim must be at least 1, got 0"),
        (lambda: deberta_index(P3, P3, span=0), ValueError, "span must be at least 1, got 0"),
        (lambda: cope_bias(X3, X3, P3, P3, T5, scaled=None), TypeError, "scaled must be True or False, got None"),
        (lambda: cope_bias(X3, X3, P3, P3, T5[:, :3], scaled=True), ValueError, r"table must be .*got shape \(5, 3\)"),
        (
            lambda: cope_bias(X3, X3, P3, P3, T5, scaled=True, mask=np.ones((3, 3))),
            TypeError,
            r"mask must be boolean \(True keeps\), got float64",
        ),
        (
            lambda: cope_bias(X3, X3, P3, P3, T5, scaled=True, mask=np.ones((2, 1, 3, 3), dtype=bool)),
            ValueError,
            r"mask must broadcast to \(1, 2, 3, 3\)",
        ),
        (lambda: CoPE(4, num_positions=0, scaled=True), ValueError, "num_positions must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_errors_name_the_value_and_the_rule(call, error, message):
    with pytest.raises(error, match=message):
        call()
