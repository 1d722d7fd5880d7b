"""Properties that hold for all encodings of the registry, or exactly where their Spec says so.

A new encoding joins by an entry in EXAMPLES.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from posenc_ref import attention, create, names
from posenc_ref.attention import Encoding
from posenc_ref.positions import causal, packed_positions, positions_from_mask, same_document
from posenc_ref.registry import spec
from posenc_ref.rotary import cos_sin, inv_freq, rotate

BATCH, SEQ, D_MODEL, HEADS, KV_HEADS, HEAD_DIM = 2, 7, 20, 6, 3, 12

EXAMPLES = [
    ("nope", {}),
    ("sinusoidal", {"d_model": D_MODEL, "layout": "interleaved"}),
    ("sinusoidal", {"d_model": D_MODEL, "layout": "concatenated", "exponent": "tensor2tensor"}),
    ("rope", {"head_dim": HEAD_DIM, "layout": "half"}),
    ("rope", {"head_dim": HEAD_DIM, "layout": "interleaved", "rotary_dim": 8, "base": 500.0}),
]
IDS = ["-".join([name, *map(str, arguments.values())]) for name, arguments in EXAMPLES]


@pytest.fixture(params=EXAMPLES, ids=IDS)
def encoding(request):
    name, arguments = request.param
    return create(name, **arguments)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


WEIGHTS = [draw(i, D_MODEL, heads * HEAD_DIM) / D_MODEL**0.5 for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))]


def project(encoding, x, positions):
    """Embed the positions and make q, k and v, all three with the right number of heads."""
    x = encoding.embed(x, positions=positions)
    weights = [torch.from_numpy(w).to(x) if torch.is_tensor(x) else w.astype(x.dtype) for w in WEIGHTS]
    return [(x @ w).reshape(*x.shape[:2], -1, HEAD_DIM).swapaxes(1, 2) for w in weights]


def layer(encoding, x, positions, mask=None):
    """One attention layer, (batch, seq, d_model) → (batch, heads, seq, head_dim), with the encoding where it acts."""
    q, k, v = project(encoding, x, positions)
    return attention(q, k, v, encoding=encoding, q_positions=positions, k_positions=positions, mask=mask)


def test_every_encoding_is_tested_here():
    assert {name for name, _ in EXAMPLES} == set(names())


def test_each_acts_where_its_spec_says(encoding):
    """Changed are exactly the places named in acts_on."""
    x, q, k, p = draw(0, 1, 5, D_MODEL), draw(1, 1, HEADS, 5, HEAD_DIM), draw(2, 1, HEADS, 5, HEAD_DIM), np.arange(5)
    turned = encoding.rotate(q, k, q_positions=p, k_positions=p)
    changed = {
        "embedding": not np.array_equal(encoding.embed(x, positions=p), x),
        "queries and keys": not (np.array_equal(turned[0], q) and np.array_equal(turned[1], k)),
        "logits": encoding.bias(q, k, q_positions=p, k_positions=p) is not None,
        "values": type(encoding).values is not Encoding.values,
    }
    assert {place for place, yes in changed.items() if yes} == set(
        {"nothing": [], "logits and values": ["logits", "values"]}.get(encoding.spec.acts_on, [encoding.spec.acts_on])
    )


def test_order_matters_unless_there_is_no_encoding(encoding):
    x, p, order = draw(0, BATCH, SEQ, D_MODEL), np.arange(SEQ), np.array([3, 0, 6, 1, 5, 2, 4])
    change = np.abs(layer(encoding, x[:, order], p) - layer(encoding, x, p)[:, :, order]).max()
    assert change < 1e-13 if encoding.spec.acts_on == "nothing" else change > 1e-2


def test_tokens_may_be_shuffled_together_with_their_positions(encoding):
    x, p, order = draw(0, BATCH, SEQ, D_MODEL), np.array([2, 9, 4, 0, 5, 30, 7]), np.array([3, 0, 6, 1, 5, 2, 4])
    got, mask = layer(encoding, x[:, order], p[order], causal(p, p)[:, order][:, :, order]), causal(p, p)
    assert np.abs(got - layer(encoding, x, p, mask)[:, :, order]).max() < 1e-13


@pytest.mark.parametrize("shift", [1, 1000, 900_000])
def test_shift_invariance_as_claimed(encoding, shift):
    x, p = draw(0, BATCH, SEQ, D_MODEL), np.arange(SEQ)
    change = np.abs(layer(encoding, x, p + shift) - layer(encoding, x, p)).max()
    # an angle near 1e6 is a multiple of 2⁻³³
    assert change < 1e-8 if encoding.spec.shift_invariant else change > 1e-2


@pytest.mark.parametrize("chunks", [(1,) * SEQ, (4, 2, 1)])
def test_decoding_with_a_cache_equals_one_pass(encoding, chunks):
    x, p = draw(0, BATCH, SEQ, D_MODEL), np.arange(SEQ)
    full = layer(encoding, x, p, causal(p, p))
    rows, start = [], 0
    for end in np.cumsum(chunks):
        seen = p[:end]
        q, k, v = project(encoding, x[:, :end], seen)
        rows.append(
            attention(q[:, :, start:], k, v, encoding=encoding, q_positions=seen[start:], k_positions=seen,
                      mask=causal(seen[start:], seen))
        )  # fmt: skip
        start = end
    assert np.abs(np.concatenate(rows, axis=2) - full).max() < 1e-13


def test_padded_rows_equal_separate_runs(encoding):
    x = draw(0, 3, SEQ, D_MODEL)
    real = np.array([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1] * SEQ], dtype=bool)
    x[~real] = 50.0
    p = positions_from_mask(real)
    got = layer(encoding, x, p, causal(p, p) & real[:, None, None])
    for b in range(3):
        at = np.arange(real[b].sum())
        alone = layer(encoding, x[b : b + 1, real[b]], at, causal(at, at))[0]
        assert np.abs(got[b][:, real[b]] - alone).max() < 1e-12


def test_packed_documents_equal_separate_runs(encoding):
    x, ids = draw(0, BATCH, SEQ, D_MODEL), np.array([[1, 1, 1, 2, 2, 2, 2], [5, 8, 8, 8, 8, 3, 3]])
    p = packed_positions(ids)
    got = layer(encoding, x, p, causal(p, p) & same_document(ids, ids))
    for b, document in ((row, d) for row in range(BATCH) for d in set(ids[row])):
        at = np.arange((ids[b] == document).sum())
        alone = layer(encoding, x[b : b + 1, ids[b] == document], at, causal(at, at))[0]
        assert np.abs(got[b][:, ids[b] == document] - alone).max() < 1e-12


def test_rows_of_a_batch_do_not_see_each_other(encoding):
    x, p = draw(0, 3, SEQ, D_MODEL), np.array([np.arange(SEQ), np.arange(SEQ) + 5, np.arange(SEQ) * 2])
    together = layer(encoding, x, p)
    for b in range(3):
        assert np.abs(together[b] - layer(encoding, x[b : b + 1], p[b])[0]).max() < 1e-13


def test_heads_do_not_see_each_other(encoding):
    p = np.arange(SEQ)
    q, k, v = project(encoding, draw(0, BATCH, SEQ, D_MODEL), p)
    for side, head, touched in (("q", 4, [4]), ("k", 1, [2, 3]), ("v", 1, [2, 3])):
        other = {"q": q, "k": k, "v": v} | {side: {"q": q, "k": k, "v": v}[side].copy()}
        other[side][:, head] += draw(1, BATCH, SEQ, HEAD_DIM)
        at = {"encoding": encoding, "q_positions": p, "k_positions": p}
        change = np.abs(attention(**other, **at) - attention(q, k, v, **at)).max(axis=(0, 2, 3))
        assert np.flatnonzero(change > 1e-3).tolist() == touched and np.flatnonzero(change).tolist() == touched


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_inputs_are_not_changed(encoding, library):
    p, x = np.arange(3, 3 + SEQ), draw(0, BATCH, SEQ, D_MODEL)
    inputs = [x, p, causal(p, p)]
    if library == "torch":
        inputs = [torch.from_numpy(a) for a in inputs]
    before = [np.asarray(a).copy() for a in inputs]
    layer(encoding, *inputs)
    assert all(np.array_equal(a, b) for a, b in zip(inputs, before, strict=True))
    q = inputs[0][:, None, :, :HEAD_DIM]
    encoding.rotate(q, q, q_positions=inputs[1], k_positions=inputs[1])
    assert np.array_equal(inputs[0], before[0])


@pytest.mark.parametrize("positions", ["int32", "int64", "float32", "float64"])
def test_numpy_and_torch_agree(encoding, positions):
    x, p = draw(0, BATCH, SEQ, D_MODEL), np.array([0, 1, 5, 257, 4095, 131_071, 999_999]).astype(positions)
    by_numpy, by_torch = layer(encoding, x, p), layer(encoding, torch.from_numpy(x), torch.from_numpy(p))
    assert isinstance(by_numpy, np.ndarray) and by_torch.dtype == torch.float64
    # the libraries' cos and sin may differ in the last place, their sums in order
    assert np.abs(by_numpy - by_torch.numpy()).max() < 1e-13


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_is_kept_and_rounded_once_up_to_a_million(encoding, dtype):
    p = torch.tensor([0, 1, 5, 257, 4095, 131_071, 999_999])
    x, q, k = (torch.from_numpy(a).to(dtype) for a in (
        draw(0, BATCH, SEQ, D_MODEL), draw(1, BATCH, HEADS, SEQ, HEAD_DIM), draw(2, BATCH, KV_HEADS, SEQ, HEAD_DIM)
    ))  # fmt: skip
    at = {"q_positions": p, "k_positions": p}

    def places(x, q, k):
        return encoding.embed(x, positions=p), *encoding.rotate(q, k, **at), attention(q, k, k, encoding=encoding, **at)

    u = torch.finfo(dtype).eps / 2
    inside = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2
    for got, exact in zip(places(x, q, k), places(x.double(), q.double(), k.double()), strict=True):
        assert got.dtype == dtype
        # inside: sums of HEAD_DIM products, each up to 16, in logits of which the weights are exponentials
        assert ((got.double() - exact).abs() <= u * exact.abs() + 16 * 2 * HEAD_DIM * inside).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtype_is_kept_by_numpy(encoding, dtype):
    out = layer(encoding, draw(0, BATCH, SEQ, D_MODEL).astype(dtype), np.arange(SEQ))
    assert out.dtype == dtype and np.isfinite(out).all()


def test_device_is_kept(encoding):
    """On the meta device there are no values to read and no CPU tables to mix with."""
    x, p = torch.empty(BATCH, SEQ, D_MODEL, device="meta"), torch.arange(SEQ, device="meta")
    out = layer(encoding, x, p, causal(p, p))
    assert out.device.type == "meta" and out.shape == (BATCH, HEADS, SEQ, HEAD_DIM)


def test_gradients_are_those_of_finite_differences(encoding):
    p = torch.tensor([4, 0, 9])
    mask = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    x = torch.from_numpy(draw(0, 1, 3, D_MODEL)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(encoding, x, p, mask)[:, ::2], x)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_compiles_to_one_graph_for_all_lengths(encoding):
    """fullgraph raises at a break; the second graph is the one for any length."""
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(lambda x, p: layer(encoding, x, p, causal(p, p)), backend=counter, fullgraph=True)
    for length in (3, 5, 6, 9, 16):
        # far away, where frequencies computed in less than float64 would show; the last place of float64 is 1e-9 there
        x, p = torch.from_numpy(draw(0, BATCH, length, D_MODEL)), torch.arange(length) + 999_000
        assert (compiled(x, p) - layer(encoding, x, p, causal(p, p))).abs().max() < 1e-8
    assert counter.frame_count <= 2


def test_specs_are_complete():
    for name in names():
        s = spec(name)
        assert s.name == name and s.source and s.acts_on
        assert "arXiv:" in s.source or "doi" in s.source.lower()


POSITION = st.integers(-1_000_000, 1_000_000)


@given(
    a=POSITION,
    b=POSITION,
    layout=st.sampled_from(["half", "interleaved"]),
    pairs=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_rotations_compose_and_keep_norms(a, b, layout, pairs, seed):
    """R(a) R(b) = R(a + b), R(−a) R(a) = 1, |R(a) x| = |x|; each angle is off by half a unit in its last place."""
    x, omega = draw(seed, 2 * pairs + 1), inv_freq(2 * pairs)

    def turn(x, p):
        return rotate(x, *cos_sin(np.array(p), omega), layout=layout)

    tolerance = (
        np.spacing(float(abs(a))) + np.spacing(float(abs(b))) + np.spacing(float(abs(a + b))) + 1e-14
    ) * np.abs(x).max()
    assert np.abs(turn(turn(x, a), b) - turn(x, a + b)).max() <= 2 * tolerance
    assert np.abs(turn(turn(x, a), -a) - x).max() <= 1e-14 * np.abs(x).max()
    assert np.isclose(np.linalg.norm(turn(x, a)), np.linalg.norm(x), rtol=1e-14)
