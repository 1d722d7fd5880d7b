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
from posenc_ref.rotary.scaled import PI, YaRN

BATCH, SEQ, D_MODEL, HEADS, KV_HEADS, HEAD_DIM = 2, 7, 20, 6, 3, 12

EXAMPLES = [
    ("nope", {}),
    ("sinusoidal", {"d_model": D_MODEL, "layout": "interleaved"}),
    ("sinusoidal", {"d_model": D_MODEL, "layout": "concatenated", "exponent": "tensor2tensor"}),
    ("rope", {"head_dim": HEAD_DIM, "layout": "half"}),
    ("rope", {"head_dim": HEAD_DIM, "layout": "interleaved", "rotary_dim": 8, "base": 500.0}),
    ("scaled_rope", {"head_dim": HEAD_DIM, "layout": "half", "scaling": PI(4.0)}),
    (
        "scaled_rope",
        {"head_dim": HEAD_DIM, "layout": "half", "scaling": YaRN(4.0, 64, mscale_all_dim=0.5), "rotary_dim": 8},
    ),
    ("axial_rope", {"head_dim": HEAD_DIM, "layout": "half"}),
    ("axial_rope", {"head_dim": HEAD_DIM, "layout": "interleaved", "axes": 3, "rotary_dim": 6}),
    ("multimodal_rope", {"head_dim": HEAD_DIM, "layout": "half", "sections": (2, 1, 2), "interleaved": False}),
    ("xpos", {"head_dim": HEAD_DIM, "layout": "interleaved", "reference": 3.0}),
    ("alibi", {"num_heads": HEADS, "causal": True}),
    ("alibi", {"num_heads": HEADS, "causal": False}),
    ("sandwich", {"num_heads": HEADS, "d_bar": 16}),
    ("learned", {"num_positions": 2 * SEQ, "d_model": D_MODEL, "offset": 2, "init_std": 1.0}),
    ("floater", {"d_model": D_MODEL, "delta": 0.25, "substeps": 1, "init_std": 1.0}),
    ("multiplicative", {"num_positions": 2 * SEQ, "d_model": D_MODEL, "init_std": 1.0}),
    ("multiplicative_sinusoidal", {"d_model": D_MODEL, "layout": "interleaved"}),
    ("t5", {"num_heads": HEADS, "bidirectional": True, "num_buckets": 8, "max_distance": 20}),
    ("t5", {"num_heads": HEADS, "bidirectional": False, "num_buckets": 8, "max_distance": 20}),
    ("kerple", {"num_heads": HEADS, "variant": "log"}),
    ("kerple", {"num_heads": HEADS, "variant": "power"}),
    ("fire", {"num_heads": HEADS, "width": 5, "threshold": 5.0}),
    ("shaw", {"head_dim": HEAD_DIM, "max_distance": 3, "num_heads": HEADS, "init_std": 1.0}),
    ("transformer_xl", {"num_heads": HEADS, "head_dim": HEAD_DIM, "d_model": D_MODEL, "init_std": 0.5}),
    ("deberta", {"num_heads": HEADS, "head_dim": HEAD_DIM, "span": 4, "p2c_index": "paper", "init_std": 1.0}),
    (
        "deberta",
        {
            "num_heads": HEADS,
            "head_dim": HEAD_DIM,
            "span": 4,
            "p2c_index": "released",
            "max_position": 9,
            "init_std": 1.0,
        },
    ),
    ("cope", {"head_dim": HEAD_DIM, "num_positions": 5, "scaled": True, "init_std": 1.0}),
]
TOO_FAR = {
    "xpos": "its factor leaves the range of the dtype, and is refused",
    "floater": "it takes one step for each position",
}


def ids(example):
    return "-".join([example[0], *map(str, example[1].values())])


class ForArrays(Encoding):
    """A learned encoding, which takes tensors, for tests that are written in arrays."""

    def __init__(self, module):
        self.module, self.spec, self.logit_scale = module, module.spec, module.logit_scale

    def _call(self, method, *arrays, **at):
        if torch.is_tensor(arrays[0]):
            return getattr(self.module, method)(*arrays, **at)
        tensors = [torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in arrays]
        at = {name: None if a is None else torch.from_numpy(np.array(a)) for name, a in at.items()}
        result = getattr(self.module, method)(*tensors, **at)
        return None if result is None else result.detach().numpy().astype(arrays[0].dtype)

    def embed(self, x, **positions):
        return self._call("embed", x, **positions)

    def bias(self, q, k, **at):
        return self._call("bias", q, k, **at)

    def values(self, weights, v, **positions):
        if self.spec.acts_on != "logits and values":
            return super().values(weights, v, **positions)
        return self._call("values", weights, v, **positions)


def make(name, arguments):
    torch.manual_seed(0)
    encoding = create(name, **arguments)
    return ForArrays(encoding.double()) if encoding.spec.learned else encoding


