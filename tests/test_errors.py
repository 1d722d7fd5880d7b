"""Bad input raises an error that names the value and the rule; it never gives a plausible number."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_ref import attention, create
from posenc_ref.attention import masked_softmax
from posenc_ref.checks import check_base, check_size
from posenc_ref.embedding import Sinusoidal, sinusoidal, wavelengths
from posenc_ref.positions import causal, decode_positions, packed_positions, positions_from_mask, same_document
from posenc_ref.rotary import RoPE, convert_projection, cos_sin, inv_freq, permutation, rotate

P3 = np.arange(3)
Q = np.ones((2, 6, 3, 8))
K = np.ones((2, 3, 3, 8))
ROPE = RoPE(8, layout="half")
SINUS = Sinusoidal(8, layout="interleaved")
COS, SIN = cos_sin(P3, inv_freq(8))


def attend(q=Q, k=K, v=K, encoding=ROPE, q_positions=P3, k_positions=P3, mask=None):
    return attention(q, k, v, encoding=encoding, q_positions=q_positions, k_positions=k_positions, mask=mask)


TABLE = [
    # sizes and choices
    (lambda: RoPE(7, layout="half"), ValueError, "rotary_dim must be even, got 7"),
    (lambda: RoPE(8, layout="half", rotary_dim=3), ValueError, "rotary_dim must be even, got 3"),
    (lambda: RoPE(8, layout="half", rotary_dim=10), ValueError, "rotary_dim must be at most head_dim = 8, got 10"),
    (lambda: RoPE(8, layout="half", rotary_dim=0), ValueError, "rotary_dim must be at least 1, got 0"),
    (lambda: RoPE(-8, layout="half"), ValueError, "head_dim must be at least 1, got -8"),
    (lambda: RoPE(8.0, layout="half"), TypeError, "head_dim must be an integer, got 8.0"),
    (lambda: RoPE(True, layout="half"), TypeError, "head_dim must be an integer, got True"),
    (lambda: RoPE(8, layout="split"), ValueError, "layout must be one of 'interleaved', 'half', got 'split'"),
    (lambda: RoPE(8, layout=None), ValueError, "layout must be one of 'interleaved', 'half', got None"),
    (lambda: RoPE(8, layout="half", base=1), ValueError, "base must be a finite number above 1, got 1"),
    (lambda: check_base(float("inf")), ValueError, "base must be a finite number above 1, got inf"),
    (lambda: check_base("10000"), TypeError, "base must be a number, got '10000'"),
    (lambda: check_base(10**400), ValueError, f"base must be a finite number above 1, got {10**400}"),
    (lambda: check_size("d_model", np.float64(8)), TypeError, "d_model must be an integer, got np.float64(8.0)"),
    (lambda: sinusoidal(P3, 0, layout="interleaved"), ValueError, "d_model must be at least 1, got 0"),
    (
        lambda: sinusoidal(P3, 8, layout="half"),
        ValueError,
        "layout must be one of 'interleaved', 'concatenated', got 'half'",
    ),
    (
        lambda: sinusoidal(P3, 7, layout="interleaved", exponent="tensor2tensor"),
        ValueError,
        "d_model must be even, got 7",
    ),
    (lambda: wavelengths(8, exponent="t2t"), ValueError, "exponent must be one of 'paper', 'tensor2tensor', got 't2t'"),
    (lambda: create("rotary"), ValueError, "name must be one of "),
    # positions
    (lambda: sinusoidal([0, 1], 8, layout="interleaved"), TypeError, "positions must be an array, got [0, 1]"),
    (lambda: sinusoidal(3, 8, layout="interleaved"), TypeError, "positions must be an array, got 3"),
    (
        lambda: sinusoidal(P3 > 0, 8, layout="interleaved"),
        TypeError,
        "positions must be integers, float32 or float64, got bool",
    ),
    (
        lambda: sinusoidal(P3 + 1j, 8, layout="interleaved"),
        TypeError,
        "positions must be integers, float32 or float64, got complex128",
    ),
    (
        lambda: cos_sin(torch.arange(3).bfloat16(), inv_freq(8)),
        TypeError,
        "positions must be integers, float32 or float64, got bfloat16: half precision merges positions",
    ),
    (
        lambda: causal(P3, P3.astype(np.uint8)),
        TypeError,
        "k_positions must be integers, float32 or float64, got uint8: differences of unsigned integers wrap around",
    ),
    (lambda: cos_sin(np.array([0.0, np.nan]), inv_freq(8)), ValueError, "positions must be finite, got [ 0. nan]"),
    (
        lambda: cos_sin(P3, inv_freq(8), dtype=np.int64),
        TypeError,
        "dtype must be floating point, got <class 'numpy.int64'>",
    ),
    (lambda: attend(q_positions=None), ValueError, "q_positions must be given unless the encoding is NoPE, got None"),
    (lambda: attend(k_positions=np.arange(4)), ValueError, "k_positions must have shape (3,) or (2, 3), got (4,)"),
    (lambda: attend(k_positions=P3[None]), ValueError, "k_positions must have shape (3,) or (2, 3), got (1, 3)"),
    (
        lambda: SINUS.embed(np.zeros((1, 3, 8)), positions=np.zeros((2, 3), int)),
        ValueError,
        "positions must have shape (3,) or (1, 3), got (2, 3)",
    ),
    (lambda: decode_positions(0, 4), ValueError, "q_len must be at least 1, got 0"),
    (lambda: decode_positions(1, -2), ValueError, "cache_len must be at least 0, got -2"),
    (lambda: decode_positions(1, 2.5), TypeError, "cache_len must be an integer, got 2.5"),
    (lambda: positions_from_mask(np.ones(3)), ValueError, "attention_mask must be (batch, seq), got shape (3,)"),
    (
        lambda: positions_from_mask(np.array([[0.5, 1.0]])),
        ValueError,
        "attention_mask must hold 0 and 1 only, got [[0.5 1. ]]",
    ),
    (lambda: positions_from_mask([[1]]), TypeError, "attention_mask must be an array, got [[1]]"),
    (lambda: packed_positions(np.ones(3)), TypeError, "document_ids must be signed integers, got float64"),
    (
        lambda: packed_positions(np.array(3)),
        ValueError,
        "document_ids must be (seq,) or (batch, seq), got shape ()",
    ),
    (
        lambda: causal(np.zeros((2, 3), int), np.zeros((4, 3), int)),
        ValueError,
        "queries and keys must be (len,) or (batch, len), got shapes (2, 3) and (4, 3)",
    ),
    (
        lambda: same_document(np.array(1), P3),
        ValueError,
        "q_documents must be (seq,) or (batch, seq), got shape ()",
    ),
    # arrays
    (lambda: attend(q=Q.astype(int)), TypeError, "q must be floating point, got int64"),
    (lambda: attend(v=K + 1j), TypeError, "v must be floating point, got complex128"),
    (lambda: attend(k="abc"), TypeError, "k must be an array, got 'abc'"),
    (
        lambda: attend(k=K.astype(np.float32)),
        TypeError,
        "q, k and v must share a dtype, got float64, float32 and float64",
    ),
    (lambda: attend(q=Q[0]), ValueError, "q must be (batch, heads, seq, head_dim), none 0, got shape (6, 3, 8)"),
    (
        lambda: attend(k=K[:, :, :0], v=K[:, :, :0], k_positions=P3[:0]),
        ValueError,
        "k must be (batch, heads, seq, head_dim), none 0, got shape (2, 3, 0, 8)",
    ),
    (lambda: attend(k=K[..., :6], v=K[..., :6]), ValueError, "q and k must share head_dim, got 8 and 6"),
    (
        lambda: attend(v=K[:, :, :2]),
        ValueError,
        "k and v must share batch, heads and length, got (2, 3, 3, 8) and (2, 3, 2, 8)",
    ),
    (
        lambda: attend(q=Q[:, :4]),
        ValueError,
        "q needs the batch of k and a multiple of its heads, got (2, 4, 3, 8) and (2, 3, 3, 8)",
    ),
    (lambda: attend(mask=np.ones((3, 3))), TypeError, "mask must be boolean (True keeps), got float64"),
    (lambda: attend(mask=[[True]]), TypeError, "mask must be an array, got [[True]]"),
    (
        lambda: attend(mask=np.ones((4, 1, 3, 3), bool)),
        ValueError,
        "mask must broadcast to (2, 6, 3, 3), got shape (4, 1, 3, 3)",
    ),
    (lambda: attend(mask=np.ones((3, 2), bool)), ValueError, "mask must broadcast to (2, 6, 3, 3), got shape (3, 2)"),
    (lambda: attend(mask=torch.ones(3, 3, dtype=torch.bool)), TypeError, "Multiple namespaces for array inputs"),
    (lambda: attend(q_positions=torch.arange(3)), TypeError, "Multiple namespaces for array inputs"),
    (lambda: masked_softmax(np.arange(3)), TypeError, "logits must be floating point, got int64"),
    (
        lambda: ROPE.rotate(Q[0], Q[0], q_positions=P3, k_positions=P3),
        ValueError,
        "q must be (batch, heads, seq, head_dim = 8), got shape (6, 3, 8)",
    ),
    (
        lambda: ROPE.rotate(Q, Q[..., :6], q_positions=P3, k_positions=P3),
        ValueError,
        "k must be (batch, heads, seq, head_dim = 8), got shape (2, 6, 3, 6)",
    ),
    (
        lambda: SINUS.embed(np.zeros((3, 8)), positions=P3),
        ValueError,
        "x must be (batch, seq, d_model = 8), got shape (3, 8)",
    ),
    (lambda: SINUS.embed(np.zeros((1, 3, 8), int), positions=P3), TypeError, "x must be floating point, got int64"),
    (lambda: rotate(np.arange(8), COS, SIN, layout="half"), TypeError, "x must be floating point, got int64"),
    (lambda: rotate(np.array(1.0), COS, SIN, layout="half"), ValueError, "x must have at least one axis, got 1.0"),
    (
        lambda: rotate(Q, COS, SIN[:2], layout="half"),
        ValueError,
        "cos and sin must share a shape, got (3, 4) and (2, 4)",
    ),
    (
        lambda: rotate(torch.ones(2, 8), torch.ones(3, 4), torch.ones(3, 4), layout="half"),
        ValueError,
        "cos must broadcast to (2, 4), got shape (3, 4)",
    ),
    (
        lambda: rotate(Q[0, 0, :, :6], COS, SIN, layout="half"),
        ValueError,
        "rotary_dim must be at most head_dim = 6, got 8",
    ),
    (lambda: permutation(5, source="half", target="interleaved"), ValueError, "rotary_dim must be even, got 5"),
    (
        lambda: convert_projection(np.ones((10, 2)), head_dim=4, source="half", target="interleaved"),
        ValueError,
        "weight must have a multiple of head_dim = 4 rows, got 10",
    ),
    (
        lambda: convert_projection(np.array(1.0), head_dim=4, source="half", target="interleaved"),
        ValueError,
        "weight must have at least one axis, got 1.0",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "message"), TABLE, ids=[f"{i}: {m[:50]}" for i, (_, _, m) in enumerate(TABLE)]
)
def test_error_names_the_value_and_the_rule(call, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call()


# ---------------------------------------------------------------- fuzz

NAMES_THE_VALUE = re.compile(r"got |Multiple namespaces for array inputs")
FLOATS = ["float64"] * 8 + ["float32", "float16", "bfloat16", "int64", "bool", "complex128"]
INTS = ["int64"] * 8 + ["int32", "uint8", "uint64", "float64", "float32", "float16", "bfloat16", "bool", "complex64"]
MASKS = ["bool"] * 8 + ["int64", "float32"]
JUNK = [None, True, -1, 0, 2.5, float("nan"), "half", b"x", [0, 1], (), {}, object, np.float64(3), np.array("a"),
        np.array([None]), np.zeros(0), np.zeros((0, 3)), np.array(2), torch.zeros(0)]  # fmt: skip


@st.composite
def arrays(draw, dtypes, *shape, library=None):
    """Mostly an array of this shape; at times another shape, another dtype, or something that is no array."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.sampled_from(JUNK))
    if kind == 1 or not shape:
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(dtypes))
    values = np.abs(np.random.default_rng(draw(st.integers(0, 9))).standard_normal((1, *shape)) * 50)
    if library == "torch" or dtype == "bfloat16" or (library is None and draw(st.booleans())):
        return torch.from_numpy(values).to(getattr(torch, dtype))[0]
    return values.astype(dtype)[0]


