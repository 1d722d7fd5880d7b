"""Learned tables, FLOATER and multiplication against public models, SciPy's solvers and plain loops.

No expected value comes from posenc_ref. Tolerances are bounds on rounding (U is the unit roundoff) or, for an
integrator, on the error that its order allows.
"""

import math
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from torchdiffeq import odeint
from transformers import BertConfig, RobertaConfig
from transformers.models.bert.modeling_bert import BertEmbeddings
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from posenc_ref.embedding import (
    MultiplicativeSinusoidal,
    floater,
    learned,
    mlp_field,
    multiply,
    oscillators,
    padded_rows,
    trajectory,
)
from posenc_ref.embedding.learned import add, look_up
from posenc_ref.embedding.modules import Floater, LearnedEmbedding, MultiplicativeEmbedding
from posenc_ref.positions import packed_positions, positions_from_mask

U = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

BATCH, SEQ, D_MODEL, WIDTH, ROWS = 2, 5, 6, 7, 11  # all different

rng = np.random.default_rng(0)
TABLE = rng.standard_normal((ROWS, D_MODEL))
X = rng.standard_normal((BATCH, SEQ, D_MODEL))
P = np.array([[8, 0, 3, 3, 1], [2, 7, 5, 0, 6]])  # any order, repeated, other in each row
START = rng.standard_normal(D_MODEL)
WEIGHTS = {
    "hidden_weight": rng.standard_normal((WIDTH, D_MODEL + 1)) / 3,
    "hidden_bias": rng.standard_normal(WIDTH),
    "out_weight": rng.standard_normal((D_MODEL, WIDTH + 1)) / 3,
    "out_bias": rng.standard_normal(D_MODEL),
}
LIBRARIES = pytest.mark.parametrize("as_array", [np.asarray, torch.tensor], ids=["numpy", "torch"])


def modules(dtype=torch.float64, d_model=D_MODEL, width=WIDTH):
    torch.manual_seed(0)
    return {
        "learned": LearnedEmbedding(9, d_model, offset=2, init_std=1.0).to(dtype),
        "multiplicative": MultiplicativeEmbedding(9, d_model, init_std=1.0).to(dtype),
        "floater": Floater(d_model, width=width, delta=0.25, substeps=2, init_std=1.0).to(dtype),
    }


def encodings(dtype=torch.float64):
    return {**modules(dtype), "multiplicative_sinusoidal": MultiplicativeSinusoidal(D_MODEL, layout="interleaved")}


MODULES, NAMES = tuple(modules()), tuple(encodings())


def within(got, expected, tolerance):
    got, expected = (np.asarray(a.detach().double() if torch.is_tensor(a) else a, dtype=float) for a in (got, expected))
    assert got.shape == expected.shape
    excess = np.abs(got - expected) - tolerance
    assert (excess <= 0).all(), f"beyond the tolerance by {excess.max():.3g}"


def dtype_of(array):
    return str(array.dtype).removeprefix("torch.")


# ---------------------------------------------------------------- learned


@LIBRARIES
@pytest.mark.parametrize("offset", [0, 2, 3])
@pytest.mark.parametrize("positions", [3, [7, 0, 2, 2], [[0, 1], [5, 4]], [[]]], ids=str)
def test_learned_reads_the_row_of_each_position_behind_the_offset(positions, offset, as_array):
    where = as_array(np.array(positions, dtype=np.int8))
    for dtype in ("float32", "float64"):
        table = as_array(TABLE.astype(dtype))
        got = learned(where, table, offset=offset)
        rows = [TABLE.astype(dtype)[offset + int(p)] for p in np.array(positions).flat]
        assert dtype_of(got) == dtype
        within(got, np.array(rows).reshape(*np.shape(positions), D_MODEL), 0)


def test_learned_equals_bert_whose_position_0_is_row_0():
    bert = BertEmbeddings(BertConfig(vocab_size=7, hidden_size=4, num_attention_heads=1, max_position_embeddings=9))
    bert.LayerNorm = bert.dropout = torch.nn.Identity()
    ours = LearnedEmbedding(9, 4, offset=0)
    ours.load_state_dict({"table": bert.position_embeddings.weight})
    ids, p = torch.tensor([[3, 1, 4], [1, 5, 2]]), torch.arange(3)
    content = bert.word_embeddings(ids) + bert.token_type_embeddings(torch.zeros_like(ids))
    assert torch.equal(ours.embed(content, positions=p), bert(ids))


