"""The fast forms give the numbers of the plain ones, in place or without a large array, and say what they cannot do."""

import numpy as np
import pytest
import torch
from test_properties import EXAMPLES, HEAD_DIM, HEADS, KV_HEADS, ForArrays, ids, make
from torch.utils._python_dispatch import TorchDispatchMode

from posenc_ref import attention
from posenc_ref.bias import ALiBi
from posenc_ref.bias.modules import T5Bias
from posenc_ref.fast import sdpa
from posenc_ref.positions import causal as causal_mask
from posenc_ref.rotary import RoPE, cos_sin, inv_freq, rotate, rotate_

LENGTH = 9


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def tables(positions, pairs, dtype=np.float64):
    return [table.astype(dtype) for table in cos_sin(positions, inv_freq(2 * pairs))]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("pairs", [1, 3, 4])
@pytest.mark.parametrize("head_dim", [8, 9, 10])
@pytest.mark.parametrize("by_row", [False, True])
def test_in_place_is_out_of_place(layout, library, pairs, head_dim, by_row):
    p = np.array([[3, 1, 4, 100_000], [0, 7, 5, 2]])
    cos, sin = (t[:, None] if by_row else t for t in tables(p if by_row else p[0], pairs))
    x = draw(0, 2, 3, 4, head_dim)
    expected = rotate(x, cos, sin, layout=layout)
    if library == "torch":
        x, cos, sin = (torch.from_numpy(a) for a in (x, cos, sin))
    got = rotate_(x, cos, sin, layout=layout)
    assert got is x and np.abs(np.asarray(got) - expected).max() < 1e-14


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("view", [lambda x: x.swapaxes(1, 3), lambda x: x[..., 1:9], lambda x: x[..., ::2]])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_in_place_where_channels_cannot_be_read_as_complex_numbers(layout, view, library):
    whole = draw(0, 2, 9, 9, 16)
    x, cos, sin = view(library(whole.copy())), *tables(np.arange(9), 4)
    expected = rotate(view(whole), cos, sin, layout=layout)
    assert rotate_(x, library(cos), library(sin), layout=layout) is x
    assert np.abs(np.asarray(x) - expected).max() < 1e-14


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_place_rounds_once(layout, dtype):
    p = torch.tensor([0, 1, 131_071, 999_999])
    x = torch.from_numpy(draw(0, 2, 3, 4, 8)).to(dtype)
    exact = rotate(x.double(), *cos_sin(p, inv_freq(8)), layout=layout)
    got = rotate_(x.clone(), *cos_sin(p, inv_freq(8), dtype=torch.float32), layout=layout)
    inside = 4 * x.double().abs().max() * torch.finfo(torch.float32).eps
    assert got.dtype == dtype
    assert ((got.double() - exact).abs() <= exact.abs() * torch.finfo(dtype).eps / 2 + inside).all()


X, COS = torch.ones(1, 2, 3, 4), torch.ones(3, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X[0], COS, COS), ValueError, r"x must be \(batch, heads, seq, head_dim\), got shape \(2, 3, 4\)"),
        ((X.clone().requires_grad_(), COS, COS), ValueError, "x must not require gradients"),
        ((X, COS.half(), COS.half()), TypeError, "cos and sin must share float32 or float64, got torch.float16"),
        ((X, COS, COS.double()), TypeError, "must share float32 or float64, got torch.float32 and torch.float64"),
        ((X, torch.ones(3, 3), torch.ones(3, 3)), ValueError, "rotary_dim must be at most head_dim = 4, got 6"),
        (
            (X, torch.ones(4, 2), torch.ones(4, 2)),
            ValueError,
            r"cos must broadcast to \(1, 1, 3, 2\), got shape \(4, 2\)",
        ),
        ((X, COS, torch.ones(3, 1)), ValueError, r"sin must have the shape of cos, \(3, 2\), got \(3, 1\)"),
        ((X.int(), COS, COS), TypeError, "x must be floating point, got int32"),
    ],
)
def test_what_cannot_be_turned_in_place_is_said_before_anything_is(arguments, error, message):
    before = arguments[0].detach().clone()
    with pytest.raises(error, match=message):
        rotate_(*arguments, layout="half")
    assert torch.equal(arguments[0].detach(), before)


