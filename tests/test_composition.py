"""Encodings put together: in one layer, one for each layer, in windows, and with a cache that forgets."""

import numpy as np
import pytest
import torch

from posenc_ref import Encoding, attention
from posenc_ref.bias import ALiBi, t5_bias
from posenc_ref.bias.modules import T5Bias
from posenc_ref.composition import Composition
from posenc_ref.content.modules import DeBERTa, Shaw
from posenc_ref.embedding import Sinusoidal
from posenc_ref.positions import causal, kept_positions, window
from posenc_ref.rotary import AxialRoPE, RoPE, cos_sin, inv_freq, rerotate, rotate

HEADS, HEAD_DIM, SEQ = 2, 8, 9
ROPE = RoPE(HEAD_DIM, layout="half")


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_rope_with_a_learned_bias_written_out():
    t5 = T5Bias(HEADS, bidirectional=False, num_buckets=8, max_distance=20, init_std=1.0).double()
    q, k, v = (draw(i, 1, HEADS, SEQ, HEAD_DIM) for i in range(3))
    p = np.arange(SEQ)
    both = Composition(ROPE, t5)
    tensors = [torch.from_numpy(x) for x in (q, k, v, p)]
    got = attention(*tensors[:3], encoding=both, q_positions=tensors[3], k_positions=tensors[3])
    cos, sin = cos_sin(p, inv_freq(HEAD_DIM))
    turned = [rotate(x, cos, sin, layout="half") for x in (q, k)]
    table = t5.table.detach().numpy()
    logits = turned[0] @ turned[1].swapaxes(2, 3)  # the scale is T5's, 1
    logits += t5_bias(p, p, table, bidirectional=False, max_distance=20)
    assert np.abs(got.detach().numpy() - softmax(logits) @ v).max() < 1e-12
    assert (both.spec.learned, both.spec.shift_invariant, both.spec.acts_on) == (
        True,
        True,
        "queries and keys + logits",
    )


def test_embeddings_add_up_and_values_pass_through():
    x, w, p = draw(0, 1, SEQ, 6), np.full((1, HEADS, SEQ, SEQ), 1 / SEQ), np.arange(SEQ)
    both = Composition(Sinusoidal(6, layout="interleaved"), Sinusoidal(6, layout="concatenated"))
    once = [part.embed(np.zeros_like(x), positions=p) for part in both.parts]
    assert np.abs(both.embed(x, positions=p) - (x + once[0] + once[1])).max() < 1e-12
    v = torch.from_numpy(draw(1, 1, HEADS, SEQ, HEAD_DIM))
    shaw, at = Shaw(HEAD_DIM, max_distance=2, init_std=1.0).double(), {"q_positions": torch.arange(SEQ)}
    at["k_positions"] = at["q_positions"]
    w = torch.from_numpy(w)
    assert torch.equal(Composition(ROPE, shaw).values(w, v, **at), shaw.values(w, v, **at))
    assert torch.equal(Composition(ROPE, Encoding()).values(w, v, **at), w @ v)
    assert Composition(ROPE, Encoding()).bias(v, v, **at) is None


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ((ROPE,), ValueError, "parts must be at least two encodings, got"),
        ((ROPE, "alibi"), TypeError, "parts must be encodings, got 'alibi'"),
        ((ROPE, AxialRoPE(8, "half")), ValueError, r"the same positions, got axes \[\(\), \(2,\)\]"),
        (
            (T5Bias(2, bidirectional=True), DeBERTa(2, 8, span=4, p2c_index="paper")),
            ValueError,
            r"at most one of the parts may set the logit scale, got \['t5', 'deberta'\]",
        ),
        (
            (Shaw(8, max_distance=1), Shaw(8, max_distance=1)),
            ValueError,
            r"at most one of the parts may act on values, got \['shaw', 'shaw'\]",
        ),
    ],
)
def test_what_cannot_be_put_together_is_said(parts, error, message):
    with pytest.raises(error, match=message):
        Composition(*parts)


LAYERS = [(ROPE, 3), (Encoding(), None), (ALiBi(HEADS, causal=True), 4)]  # encoding, window