@pytest.mark.parametrize("padding_idx", [1, 0, 3])
def test_learned_equals_roberta_which_starts_behind_the_padding_row(padding_idx):
    roberta = RobertaEmbeddings(
        RobertaConfig(
            vocab_size=7, hidden_size=4, num_attention_heads=1, max_position_embeddings=12, pad_token_id=padding_idx
        )
    )
    roberta.LayerNorm = roberta.dropout = torch.nn.Identity()
    offset = padding_idx + 1
    ours = LearnedEmbedding(12 - offset, 4, offset=offset)
    ours.load_state_dict({"table": roberta.position_embeddings.weight})
    ids = torch.tensor([[2, 5, 6, 4, padding_idx, padding_idx], [padding_idx, 2, 6, 6, 5, 4]])
    real = ids != padding_idx
    assert torch.equal(
        padded_rows(real, offset=offset), roberta.create_position_ids_from_input_ids(ids, padding_idx=padding_idx)
    )
    content = roberta.word_embeddings(ids) + roberta.token_type_embeddings(torch.zeros_like(ids))
    got = ours.embed(content, positions=positions_from_mask(real))
    assert torch.equal(got[real], roberta(ids)[real])


@pytest.mark.parametrize("cached", [0, 2])
def test_learned_equals_opt_whose_position_0_is_row_2(cached):
    opt = OPTLearnedPositionalEmbedding(9, D_MODEL)
    ours = LearnedEmbedding(9, D_MODEL, offset=2)
    assert ours.table.shape == opt.weight.shape
    ours.load_state_dict({"table": opt.weight})
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    theirs = opt(mask, cache_length=cached)
    real = mask[:, cached:] == 1
    assert torch.equal(ours(positions_from_mask(mask)[:, cached:])[real], theirs[real])
    assert torch.equal(opt.weight[padded_rows(mask, offset=2)[:, cached:]], theirs)  # padding included


@LIBRARIES
def test_A07_rows(as_array):
    ids = as_array([[0, 5, 6, 2, 1, 1]])
    assert padded_rows(ids != 1, offset=2).tolist() == [[2, 3, 4, 5, 1, 1]]
    assert padded_rows(as_array([[0, 0, 1, 1, 1]]), offset=2).tolist() == [[1, 1, 2, 3, 4]]
    assert LearnedEmbedding(512, 4, offset=2).table.shape[0] == 514
    # the known mistake, positions that count the padding, reads other rows
    assert padded_rows(as_array([[0, 0, 1, 1, 1]]), offset=2).tolist() != [[2, 3, 4, 5, 6]]


def test_trap_offset_ignored_is_another_embedding():
    p = np.arange(3)
    assert np.abs(learned(p, TABLE, offset=2) - learned(p, TABLE, offset=0)).min(axis=-1).max() > 1e-3


@LIBRARIES
@pytest.mark.parametrize("bad", [-1, -2, -9])
def test_trap_negative_positions_never_wrap_around(bad, as_array):
    with pytest.raises(IndexError, match=f"got {bad}"):
        learned(as_array([0, bad]), as_array(TABLE), offset=2)
    with pytest.raises(IndexError):  # nor where the values are not looked at first
        look_up(as_array([0, bad]), as_array(TABLE), 2)
    with pytest.raises(IndexError, match=f"got {bad}"):
        floater(as_array([0, bad]), as_array(START), lambda t, p: p, delta=1.0, substeps=1)


def test_gradients_reach_the_rows_that_were_read_and_no_others():
    module = LearnedEmbedding(9, 3, offset=2)
    module(torch.tensor([[0, 4], [4, 4]])).sum().backward()
    assert module.table.grad[:, 0].tolist() == [0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0]


# ---------------------------------------------------------------- FLOATER

DELTA = 0.25
A = rng.standard_normal((D_MODEL, D_MODEL)) / 2