def plain(q, k, v, encoding, causal):
    p = torch.arange(k.shape[2])
    mask = causal_mask(p[-q.shape[2] :], p) if causal else None
    return attention(q, k, v, encoding=encoding, q_positions=p[-q.shape[2] :], k_positions=p, mask=mask)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("q_len", [1, 4, LENGTH])
@pytest.mark.parametrize("example", EXAMPLES, ids=ids)
def test_the_fused_kernel_gives_the_same(example, q_len, causal):
    encoding = make(*example)
    encoding = encoding.module if isinstance(encoding, ForArrays) else encoding
    q, k, v = (torch.from_numpy(draw(i, 2, h, LENGTH, HEAD_DIM)) for i, h in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    if encoding.position_axes:
        with pytest.raises(ValueError, match=f"{encoding.spec.name} has positions with axes"):
            sdpa(q, k, v, encoding=encoding, causal=causal)
        return
    got = sdpa(q[:, :, -q_len:], k, v, encoding=encoding, causal=causal)
    assert (got - plain(q[:, :, -q_len:], k, v, encoding, causal)).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("q_len", [700, 1500])
def test_half_precision_does_not_merge_far_biases(dtype, q_len):
    """A bias of −300 cast to bfloat16 is a multiple of 2: then results are off by 0.8."""
    q, k, v = (torch.from_numpy(draw(i, 1, 4, 1500, 16)).to(dtype) for i in range(3))
    encoding = ALiBi(4, causal=True)
    got = sdpa(q[:, :, -q_len:], k, v, encoding=encoding, causal=True)
    expected = plain(q[:, :, -q_len:], k, v, encoding, causal=True)
    bound = 4 * torch.finfo(dtype).eps * v.abs().max() if dtype != torch.float32 else 1500 * 2.0**-24 * 4
    assert got.dtype == dtype and (got - expected).abs().max() <= bound


def test_gradients_reach_a_table_of_buckets():
    t5 = T5Bias(2, bidirectional=False, num_buckets=8, max_distance=20, init_std=1.0).double()
    q, k, v = (torch.from_numpy(draw(i, 1, 2, LENGTH, 4)) for i in range(3))
    weight, gradients = torch.from_numpy(draw(3, 1, 2, LENGTH, 4)), []
    for form in (lambda: sdpa(q, k, v, encoding=t5, causal=True), lambda: plain(q, k, v, t5, True)):
        t5.zero_grad()
        (form() * weight).sum().backward()
        gradients.append(t5.table.grad.clone())
    assert (gradients[0] - gradients[1]).abs().max() < 1e-12 and gradients[1].abs().min(dim=1).values[0] > 1e-3


class Largest(TorchDispatchMode):
    """Notes the size of the largest memory that any operation returned."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if torch.is_tensor(x):
                self.size = max(self.size, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize(
    "encoding", [RoPE(8, layout="half"), ALiBi(2, causal=True), T5Bias(2, bidirectional=False)], ids=str
)
@pytest.mark.parametrize("q_len", [200, 512])
def test_no_array_has_a_number_for_every_pair(encoding, q_len):
    q, k = torch.randn(1, 2, q_len, 8), torch.randn(1, 2, 512, 8)
    with Largest() as largest, torch.no_grad():
        sdpa(q, k, k, encoding=encoding, causal=True)
    fast = largest.size
    with Largest() as largest, torch.no_grad():
        plain(q, k, k, encoding, causal=True)
    assert fast < 64 * 1024 < 2 * q_len * 512 * 4 <= largest.size


def test_queries_must_be_among_the_keys():
    with pytest.raises(ValueError, match="the queries must be the last of the k_len = 3 tokens, got q_len = 5"):
        sdpa(torch.ones(1, 1, 5, 4), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4), causal=True)
