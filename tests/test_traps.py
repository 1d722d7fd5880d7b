"""Traps that public packages fell into, one test each. Where it helps, the trap itself is shown to be real."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from posenc_ref import attention
from posenc_ref.attention import masked_softmax
from posenc_ref.embedding import Sinusoidal, sinusoidal
from posenc_ref.positions import causal, decode_positions, packed_positions, positions_from_mask, same_document
from posenc_ref.rotary import RoPE, convert_projection, cos_sin, inv_freq, rotate

HALVES = [torch.float16, torch.bfloat16]
LAYOUTS = ["half", "interleaved"]
ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
FAR = [1, 4095, 131_071, 999_999]


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def turn(x, positions, layout="half", **settings):
    """Rotate (…, heads, seq, head_dim) as RoPE does."""
    return RoPE(x.shape[-1], layout=layout, **settings).rotate(x, x, q_positions=positions, k_positions=positions)[0]


def turn_complex(x, positions, layout="half"):
    """The same by multiplying complex numbers: another way to write the rotation."""
    d = x.shape[-1]
    z = x[..., : d // 2] + 1j * x[..., d // 2 :] if layout == "half" else x[..., 0::2] + 1j * x[..., 1::2]
    z = z * np.exp(1j * positions[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d))
    return np.concatenate([z.real, z.imag], -1) if layout == "half" else np.stack([z.real, z.imag], -1).reshape(x.shape)


# ---------------------------------------------------------------- precision


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_positions_are_refused_everywhere(dtype):
    p = torch.arange(6).to(dtype)
    x = torch.randn(1, 1, 6, 4, generator=torch.Generator().manual_seed(0))
    ints = torch.arange(6)
    calls = [
        lambda: sinusoidal(p, 4, layout="interleaved"),
        lambda: Sinusoidal(4, layout="interleaved").embed(x[0], positions=p),
        lambda: cos_sin(p, inv_freq(4)),
        lambda: RoPE(4, layout="half").rotate(x, x, q_positions=ints, k_positions=p),
        lambda: RoPE(4, layout="half").rotate(x, x, q_positions=p, k_positions=ints),
        lambda: causal(p, ints),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="half precision merges positions"):
            call()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_precision_tables(layout, dtype):
    """Rounding the table of angles gives errors of order 1 at these positions; rounding the result once does not."""
    positions = torch.arange(2000, 4096, 7)
    x = torch.from_numpy(draw(0, 1, 2, len(positions), 12)).to(dtype)
    expected = torch.from_numpy(turn_complex(x.double().numpy(), positions.numpy(), layout))
    within = ROUNDOFF[dtype] * expected.abs() + 8 * ROUNDOFF[torch.float32] * x.double().abs().max()
    assert ((turn(x, positions, layout).double() - expected).abs() <= within).all()

    angles = (positions[:, None] * torch.from_numpy(inv_freq(12))).to(dtype)
    assert (angles.double().cos() - cos_sin(positions, inv_freq(12))[0]).abs().max() > 0.1  # the trap is real


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_embeddings_are_rounded_once(dtype):
    x = torch.from_numpy(draw(0, 1, 5, 12)).to(dtype)
    positions = torch.tensor([0, 257, 2049, 4095, 999_999])
    expected = x.double() + sinusoidal(positions, 12, layout="interleaved")
    got = Sinusoidal(12, layout="interleaved").embed(x, positions=positions)
    assert ((got.double() - expected).abs() <= ROUNDOFF[dtype] * expected.abs()).all()


def reduced(position, omega):
    """cos and sin of position·omega, the angle reduced exactly in rational numbers and 60 digits of π."""
    with mpmath.workdps(60):
        turns = mpmath.mpf(Fraction(omega).numerator) / Fraction(omega).denominator * position / (2 * mpmath.pi)
        angle = (turns - mpmath.floor(turns)) * 2 * mpmath.pi
        return float(mpmath.cos(angle)), float(mpmath.sin(angle))


@pytest.mark.parametrize("as_array", [np.array, torch.tensor])
def test_far_positions(as_array):
    """An angle in float64 is off by half a unit in the last place: 6e-11 rad at 999,999. In float32: by 0.02 rad."""
    omega = inv_freq(12)
    tables = [cos_sin(as_array(FAR), omega)]
    sines_then_cosines = sinusoidal(as_array(FAR), 12, layout="concatenated")
    tables.append((sines_then_cosines[:, 6:], sines_then_cosines[:, :6]))
    for i, p in enumerate(FAR):
        for g in range(6):
            tolerance = math.ulp(p * omega[g]) / 2 + 2.0**-52
            expected = reduced(p, omega[g])
            for got in tables:
                assert all(abs(float(t[i, g]) - e) <= tolerance for t, e in zip(got, expected, strict=True))
    trap = np.cos((np.float32(999_999) * omega.astype(np.float32)).astype(float))
    assert np.abs(trap - [reduced(999_999, w)[0] for w in omega]).max() > 1e-3  # the trap is real


def test_float32_positions_are_not_used_as_float32_angles():
    ints, floats = (cos_sin(np.array(FAR, dtype=d), inv_freq(12)) for d in (np.int64, np.float32))
    assert np.array_equal(ints, floats)


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("dtype", HALVES)
def test_stale_cache_of_another_dtype(dtype):
    rope, sinus = RoPE(12, layout="half"), Sinusoidal(12, layout="interleaved")
    p = torch.arange(3, 40, 4)
    x = torch.from_numpy(draw(0, 1, 1, len(p), 12)).float()
    rope.rotate(x.to(dtype), x.to(dtype), q_positions=p, k_positions=p)
    sinus.embed(x[0].to(dtype), positions=p)
    again = rope.rotate(x, x, q_positions=p, k_positions=p)[0]
    assert np.abs(again.numpy() - turn_complex(x.double().numpy(), p.numpy())).max() < 1e-6
    table = sinus.embed(torch.zeros(1, len(p), 12), positions=p)[0]
    assert (table - sinusoidal(p, 12, layout="interleaved")).abs().max() < 1e-7


def test_stale_cache_of_another_length_or_offset():
    rope, x = RoPE(12, layout="half"), draw(0, 1, 1, 8, 12)
    for start, length in ((0, 8), (7, 8), (7, 3), (0, 3)):
        p = np.arange(start, start + length)
        got = rope.rotate(x[:, :, :length], x[:, :, :length], q_positions=p, k_positions=p)[0]
        assert np.abs(got - turn_complex(x[:, :, :length], p)).max() < 1e-12


def test_encodings_hold_no_table():
    """A table that is not saved with the model is garbage after it was made on the meta device."""
    for encoding in (RoPE(12, layout="half"), Sinusoidal(12, layout="interleaved")):
        before = dict(vars(encoding))
        encoding.embed(np.zeros((1, 3, 12)), positions=np.arange(3))
        encoding.rotate(*[np.zeros((1, 1, 3, 12))] * 2, q_positions=np.arange(3), k_positions=np.arange(3))
        assert vars(encoding) == before
        assert all(value is None or isinstance(value, int | float | str) for value in before.values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_place_rotation_without_saving_the_first_channel(layout):
    """x₂ cos + x₁ sin must read the old x₁; a table of one position cannot show it, nor can a zero angle."""
    x, p = draw(0, 1, 2, 5, 12), np.array([1, 2, 3, 50, 700])
    before = x.copy()
    assert np.abs(turn(x, p, layout) - turn_complex(x, p, layout)).max() < 1e-12
    assert np.array_equal(x, before)


# ---------------------------------------------------------------- offsets, caches, chunks


@pytest.mark.parametrize("layout", LAYOUTS)
def test_offset_is_not_ignored(layout):
    x = draw(0, 1, 1, 4, 12)
    assert np.abs(turn(x, 7 + np.arange(4), layout) - turn_complex(x, 7 + np.arange(4), layout)).max() < 1e-12
    shifted = sinusoidal(7 + np.arange(4), 12, layout="interleaved")
    assert np.array_equal(shifted, sinusoidal(np.arange(11), 12, layout="interleaved")[7:])
    assert list(decode_positions(4, cache_len=7)) == [7, 8, 9, 10]


@pytest.mark.parametrize("chunks", [(1,) * 9, (4, 2, 3), (8, 1)])
def test_chunk_decoding_from_rotated_keys(chunks):
    """Keys are rotated once, when they enter the cache; the result is that of one pass over the whole."""
    q, k, v = draw(0, 2, 6, 9, 12), draw(1, 2, 3, 9, 12), draw(2, 2, 3, 9, 12)
    rope, all_positions = RoPE(12, layout="half"), np.arange(9)
    mask = causal(all_positions, all_positions)
    full = attention(q, k, v, encoding=rope, q_positions=all_positions, k_positions=all_positions, mask=mask)
    cache = np.empty((2, 3, 0, 12))
    rows = []
    for length in chunks:
        done = cache.shape[2]
        p = np.asarray(decode_positions(length, cache_len=done))
        new = slice(done, done + length)
        turned_q, turned_k = rope.rotate(q[:, :, new], k[:, :, new], q_positions=p, k_positions=p)
        cache = np.concatenate([cache, turned_k], axis=2)
        rows.append(attention(turned_q, cache, v[:, :, : done + length], mask=causal(p, np.arange(done + length))))
    assert np.abs(np.concatenate(rows, axis=2) - full).max() < 1e-13


def test_is_causal_of_torch_aligns_at_the_start():
    """With a cache, torch's flag gives the last token one key only; a mask made from positions gives it all."""
    q, k, v = (torch.from_numpy(draw(i, 1, 1, n, 12)) for i, n in enumerate((1, 5, 5)))
    ours = attention(q, k, v, mask=causal(torch.tensor([4]), torch.arange(5)))
    assert (ours - attention(q, k, v)).abs().max() == 0
    trap = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (trap - ours).abs().max() > 0.1  # the trap is real