def count(formula, arguments):
    """The number of parameters that a Spec promises."""
    names = {"num_heads": 1, "offset": 0, "width": arguments.get("d_model"), "d_model": HEADS * HEAD_DIM} | arguments
    return eval(formula.replace("·", "*"), {}, names)


def over(chosen):
    """A fixture that runs over the examples whose Spec is chosen."""

    @pytest.fixture(params=[e for e in EXAMPLES if chosen(spec(e[0]))], ids=ids)
    def encoding(request):
        return make(*request.param)

    return encoding


def has_far_positions(s):
    return s.any_length and s.name not in TOO_FAR


encoding = over(lambda s: True)
learned = over(lambda s: s.learned)
at_any_position = over(has_far_positions)
# those with parameters have a device and a dtype of their own
by_formula = over(lambda s: has_far_positions(s) and not s.learned)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


WEIGHTS = [draw(i, D_MODEL, heads * HEAD_DIM) / D_MODEL**0.5 for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))]


def on_axes(encoding, p):
    """The positions p, or p and its multiples where an encoding asks for several axes."""
    xp = torch if torch.is_tensor(p) else np
    for count in encoding.position_axes:
        p = xp.stack([p * (axis + 1) for axis in range(count)], -1)
    return p


def project(encoding, x, positions):
    """Embed the positions and make q, k and v, all three with the right number of heads."""
    x = encoding.embed(x, positions=positions)
    weights = [torch.from_numpy(w).to(x) if torch.is_tensor(x) else w.astype(x.dtype) for w in WEIGHTS]
    return [(x @ w).reshape(*x.shape[:2], -1, HEAD_DIM).swapaxes(1, 2) for w in weights]


def layer(encoding, x, positions, mask=None):
    """One attention layer, (batch, seq, d_model) → (batch, heads, seq, head_dim), with the encoding where it acts."""
    positions = on_axes(encoding, positions)
    q, k, v = project(encoding, x, positions)
    return attention(q, k, v, encoding=encoding, q_positions=positions, k_positions=positions, mask=mask)


def test_every_encoding_is_tested_here():
    assert {name for name, _ in EXAMPLES} == set(names())


def test_each_acts_where_its_spec_says(encoding):
    """Changed are exactly the places named in acts_on."""
    x, q, k, p = draw(0, 1, 5, D_MODEL), draw(1, 1, HEADS, 5, HEAD_DIM), draw(2, 1, HEADS, 5, HEAD_DIM), np.arange(5)
    p = on_axes(encoding, p)
    turned, w = encoding.rotate(q, k, q_positions=p, k_positions=p), np.full((1, HEADS, 5, 5), 0.2)
    changed = {
        "embedding": not np.array_equal(encoding.embed(x, positions=p), x),
        "queries and keys": not (np.array_equal(turned[0], q) and np.array_equal(turned[1], k)),
        "logits": encoding.bias(q, k, q_positions=p, k_positions=p) is not None,
        "values": not np.array_equal(encoding.values(w, k, q_positions=p, k_positions=p), w @ k),
    }
    assert {place for place, yes in changed.items() if yes} == set(
        {"nothing": [], "logits and values": ["logits", "values"]}.get(encoding.spec.acts_on, [encoding.spec.acts_on])
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=ids)
def test_parameters_are_as_many_as_the_spec_says(example):
    name, arguments = example
    promised, encoding = count(spec(name).parameters, arguments), create(name, **arguments)
    assert promised == (sum(p.numel() for p in encoding.parameters()) if encoding.spec.learned else 0)
    assert bool(promised) == encoding.spec.learned


def test_keys_turned_once_stay_right_as_the_text_grows(encoding):
    """What the Spec calls cacheable: keys turned chunk by chunk are those turned at once."""
    k, p = draw(0, BATCH, KV_HEADS, SEQ, HEAD_DIM), np.arange(SEQ)
    at = [on_axes(encoding, p[s]) for s in (slice(0, 4), slice(4, 7), slice(None))]
    parts = [k[:, :, :4], k[:, :, 4:], k]
    early, late, whole = (
        encoding.rotate(x, x, q_positions=a, k_positions=a)[1] for x, a in zip(parts, at, strict=True)
    )
    assert np.array_equal(np.concatenate([early, late], axis=2), whole)


def test_order_matters_unless_there_is_no_encoding(encoding):
    x, p, order = draw(0, BATCH, SEQ, D_MODEL), np.arange(SEQ), np.array([3, 0, 6, 1, 5, 2, 4])
    change = np.abs(layer(encoding, x[:, order], p) - layer(encoding, x, p)[:, :, order]).max()
    assert change < 1e-13 if encoding.spec.acts_on == "nothing" else change > 1e-2


def test_tokens_may_be_shuffled_together_with_their_positions(at_any_position):
    x, p, order = draw(0, BATCH, SEQ, D_MODEL), np.array([2, 9, 4, 0, 5, 30, 7]), np.array([3, 0, 6, 1, 5, 2, 4])
    got, mask = layer(at_any_position, x[:, order], p[order], causal(p, p)[:, order][:, :, order]), causal(p, p)
    assert np.abs(got - layer(at_any_position, x, p, mask)[:, :, order]).max() < 1e-13