def often(*values):
    """Mostly one of these values."""
    return st.sampled_from([*values * (3 * len(JUNK) // len(values)), *JUNK])


def inputs(**strategies):
    return st.fixed_dictionaries(strategies)


@st.composite
def attention_inputs(draw):
    library = draw(st.sampled_from(["numpy", "torch"]))
    b, group, kv, q_len, k_len, d = (draw(st.integers(1, 3)) for _ in range(6))
    same = [draw(st.sampled_from(["float64", "float32", "float16"]))] * 30 + FLOATS

    def of(dtypes, *shape):
        return draw(arrays(dtypes, *shape, library=library))

    return {
        "q": of(same, b, kv * group, q_len, 2 * d),
        "k": of(same, b, kv, k_len, 2 * d),
        "v": of(same, b, kv, k_len, 2 * d),
        "encoding": draw(st.sampled_from([create("nope"), RoPE(2 * d, layout="half")])),
        "q_positions": of(INTS, q_len),
        "k_positions": of(INTS, b, k_len),
        "mask": draw(st.none() | arrays(MASKS, q_len, k_len, library=library)),
    }


def shape(x):
    return tuple(x.shape)


def pairwise(**a):
    (q, k) = (shape(a[name]) for name in sorted(a, reverse=True))  # q_… before k_…
    return *max(q[:-1], k[:-1]), 1, q[-1], k[-1]


LAYOUT = often("half", "interleaved", "concatenated")
FUZZ = [
    (attention, attention_inputs(), lambda q, **_: shape(q)),
    (
        masked_softmax,
        inputs(logits=arrays(FLOATS, 2, 3), mask=st.none() | arrays(MASKS, 2, 3)),
        lambda logits, mask: shape(logits),
    ),
    (
        sinusoidal,
        inputs(
            positions=arrays(INTS),
            d_model=often(1, 2, 7, 12),
            layout=LAYOUT,
            base=often(10000, 2.0),
            exponent=often("paper", "tensor2tensor"),
        ),
        lambda positions, d_model, **_: (*shape(positions), d_model),
    ),
    (
        lambda x, positions: SINUS.embed(x, positions=positions),
        inputs(x=arrays(FLOATS, 2, 3, 8), positions=arrays(INTS, 3)),
        lambda x, positions: shape(x),
    ),
    (
        lambda positions: cos_sin(positions, inv_freq(8))[1],
        inputs(positions=arrays(INTS)),
        lambda positions: (*shape(positions), 4),
    ),
    (
        rotate,
        inputs(x=arrays(FLOATS, 2, 3, 8), cos=arrays(FLOATS, 3, 4), sin=arrays(FLOATS, 3, 4), layout=LAYOUT),
        lambda x, **_: shape(x),
    ),
    (
        lambda q, k, p, **rope: RoPE(**rope).rotate(q, k, q_positions=p, k_positions=p)[1],
        inputs(
            q=arrays(FLOATS, 1, 2, 3, 8),
            k=arrays(FLOATS, 1, 1, 3, 8),
            p=arrays(INTS, 3),
            head_dim=often(8),
            layout=LAYOUT,
            rotary_dim=often(8, 4, None),
            base=often(10000),
        ),
        lambda k, **_: shape(k),
    ),
    (inv_freq, inputs(rotary_dim=often(2, 8), base=often(2)), lambda rotary_dim, base: (rotary_dim // 2,)),
    (permutation, inputs(rotary_dim=often(2, 8), source=LAYOUT, target=LAYOUT), lambda rotary_dim, **_: (rotary_dim,)),
    (
        convert_projection,
        inputs(
            weight=arrays(FLOATS, 8, 3),
            head_dim=often(2, 4, 8),
            source=LAYOUT,
            target=LAYOUT,
            rotary_dim=often(None, 2, 4),
        ),
        lambda weight, **_: shape(weight),
    ),
    (causal, inputs(q_positions=arrays(INTS, 3), k_positions=arrays(INTS, 2, 4)), pairwise),
    (
        same_document,
        inputs(q_documents=arrays(INTS, 2, 3), k_documents=arrays(INTS, 4)),
        pairwise,
    ),
    (packed_positions, inputs(document_ids=arrays(INTS)), lambda document_ids: shape(document_ids)),
    (positions_from_mask, inputs(attention_mask=arrays(MASKS, 2, 3)), lambda attention_mask: shape(attention_mask)),
    (
        lambda **a: np.array(decode_positions(**a)),
        inputs(q_len=often(1, 4), cache_len=often(0, 7)),
        lambda q_len, **_: (q_len,),
    ),
]
FUZZ_IDS = ["attention", "masked_softmax", "sinusoidal", "embed", "cos_sin", "rotate", "RoPE", "inv_freq",
            "permutation", "convert_projection", "causal", "same_document", "packed_positions",
            "positions_from_mask", "decode_positions"]  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("function", "arguments", "expected_shape"), FUZZ, ids=FUZZ_IDS)
def test_any_input_gives_the_right_shape_or_a_named_error(function, arguments, expected_shape):
    outcomes = set()

    @settings(max_examples=100)
    @given(arguments)
    def run(a):
        try:
            result = function(**a)
        except (ValueError, TypeError, IndexError) as error:
            outcomes.add("error")
            assert NAMES_THE_VALUE.search(str(error)), f"{error!r} does not name the value"
            return
        outcomes.add("result")
        assert shape(result) == expected_shape(**a)
        assert (torch if torch.is_tensor(result) else np).isfinite(result).all()

    run()
    assert outcomes == {"error", "result"}, "the inputs must be good at times and bad at times"