# ---------------------------------------------------------------- sizes and order


@pytest.mark.parametrize("head_dim", [1, 3, 7])
def test_odd_sizes(head_dim):
    with pytest.raises(ValueError, match=f"rotary_dim must be even, got {head_dim}"):
        RoPE(head_dim, layout="half")
    with pytest.raises(ValueError, match=f"rotary_dim must be even, got {head_dim}"):
        inv_freq(head_dim)
    table = sinusoidal(np.arange(5), head_dim, layout="concatenated")
    assert table.shape == (5, head_dim) and (table[0] == [0] * (head_dim // 2 + 1) + [1] * (head_dim // 2)).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(7, 4), (8, 2), (12, 12)])
def test_partial_rotation_keeps_norms_and_passes_the_rest(head_dim, rotary_dim, layout):
    x, p = draw(0, 1, 2, 5, head_dim), np.array([0, 1, 17, 300, 5000])
    y = turn(x, p, layout, rotary_dim=rotary_dim)
    norms = [np.linalg.norm(a[..., :rotary_dim], axis=-1) for a in (x, y)]
    assert np.allclose(*norms, rtol=1e-14) and np.array_equal(x[..., rotary_dim:], y[..., rotary_dim:])
    assert (
        np.abs(y[:, :, 1:, :rotary_dim] - x[:, :, 1:, :rotary_dim]).max(axis=-1).min() > 1e-4
    )  # every head, every token


@pytest.mark.parametrize("layout", LAYOUTS)
def test_argument_order_of_cos_and_sin(layout):
    """Some libraries take (sin, cos). Ours takes (cos, sin): position 0 stays, a quarter turn is counter-clockwise."""
    x = np.array([1.0, 2.0])
    cos, sin = cos_sin(np.array(0), inv_freq(2))
    assert np.array_equal(rotate(x, cos, sin, layout=layout), x)
    assert not np.allclose(rotate(x, sin, cos, layout=layout), x)
    quarter = rotate(x, *cos_sin(np.array(math.pi / 2), inv_freq(2)), layout=layout)
    assert np.allclose(quarter, [-2.0, 1.0], atol=1e-15)


def test_first_and_last_frequency_both_turn():
    """Pair 0 alone, or a short sequence, cannot tell frequencies apart."""
    x = np.ones((1, 1, 1, 8))
    for layout, pairs in (("half", [(0, 4), (3, 7)]), ("interleaved", [(0, 1), (6, 7)])):
        y = turn(x, np.array([1000]), layout)[0, 0, 0]
        for (a, b), angle in zip(pairs, (1000.0, 1000.0 * 10000**-0.75), strict=True):
            assert np.allclose([y[a], y[b]], [math.cos(angle) - math.sin(angle), math.cos(angle) + math.sin(angle)])


def test_layouts_are_not_interchangeable():
    q, k = draw(0, 1, 1, 1, 12), draw(1, 1, 1, 1, 12)
    logits = {c: (turn(q, np.array([9]), c) * turn(k, np.array([2]), c)).sum() for c in LAYOUTS}
    assert abs(logits["half"] - logits["interleaved"]) > 0.1


def test_queries_and_keys_have_their_own_positions():
    q, k = draw(0, 1, 6, 2, 12), draw(1, 1, 3, 5, 12)
    at_q, at_k = np.array([4, 9]), np.array([0, 1, 2, 3, 7])
    turned = RoPE(12, layout="half").rotate(q, k, q_positions=at_q, k_positions=at_k)
    for got, x, p in zip(turned, (q, k), (at_q, at_k), strict=True):
        assert np.abs(got - turn_complex(x, p)).max() < 1e-12


def test_equal_batch_heads_and_length_do_not_mix_axes():
    x, p = draw(0, 4, 4, 4, 4), np.array([0, 3, 10, 40])
    assert np.abs(turn(x, p) - turn_complex(x, p)).max() < 1e-12
    by_row = p + 100 * np.arange(4)[:, None]
    expected = np.stack([turn_complex(x[b], by_row[b]) for b in range(4)])
    assert np.abs(turn(x, by_row) - expected).max() < 1e-12
    y = Sinusoidal(4, layout="interleaved").embed(x[0], positions=by_row)
    assert np.abs(y - x[0] - np.stack([sinusoidal(r, 4, layout="interleaved") for r in by_row])).max() < 1e-15


def test_key_heads_are_repeated_not_tiled():
    """Query heads 0 and 1 belong to key head 0, heads 2 and 3 to key head 1."""
    q, k, v = draw(0, 1, 4, 2, 6), draw(1, 1, 2, 3, 6), draw(2, 1, 2, 3, 6)
    got = attention(q, k, v)
    for h in range(4):
        alone = attention(q[:, h : h + 1], k[:, h // 2 : h // 2 + 1], v[:, h // 2 : h // 2 + 1])
        assert np.abs(got[:, h : h + 1] - alone).max() < 1e-15


def test_conversion_is_for_queries_and_keys_with_their_own_head_counts():
    """Heads of 6 channels: with 4, the permutation is its own inverse."""
    wq, wk, x = draw(0, 36, 5), draw(1, 12, 5), draw(2, 3, 5)  # 6 and 2 heads
    p = np.array([5, 0, 31])

    def logits(wq, wk, layout):
        q, k = ((x @ w.T).reshape(3, -1, 6).swapaxes(0, 1)[None] for w in (wq, wk))
        return turn(q, p, layout) @ np.repeat(turn(k, p, layout), 3, axis=1).swapaxes(2, 3)

    moved = [convert_projection(w, head_dim=6, source="half", target="interleaved") for w in (wq, wk)]
    assert np.abs(logits(*moved, "interleaved") - logits(wq, wk, "half")).max() < 1e-12
    assert np.abs(logits(moved[0], wk, "interleaved") - logits(wq, wk, "half")).max() > 0.1


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_fully_masked_rows_are_zero_and_harmless(dtype):
    q, k, v = (torch.from_numpy(draw(i, 1, 2, 3, 4)).to(dtype).requires_grad_() for i in range(3))
    mask = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    out = attention(q, k, v, mask=mask)
    assert (out[:, :, 1] == 0).all() and out.isfinite().all()
    out.float().square().sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert (q.grad[:, :, 1] == 0).all() and (q.grad[:, :, 0] != 0).any()


def test_masks_in_float16_do_not_overflow():
    """Adding finfo.min to a logit of −10 gives −inf in float16; large q and k overflow the logit itself."""
    q = torch.full((1, 1, 1, 64), 60.0, dtype=torch.float16)
    k = torch.cat([q, -q], dim=2)  # logits ±28,800 after scaling, ±230,400 before: float16 ends at 65,504
    v = torch.tensor([[[[1.0] * 64, [2.0] * 64]]], dtype=torch.float16)
    assert (attention(q, k, v) == 1).all()
    assert (attention(q, k, v, mask=torch.tensor([False, True])) == 2).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_masked_keys_cannot_leak_through_infinities():
    logits = np.array([[np.inf, 1.0, 2.0], [np.nan, 1.0, 2.0], [-np.inf, 1.0, 2.0]])
    weights = masked_softmax(logits, np.array([False, True, True]))
    assert np.allclose(weights, [[0, 1 / (1 + math.e), math.e / (1 + math.e)]] * 3)
    assert np.isnan(masked_softmax(logits)[:2]).all(), "an undefined softmax must not look defined"
    assert np.allclose(masked_softmax(logits)[2], weights[2])


def test_softmax_does_not_overflow():
    assert np.allclose(masked_softmax(np.array([[1e300, 1e300, -1e300]])), [[0.5, 0.5, 0]])


# ---------------------------------------------------------------- padding and packing


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_moves_no_position(side):
    """A row must not change because a longer one is in its batch. The padding holds large numbers."""
    rope, lengths, longest = RoPE(12, layout="interleaved"), (4, 7), 7
    rows = [tuple(draw(10 * b + i, 1, h, n, 12) for i, h in enumerate((6, 3, 3))) for b, n in enumerate(lengths)]
    real = np.zeros((2, longest), dtype=bool)
    padded = [np.full((2, h, longest, 12), 1e3) for h in (6, 3, 3)]
    for b, n in enumerate(lengths):
        place = slice(longest - n, None) if side == "left" else slice(n)
        real[b, place] = True
        for x, row in zip(padded, rows[b], strict=True):
            x[b, :, place] = row[0]
    p = positions_from_mask(real)
    got = attention(*padded, encoding=rope, q_positions=p, k_positions=p, mask=causal(p, p) & real[:, None, None])
    for b, n in enumerate(lengths):
        at = np.arange(n)
        alone = attention(*rows[b], encoding=rope, q_positions=at, k_positions=at, mask=causal(at, at))
        assert np.abs(got[b, :, real[b]].swapaxes(0, 1) - alone[0]).max() < 1e-13


@pytest.mark.parametrize("as_array", [np.array, torch.tensor])
def test_positions_count_real_tokens_from_0_and_padding_is_0(as_array):
    mask = as_array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
    assert positions_from_mask(mask).tolist() == positions_from_mask(mask == 1).tolist() == expected


def test_packing_needs_positions_and_mask():
    ids = np.array([[4, 4, 4, 9, 9, 9, 9]])
    x = draw(0, 1, 7, 12)
    q, k, v = (draw(i, 12, 12) for i in (1, 2, 3))
    sinus = Sinusoidal(12, layout="interleaved")

    def run(x, positions, mask):
        y = sinus.embed(x, positions=positions)
        return attention(*((y @ w)[:, None] / 4 for w in (q, k, v)), mask=mask)[:, 0]

    restarted, straight = packed_positions(ids), np.arange(7)
    inside = same_document(ids, ids)
    alone = np.concatenate([run(x[:, a:b], np.arange(b - a), None) for a, b in ((0, 3), (3, 7))], axis=1)
    assert np.abs(run(x, restarted, inside) - alone).max() < 1e-13
    assert np.abs(run(x, restarted, None) - alone).max() > 0.01  # positions alone let documents see each other
    assert np.abs(run(x, straight, inside) - alone).max() > 0.01  # the mask alone leaves wrong positions