@pytest.mark.parametrize("shift", [1, 1000, 900_000])
def test_shift_invariance_as_claimed(at_any_position, shift):
    x, p = draw(0, BATCH, SEQ, D_MODEL), np.arange(SEQ)
    change = np.abs(layer(at_any_position, x, p + shift) - layer(at_any_position, x, p)).max()
    # an angle near 1e6 is a multiple of 2⁻³³
    assert change < 1e-8 if at_any_position.spec.shift_invariant else change > 1e-2


@pytest.mark.parametrize("chunks", [(1,) * SEQ, (4, 2, 1)])
def test_decoding_with_a_cache_equals_one_pass(encoding, chunks):
    x, p = draw(0, BATCH, SEQ, D_MODEL), np.arange(SEQ)
    full = layer(encoding, x, p, causal(p, p))
    rows, start = [], 0
    for end in np.cumsum(chunks):
        seen = on_axes(encoding, p[:end])
        q, k, v = project(encoding, x[:, :end], seen)
        rows.append(
            attention(q[:, :, start:], k, v, encoding=encoding, q_positions=seen[start:], k_positions=seen,
                      mask=causal(p[start:end], p[:end]))
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
    p = on_axes(encoding, np.arange(SEQ))
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
    q, p = inputs[0][:, None, :, :HEAD_DIM], on_axes(encoding, inputs[1])
    encoding.rotate(q, q, q_positions=p, k_positions=p)
    assert np.array_equal(inputs[0], before[0])


@pytest.mark.parametrize("positions", ["int32", "int64", "float32", "float64"])
def test_numpy_and_torch_agree(by_formula, positions):
    x, p = draw(0, BATCH, SEQ, D_MODEL), np.array([0, 1, 5, 257, 4095, 131_071, 999_999]).astype(positions)
    by_numpy, by_torch = layer(by_formula, x, p), layer(by_formula, torch.from_numpy(x), torch.from_numpy(p))
    assert isinstance(by_numpy, np.ndarray) and by_torch.dtype == torch.float64
    # the libraries' cos and sin may differ in the last place, their sums in order
    assert np.abs(by_numpy - by_torch.numpy()).max() < 1e-13


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_is_kept_and_rounded_once_up_to_a_million(by_formula, dtype):
    p = torch.tensor([0, 1, 5, 257, 4095, 131_071, 999_999])
    x, q, k = (torch.from_numpy(a).to(dtype) for a in (
        draw(0, BATCH, SEQ, D_MODEL), draw(1, BATCH, HEADS, SEQ, HEAD_DIM), draw(2, BATCH, KV_HEADS, SEQ, HEAD_DIM)
    ))  # fmt: skip
    p = on_axes(by_formula, p)
    at = {"q_positions": p, "k_positions": p}

    def places(x, q, k):
        return (
            by_formula.embed(x, positions=p),
            *by_formula.rotate(q, k, **at),
            attention(q, k, k, encoding=by_formula, **at),
        )

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


def test_device_is_kept(by_formula):
    """On the meta device there are no values to read and no CPU tables to mix with."""
    x, p = torch.empty(BATCH, SEQ, D_MODEL, device="meta"), torch.arange(SEQ, device="meta")
    out = layer(by_formula, x, p, causal(p, p))
    assert out.device.type == "meta" and out.shape == (BATCH, HEADS, SEQ, HEAD_DIM)


def test_gradients_are_those_of_finite_differences(encoding):
    p = torch.tensor([4, 0, 9])
    mask = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    x = torch.from_numpy(draw(0, 1, 3, D_MODEL)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(encoding, x, p, mask)[:, ::2], x)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_compiles_to_one_graph_for_all_lengths(by_formula):
    """fullgraph raises at a break; the second graph is the one for any length."""
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(lambda x, p: layer(by_formula, x, p, causal(p, p)), backend=counter, fullgraph=True)
    for length in (3, 5, 6, 9, 16):
        # far away, where frequencies computed in less than float64 would show; the last place of float64 is 1e-9 there
        x, p = torch.from_numpy(draw(0, BATCH, length, D_MODEL)), torch.arange(length) + 999_000
        assert (compiled(x, p) - layer(by_formula, x, p, causal(p, p))).abs().max() < 1e-8
    assert counter.frame_count <= 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of_parameters", [torch.float64, torch.float32])
def test_parameters_and_inputs_may_differ_in_dtype(learned, of_parameters, dtype):
    module, p = learned.module.to(of_parameters), torch.arange(SEQ)
    out = layer(module, torch.from_numpy(draw(0, BATCH, SEQ, D_MODEL)).to(dtype), p)
    assert out.dtype == dtype and out.isfinite().all()


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