def run(x, p, cache):
    """Three layers over the tokens x at p; ``cache`` keeps each layer's keys, values and their positions."""
    for number, (encoding, size) in enumerate(LAYERS):
        q, k, v = (draw(10 * number + i, x.shape[-1], HEADS * HEAD_DIM) / 4 for i in range(3))
        q, k, v = ((x @ w).reshape(1, -1, HEADS, HEAD_DIM).swapaxes(1, 2) for w in (q, k, v))
        old_k, old_v, old_p = cache.get(number, (k[:, :, :0], v[:, :, :0], p[:0]))
        k, v, k_positions = (np.concatenate(a, axis=n) for a, n in (((old_k, k), 2), ((old_v, v), 2), ((old_p, p), 0)))
        mask = causal(p, k_positions)
        if size is not None:
            mask = mask & window(p, k_positions, size)
        out = attention(q, k, v, encoding=encoding, q_positions=p, k_positions=k_positions, mask=mask)
        x = x + out.swapaxes(1, 2).reshape(1, len(p), -1)
        kept = slice(None) if size is None else slice(-(size - 1), None)  # a windowed layer may forget the rest
        cache[number] = k[:, :, kept], v[:, :, kept], k_positions[kept]
    return x


@pytest.mark.parametrize("chunks", [(1,) * SEQ, (4, 3, 2)])
def test_an_encoding_and_a_window_for_each_layer(chunks):
    """Decoding with a cache that keeps only the window equals one pass; it would not, were the window one smaller."""
    x, p = draw(0, 1, SEQ, HEADS * HEAD_DIM), np.arange(SEQ)
    full, cache, parts = run(x, p, {}), {}, []
    for part in np.split(p, np.cumsum(chunks)[:-1]):
        parts.append(run(x[:, part], part, cache))
    assert np.abs(np.concatenate(parts, axis=1) - full).max() < 1e-13
    assert len(cache[0][2]) == 2 and len(cache[1][2]) == SEQ


def test_a_window_counts_the_query():
    p = np.arange(6)
    seen = (causal(p, p) & window(p, p, 3))[0].sum(axis=1)
    assert seen.tolist() == [1, 2, 3, 3, 3, 3]
    assert window(p[None], p, 2)[0, 0, 3].tolist() == [False, False, True, True, True, False]


@pytest.mark.parametrize("encoding", [ROPE, ALiBi(HEADS, causal=True), Encoding()])
def test_a_cache_without_the_middle_is_a_mask_over_the_whole(encoding):
    q, k, v = (draw(i, 1, HEADS, SEQ, HEAD_DIM) for i in range(3))
    p, last = np.arange(SEQ), np.array([SEQ - 1])
    kept = kept_positions(SEQ, sinks=1, size=3)
    assert kept == [0, 6, 7, 8]
    at = {"encoding": encoding, "q_positions": last}
    got = attention(q[:, :, -1:], k[:, :, kept], v[:, :, kept], k_positions=p[kept], **at)
    mask = np.isin(p, kept)[None, None, None, :]
    assert np.abs(got - attention(q[:, :, -1:], k, v, k_positions=p, mask=mask, **at)).max() < 1e-14


def test_counting_within_the_cache_moves_the_keys():
    """Streaming: keys turned at their old positions and moved are keys turned at their places in the cache."""
    k, kept = draw(0, 1, HEADS, SEQ, HEAD_DIM), kept_positions(SEQ, sinks=2, size=3)
    theta, places = inv_freq(HEAD_DIM), np.arange(len(kept))
    old = rotate(k, *cos_sin(np.arange(SEQ), theta), layout="half")[:, :, kept]
    moved = rerotate(old, old_positions=np.array(kept), new_positions=places, inv_freq=theta, layout="half")
    assert np.abs(moved - rotate(k[:, :, kept], *cos_sin(places, theta), layout="half")).max() < 1e-13
    assert np.abs(moved - old).max() > 0.1


def test_positions_of_windows_and_evicted_caches_are_checked():
    p = np.arange(3)
    for call, error, message in (
        (lambda: window(p, p, 0), ValueError, "size must be at least 1, got 0"),
        (lambda: window(p.astype(np.float16), p, 2), TypeError, "q_positions must be integers"),
        (lambda: window(p, p[None, None], 2), ValueError, r"got shapes \(3,\) and \(1, 1, 3\)"),
        (lambda: kept_positions(4, sinks=-1, size=2), ValueError, "sinks must be at least 0, got -1"),
        (lambda: kept_positions(4, sinks=1, size=0), ValueError, "size must be at least 1, got 0"),
        (lambda: kept_positions(2.5, sinks=1, size=2), TypeError, "length must be an integer, got 2.5"),
    ):
        with pytest.raises(error, match=message):
            call()