def linear(a, as_array=np.asarray):
    matrix = as_array(a)
    return lambda t, p: matrix @ p


@LIBRARIES
@pytest.mark.parametrize(("method", "substeps", "error"), [("rk4", 16, 1e-6), ("midpoint", 200, 1e-4)])
def test_floater_of_a_linear_field_equals_the_matrix_exponential(method, substeps, error, as_array):
    args = as_array(P), as_array(START), linear(A, as_array)
    got = floater(*args, delta=DELTA, substeps=substeps, method=method)
    within(got, np.array([[expm(A * DELTA * i) @ START for i in row] for row in P]), error)


def test_floater_of_the_authors_field_equals_scipys_adaptive_solver():
    def field(t, p):  # written out again, number by number
        w1, b1, w2, b2 = WEIGHTS.values()
        hidden = [max(sum(w1[u, j] * p[j] for j in range(D_MODEL)) + w1[u, -1] * t + b1[u], 0) for u in range(WIDTH)]
        return [sum(w2[j, u] * hidden[u] for u in range(WIDTH)) + w2[j, -1] * t + b2[j] for j in range(D_MODEL)]

    times = DELTA * np.arange(9)
    exact = solve_ivp(field, (0, times[-1]), START, t_eval=times, method="DOP853", rtol=1e-11, atol=1e-11).y.T
    got = floater(P, START, partial(mlp_field, **WEIGHTS), delta=DELTA, substeps=40)
    within(got, exact[P], (DELTA / 40) ** 2)  # relu has corners, and the step over one is off by a share of h²
    assert np.abs(exact).max() > 1


@pytest.mark.parametrize(
    ("method", "theirs", "error"),
    # torchdiffeq's "rk4" is the 3/8 rule: another method of order 4, so that it agrees to h⁴ only
    [("euler", "euler", 1e-12), ("midpoint", "midpoint", 1e-12), ("rk4", "rk4", 1e-6), ("rk4", "dopri5", 1e-6)],
)
def test_floater_and_its_gradients_equal_torchdiffeqs(method, theirs, error):
    """Vectors and gradients of the start and of all weights; a smooth field, as a corner of relu has no order."""
    module = Floater(D_MODEL, width=WIDTH, delta=DELTA, substeps=16, method=method, init_std=1.0).double()
    module.hidden.weight.data *= 0.2
    module.hidden.bias.data += 5  # all units stay on
    loss, times = torch.from_numpy(rng.standard_normal((9, D_MODEL))), DELTA * torch.arange(9).double()
    options = {} if theirs == "dopri5" else {"options": {"step_size": DELTA / 16}}
    there = odeint(module.field, module.start, times, method=theirs, rtol=1e-11, atol=1e-11, **options)
    here = module(torch.arange(9))
    within(here.detach(), there.detach().numpy(), error * float(there.detach().abs().max()))
    assert method != "rk4" or module.hidden(torch.cat([here, times[:, None]], dim=-1)).min() > 0.1
    gradients = [torch.autograd.grad((x * loss).sum(), list(module.parameters())) for x in (here, there)]
    for ours, right in zip(*gradients, strict=True):
        within(ours, right.numpy(), 100 * error * float(right.abs().max()))
        assert right.abs().max() > 1e-3


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_the_sinusoidal_encoding_is_a_trajectory_of_floater(layout):
    omega = [100.0 ** (-2 * i / D_MODEL) for i in range(D_MODEL // 2)]
    pairs = np.array([[[math.sin(w * p), math.cos(w * p)] for w in omega] for p in range(20)])
    expected = pairs.reshape(20, -1) if layout == "interleaved" else pairs.swapaxes(1, 2).reshape(20, -1)
    a = oscillators(D_MODEL, layout=layout, delta=DELTA, base=100.0)
    within([expm(a * DELTA * i) @ expected[0] for i in range(20)], expected, 1e-12)  # rounding alone
    got = trajectory(20, expected[0], linear(a), delta=DELTA, substeps=10)
    within(got, expected, 20 * 0.1**4 / 120)  # RK4: local error (ωh)⁵/120, times 10 steps a token, times 20 tokens


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
@pytest.mark.parametrize("name", ["oscillator", "pendulum with time"])
def test_order_of_convergence(name, method, order):
    if name == "oscillator":
        field, exact = linear(np.array([[0.0, 1.0], [-1.0, 0.0]])), [math.sin(3.0), math.cos(3.0)]
        start = np.array([0.0, 1.0])
    else:  # not linear, and driven by t, so that every node and weight matters

        def field(t, p):
            return np.stack([p[1], -np.sin(p[0]) + np.cos(2 * t)])

        start = np.array([0.5, 0.0])
        exact = solve_ivp(field, (0, 3), start, method="DOP853", rtol=1e-13, atol=1e-13).y[:, -1]
    errors = [
        np.abs(trajectory(2, start, field, delta=3.0, substeps=n, method=method)[-1] - exact).max() for n in (32, 64)
    ]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15)


def test_rk4_is_exact_for_a_velocity_cubic_in_time_and_matches_the_series_to_h4():
    got = trajectory(2, np.array([1.0]), lambda t, p: np.array([4 * t**3]), delta=2.0, substeps=1)
    assert got[1, 0] == pytest.approx(1 + 16, abs=1e-14)  # Simpson's rule
    got = trajectory(2, np.array([1.0]), lambda t, p: p, delta=0.5, substeps=1)
    assert got[1, 0] == pytest.approx(sum(0.5**n / math.factorial(n) for n in range(5)), abs=1e-15)


def test_the_steps_are_sequential_and_as_many_as_the_last_position_asks_for():
    for method, evaluations in (("euler", 1), ("midpoint", 2), ("rk4", 4)):
        times = []

        def field(t, p, times=times):
            times.append(t)
            return p

        floater(np.array([7, 2]), START, field, delta=0.5, substeps=3, method=method)
        assert len(times) == evaluations * 3 * 7
        assert np.diff(times).min() > -1e-12 and times[-1] <= 3.5 + 1e-12


def test_a_vector_does_not_depend_on_the_positions_beside_it():
    field = partial(mlp_field, **WEIGHTS)
    full = floater(np.arange(9), START, field, delta=DELTA, substeps=2)
    for positions in ([4], [8, 1], [3, 3, 0]):
        within(floater(np.array(positions), START, field, delta=DELTA, substeps=2), full[positions], 0)
    kept = trajectory(9, START, field, delta=DELTA, substeps=2)  # for decoding
    within(learned(P, kept, offset=0), full[P], 0)


def test_trap_half_precision_parameters_are_integrated_in_float32():
    start, weights = torch.from_numpy(START).bfloat16(), {k: torch.tensor(w).bfloat16() for k, w in WEIGHTS.items()}
    got = floater(torch.tensor(P), start, partial(mlp_field, **weights), delta=DELTA, substeps=2)
    assert got.dtype == torch.float32
    double = {k: w.double() for k, w in weights.items()}
    exact = floater(torch.tensor(P), start.double(), partial(mlp_field, **double), delta=DELTA, substeps=2)
    within(got, exact, 1000 * U["float32"] * exact.abs().max().item())


@pytest.mark.parametrize("method", ["euler", "midpoint"])
def test_the_module_uses_the_method_it_was_given(method):
    module = Floater(D_MODEL, delta=1.0, substeps=1, method=method, init_std=1.0).double()
    got, start = module(torch.arange(2)), module.start
    halfway = start if method == "euler" else start + module.field(0.0, start) / 2
    within(got[1], (start + module.field(0.0 if method == "euler" else 0.5, halfway)).detach(), 1e-14)


def test_trajectories_of_several_layers_at_once():
    starts = rng.standard_normal((3, D_MODEL))
    field = partial(mlp_field, **WEIGHTS)
    together = trajectory(4, starts, field, delta=DELTA, substeps=2)
    for layer in range(3):
        within(together[:, layer], trajectory(4, starts[layer], field, delta=DELTA, substeps=2), 100 * U["float64"])


# ---------------------------------------------------------------- multiplicative


def test_product_of_the_memory_networks():
    """Sukhbaatar's fixed vectors, l_kj = (1 − j/J) − (k/d)(1 − 2j/J) j, k from 1; Henaff's equation 1 sums as well."""
    l = [[(1 - j / SEQ) - k / D_MODEL * (1 - 2 * j / SEQ) for k in range(1, 7)] for j in range(1, 6)]  # noqa: E741
    got = multiply(X, np.array(l), positions=np.arange(SEQ)).sum(axis=1)
    expected = [[sum(l[j][k] * X[b, j, k] for j in range(SEQ)) for k in range(D_MODEL)] for b in range(BATCH)]
    within(got, expected, 20 * U["float64"])


def test_multiplying_by_sines_loses_half_of_the_first_token():
    encoding = MultiplicativeSinusoidal(D_MODEL, layout="interleaved", base=100.0)
    p = np.array([0, 5, 1, 2, 3])
    got = encoding.embed(X, positions=p)
    assert np.all(got[:, 0, 0::2] == 0) and np.array_equal(got[:, 0, 1::2], X[:, 0, 1::2])
    for j, k in np.ndindex(SEQ, D_MODEL):
        wave = (math.sin, math.cos)[k % 2](p[j] * 100.0 ** (-2 * (k // 2) / D_MODEL))
        within(got[:, j, k], X[:, j, k] * wave, 30 * U["float64"])


def test_learned_product_starts_around_ones_and_without_spread_is_no_encoding():
    assert MultiplicativeEmbedding(100, 50).table.mean().item() == pytest.approx(1.0, abs=0.002)
    assert MultiplicativeEmbedding(100, 50).table.std().item() == pytest.approx(0.02, rel=0.1)
    x = torch.from_numpy(X)
    assert torch.equal(MultiplicativeEmbedding(9, D_MODEL, init_std=0.0).embed(x, positions=torch.arange(SEQ)), x)
    table = LearnedEmbedding(100, 50, offset=0).table
    assert abs(table.mean().item()) < 0.002 and table.std().item() == pytest.approx(0.02, rel=0.1)


# ---------------------------------------------------------------- properties


def by_loop(name, p):
    """The encoded embeddings, from the parameters of the module, token by token."""
    module = encodings()[name]
    out = np.empty_like(X)
    for b, j in np.ndindex(BATCH, SEQ):
        i = int(p[b, j])
        if name == "learned":
            out[b, j] = X[b, j] + module.table[i + 2].detach().numpy()
        elif name == "multiplicative":
            out[b, j] = X[b, j] * module.table[i].detach().numpy()
        elif name == "floater":
            v = module.start.detach().numpy()
            for n in range(2 * i):
                (w1, b1), (w2, b2) = (
                    (m.weight.detach().numpy(), m.bias.detach().numpy()) for m in (module.hidden, module.out)
                )

                def h(t, p, w1=w1, b1=b1, w2=w2, b2=b2):
                    return w2 @ np.append(np.maximum(w1 @ np.append(p, t) + b1, 0), t) + b2

                t, e = n * 0.125, 0.125
                k1 = h(t, v)
                k2 = h(t + e / 2, v + e * k1 / 2)
                k3 = h(t + e / 2, v + e * k2 / 2)
                v = v + e * (k1 / 6 + k2 / 3 + k3 / 3 + h(t + e, v + e * k3) / 6)
            out[b, j] = X[b, j] + v
        else:
            angles = [i * 10000 ** (-2 * (k // 2) / D_MODEL) for k in range(D_MODEL)]
            out[b, j] = X[b, j] * [(math.sin, math.cos)[k % 2](a) for k, a in enumerate(angles)]
    return out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_embeds_token_by_token_keeps_the_dtype_and_rounds_once(name, dtype):
    exact = by_loop(name, P)
    got = encodings()[name].embed(torch.from_numpy(X), positions=torch.tensor(P))
    scale = np.abs(exact).max()
    assert dtype_of(got) == "float64"
    within(got, exact, 1000 * U["float64"] * scale)
    x = torch.from_numpy(X).to(getattr(torch, dtype))
    rounded = encodings()[name].embed(x.double(), positions=torch.tensor(P)).detach()  # from the rounded input
    # sums and products in float32 or better; with parameters in float64, the result is off by half a unit at most
    got = encodings()[name].embed(x, positions=torch.tensor(P))
    assert dtype_of(got) == dtype
    within(got, rounded, (U[dtype] + 2 * U["float64"]) * rounded.abs().numpy() + 2.0**-25 * (dtype == "float16"))
    if dtype != "float64":  # parameters in the dtype of the model
        low = encodings(getattr(torch, dtype))[name]
        got = low.embed(x, positions=torch.tensor(P))
        assert dtype_of(got) == dtype
        within(got, exact, 40 * U[dtype] * scale)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_equals_torch(name):
    module, p = encodings()[name], torch.tensor(P)
    with torch.no_grad():
        expected = module.embed(torch.from_numpy(X), positions=p)
        if name == "multiplicative_sinusoidal":
            got = module.embed(X, positions=P)
        elif name == "floater":
            weights = {
                f"{m}_{w}": getattr(getattr(module, m), w).numpy()
                for m in ("hidden", "out")
                for w in ("weight", "bias")
            }
            vectors = floater(P, module.start.numpy(), partial(mlp_field, **weights), delta=DELTA, substeps=2)
            got = add(X, vectors, positions=P)
        else:
            vectors = learned(P, module.table.numpy(), offset=module.offset)
            got = (add if name == "learned" else multiply)(X, vectors, positions=P)
    assert isinstance(got, np.ndarray)
    within(got, expected, 1000 * U["float64"] * np.abs(got).max())


@pytest.mark.parametrize("name", NAMES)
def test_chunks_at_their_true_positions_equal_the_slice_of_the_full_pass(name):
    encoding, x, p = encodings()[name], torch.from_numpy(X), torch.arange(SEQ)
    full = encoding.embed(x, positions=p)
    for start, end in ((0, 2), (2, 3), (3, 5)):
        part = encoding.embed(x[:, start:end], positions=p[start:end])
        assert torch.equal(part, full[:, start:end])
    at_zero = encoding.embed(x[:, 2:3], positions=p[:1])  # the mistake: a cached chunk counted from 0 again
    assert (at_zero - full[:, 2:3]).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_packed_and_padded_rows_equal_separate_runs(name):
    encoding, x = encodings()[name], torch.from_numpy(X)
    packed = encoding.embed(x, positions=packed_positions(torch.tensor([7, 7, 9, 9, 9])))
    assert torch.equal(packed[:, 2:], encoding.embed(x[:, 2:], positions=torch.arange(3)))
    padded = encoding.embed(x, positions=positions_from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])))
    assert torch.equal(padded[0, 2:], packed[0, 2:])
    assert torch.equal(padded[1:], encoding.embed(x[1:], positions=torch.arange(SEQ)))


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_parameters_are_left_alone(name):
    encoding, x, p = encodings()[name], torch.from_numpy(X.copy()), torch.tensor(P)
    before = {k: v.clone() for k, v in encoding.state_dict().items()} if name in MODULES else {}
    encoding.embed(x, positions=p).add_(1.0) if name == "multiplicative_sinusoidal" else encoding.embed(x, positions=p)
    assert np.array_equal(x, X) and np.array_equal(p, P)
    assert all(torch.equal(encoding.state_dict()[k], v) for k, v in before.items())
    arrays = [a.copy() for a in (P, TABLE, START)]
    learned(P, TABLE, offset=1)
    floater(P, START, linear(A), delta=DELTA, substeps=1)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, (P, TABLE, START), strict=True))


@pytest.mark.parametrize("name", MODULES)
def test_gradients(name):
    module, p = modules(d_model=3, width=4)[name], torch.tensor([[2, 0], [1, 2]])
    names, parameters = zip(*module.named_parameters(), strict=True)
    x = torch.from_numpy(X[:, :2, :3]).requires_grad_()

    def embed(x, *values):
        bound = dict(zip(names, values, strict=True))
        vectors = torch.func.functional_call(module, bound, (p,))
        return (multiply if name == "multiplicative" else add)(x, vectors, positions=p)

    assert torch.autograd.gradcheck(embed, (x, *parameters))
    module.embed(x, positions=p).square().sum().backward()
    assert all(torch.isfinite(a.grad).all() and a.grad.any() for a in (x, *parameters))


@pytest.mark.parametrize("name", MODULES)
def test_modules_survive_the_meta_device_and_keep_no_tables(name):
    module, p = modules(torch.float32)[name], torch.tensor(P)
    assert not list(module.buffers())  # nothing that to_empty could leave uninitialised
    with torch.device("meta"):
        empty = modules(torch.float32)[name]
    empty = empty.to_empty(device="cpu")
    empty.reset_parameters()
    assert torch.isfinite(empty(p)).all() and empty(p).any()
    empty.load_state_dict(module.state_dict())
    assert torch.equal(empty(p), module(p))


@pytest.mark.filterwarnings("ignore")  # array_api_compat's lru_cache, harmless
def test_compile_without_a_break_in_at_most_two_graphs_but_floater_breaks():
    every = encodings(torch.float32)
    integrated = every.pop("floater")
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(
        lambda x, p: {n: e.embed(x, positions=p) for n, e in every.items()}, backend=counter, fullgraph=True
    )
    x = torch.from_numpy(rng.standard_normal((BATCH, 9, D_MODEL))).float()
    for length in (3, 5, 8):
        p, part = torch.arange(9 - length, 9), x[:, :length].clone()
        for name, got in compiled(part, p).items():
            within(got, every[name].embed(part, positions=p), 8 * U["float32"] * x.abs().max().item() * 4)
    assert counter.frame_count <= 2
    with pytest.raises(IndexError):
        compiled(x[:, :3].clone(), torch.tensor([0, 1, -1]))
    part, p = x[:, :3].clone(), torch.arange(3)  # one break, and no graph for each length
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(integrated.embed, backend=counter)
    for _ in range(3):
        part, p = torch.cat([part, part[:, :1]], dim=1), torch.arange(len(p) + 1)
        assert torch.equal(compiled(part, positions=p), integrated.embed(part, positions=p))
    assert counter.frame_count <= 2


def test_importing_the_room_does_not_import_torch():
    code = "import sys, posenc_ref.embedding; assert 'torch' not in sys.modules and 'scipy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- errors


def solve(positions=P, start=START, field=None, **changed):
    return floater(positions, start, field or linear(A), **{"delta": DELTA, "substeps": 1, **changed})


LEARNED = modules()["learned"]
XT, PT = torch.from_numpy(X), torch.arange(SEQ)

ERRORS = [
    (lambda: learned(np.array([0, 9]), TABLE, offset=2), IndexError, "positions must be 0 … 8 for a table of 11 rows"),
    (lambda: learned(np.array([0, 9]), TABLE, offset=2), IndexError, "offset 2, got 9"),
    (lambda: learned(np.array(2**62), TABLE, offset=2), IndexError, f"got {2**62}"),
    (lambda: learned(np.array([-1]), TABLE, offset=2), IndexError, "got -1"),
    (lambda: LEARNED(torch.tensor([3, 9])), IndexError, "positions must be 0 … 8 for a table of 11 rows"),
    (lambda: LEARNED(torch.tensor([-1])), IndexError, "got -1"),
    (lambda: LEARNED(torch.tensor([1.0])), TypeError, "positions must be integers, got float32"),
    (lambda: learned(np.array([0.5]), TABLE, offset=2), TypeError, "positions must be integers, got float64"),
    (lambda: learned(np.array([True]), TABLE, offset=2), TypeError, "positions must be integers"),
    (lambda: learned([0], TABLE, offset=2), TypeError, "positions must be an array, got [0]"),
    (lambda: learned(P, TABLE, offset=-1), ValueError, "offset must be at least 0, got -1"),
    (lambda: learned(P, TABLE, offset=2.0), TypeError, "offset must be an integer, got 2.0"),
    (lambda: learned(P, TABLE, offset=11), ValueError, "more than offset = 11 rows, got (11, 6)"),
    (lambda: learned(P, TABLE[0], offset=0), ValueError, "table must be (rows, d_model), more than offset"),
    (lambda: learned(P, P, offset=0), TypeError, "table must be floating point, got int64"),
    (lambda: padded_rows(np.ones((1, 2)), offset=0), ValueError, "offset must be at least 1, got 0"),
    (lambda: padded_rows(np.array([[0, 2]]), offset=2), ValueError, "attention_mask must hold 0 and 1 only"),
    (lambda: LearnedEmbedding(0, 4, offset=0), ValueError, "num_positions must be at least 1, got 0"),
    (lambda: LearnedEmbedding(4, -4, offset=0), ValueError, "d_model must be at least 1, got -4"),
    (lambda: LearnedEmbedding(4, 4, offset=-2), ValueError, "offset must be at least 0, got -2"),
    (lambda: LEARNED.embed(XT[0], positions=PT), ValueError, "x must be (batch, seq, d_model = 6), got shape (5, 6)"),
    (lambda: LEARNED.embed(XT[..., :5], positions=PT), ValueError, "(batch, seq, d_model = 6), got shape (2, 5, 5)"),
    (lambda: LEARNED.embed(XT, positions=PT[:4]), ValueError, "positions must have shape (5,) or (2, 5), got (4,)"),
    (lambda: LEARNED.embed(XT.long(), positions=PT), TypeError, "x must be floating point, got int64"),
    (lambda: MultiplicativeEmbedding(9, 6).embed(XT, positions=PT + 9), IndexError, "got 13"),
    (
        lambda: MultiplicativeSinusoidal(6, layout="interleaved").embed(X, positions=np.arange(4)),
        ValueError,
        "positions must have shape (5,) or (2, 5), got (4,)",
    ),
    (lambda: MultiplicativeSinusoidal(6, layout="half"), ValueError, "layout must be one of"),
    (lambda: solve(np.array([3, -2])), IndexError, "positions must be at least 0, where the trajectory starts, got -2"),
    (lambda: solve(np.array([0.5])), TypeError, "positions must be integers, got float64"),
    (lambda: solve(start=TABLE), ValueError, "start must be (d_model,), got shape (11, 6)"),
    (lambda: solve(start=P[0]), TypeError, "start must be floating point, got int64"),
    (lambda: solve(delta=0.0), ValueError, "delta must be a finite number above 0, got 0.0"),
    (lambda: solve(delta=math.nan), ValueError, "delta must be a finite number above 0, got nan"),
    (lambda: solve(delta="1"), TypeError, "delta must be a number, got '1'"),
    (lambda: solve(substeps=0), ValueError, "substeps must be at least 1, got 0"),
    (lambda: solve(method="rk45"), ValueError, "method must be one of 'euler', 'midpoint', 'rk4', got 'rk45'"),
    (lambda: solve(field=lambda t, p: p[:, None]), ValueError, "field must return the shape of p, (6,), got (6, 1)"),
    (lambda: solve(field=lambda t, p: 1e200 * p * p), ValueError, "the trajectory must stay finite"),
    (lambda: trajectory(0, START, linear(A), delta=1.0, substeps=1), ValueError, "num_positions must be at least 1"),
    (lambda: mlp_field(0.0, START[:5], **WEIGHTS), ValueError, "weights must have shapes ((7, 6), (7,), (5, 8), (5,))"),
    (lambda: oscillators(5, layout="interleaved", delta=1.0), ValueError, "d_model must be even, got 5"),
    (lambda: oscillators(6, layout="half", delta=1.0), ValueError, "layout must be one of"),
    (lambda: oscillators(6, layout="interleaved", delta=-1.0), ValueError, "above 0, got -1.0"),
    (lambda: Floater(6, width=0), ValueError, "width must be at least 1, got 0"),
    (lambda: Floater(0), ValueError, "d_model must be at least 1, got 0"),
    (lambda: Floater(6, delta=math.inf), ValueError, "delta must be a finite number above 0, got inf"),
    (lambda: Floater(6, substeps=0), ValueError, "substeps must be at least 1, got 0"),
    (lambda: Floater(6, method="heun"), ValueError, "method must be one of"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("call", "error", "message"), ERRORS, ids=[message for _, _, message in ERRORS])
def test_errors_name_the_value_and_the_rule(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
