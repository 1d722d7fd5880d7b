"""Whatever is given to a public function, it returns a finite result of the right shape, or an error that helps.

:data:`CALLS` has a good call for each public name of the package. Hypothesis spoils one or two of its arguments. Then

- an error must be a ValueError, TypeError or IndexError, raised by the package and not by the libraries below it,
  that names a spoiled argument and says its value, shape or dtype;
- a result must be finite, of the shape of the good result where no spoiled argument has another shape or size, and the
  same as for these arguments as plain NumPy int64 and float64, so that no dtype wraps around or rounds on the way.

What a *good* call returns is compared with others' code in the tests of the rooms.
"""

import inspect
import math
import re
import reprlib
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from posenc_ref import attention, bias, composition, content, embedding, positions, registry, rotary
from posenc_ref.attention import masked_softmax
from posenc_ref.bias import modules as bias_modules
from posenc_ref.content import modules as content_modules
from posenc_ref.embedding import modules as embedding_modules
from posenc_ref.rotary import longrope_search, scaling
from posenc_ref.rotary.axial import cos_sin_axes, section_axes
from posenc_ref.rotary.xpos import decay

PACKAGE = Path(inspect.getfile(attention)).parent
B, H, S, K, D = 2, 3, 4, 5, 6  # batch, heads, queries, keys, head_dim


def real(*shape):
    return np.random.default_rng(sum(shape)).uniform(0.1, 1.0, shape)


Q_POSITIONS, K_POSITIONS = np.arange(1, 1 + S), np.arange(K)
PAIR = {"q_positions": Q_POSITIONS, "k_positions": K_POSITIONS}
HEADS = {"q": real(B, H, S, D), "k": real(B, H, K, D)}
HALF = {"head_dim": D, "layout": "half"}
XL = {"u": real(H, D), "v": real(H, D), "w_r": real(H, D, 8), "base": 100.0}
TABLES = {"cos": real(S, 2), "sin": real(S, 2), "layout": "interleaved"}
NETWORK = {
    "hidden_weight": real(3, 1), "hidden_bias": real(3), "out_weight": real(H, 3), "out_bias": real(H),
}  # fmt: skip
FIELD = {
    "hidden_weight": real(3, D + 1), "hidden_bias": real(3), "out_weight": real(D, 4), "out_bias": real(D),
}  # fmt: skip
SOLVER = {"delta": 0.1, "substeps": 3, "method": "rk4"}
SCALED = {"rotary_dim": 8, "factor": 2.0, "base": 10000.0}
LONG = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
DEBERTA = HEADS | PAIR | {"keys": real(8, D), "queries": real(8, D), "p2c_index": "paper", "max_position": None}
IDS = {"q_documents": np.array([1, 1, 2, 2]), "k_documents": np.array([1, 1, 2, 2, 3])}


def of(method, make, *arguments):
    """Make the encoding from all other arguments, and call its method with those named."""

    def call(**all_of_them):
        given = {name: all_of_them.pop(name) for name in arguments}
        return getattr(make(**all_of_them), method)(**given)

    return call


def embeds(make, **arguments):
    return of("embed", make, "x", "positions"), {"x": real(B, S, D), "positions": np.arange(S), **arguments}


def rotates(make, **arguments):
    return of("rotate", make, "q", "k", *PAIR), HEADS | PAIR | arguments


def biases(make, **arguments):
    return of("__call__", make, *PAIR), PAIR | arguments


def of_content(make, **arguments):
    return of("bias", make, "q", "k", *PAIR), HEADS | PAIR | arguments


def scaled(make, **arguments):
    def call(q, k, q_positions, k_positions, **of_scaling):
        rope = rotary.ScaledRoPE(D, "half", scaling=make(**of_scaling), length=99)
        return rope.rotate(q, k, q_positions=q_positions, k_positions=k_positions)

    return call, HEADS | PAIR | {"factor": 2.0} | arguments


def search(factor, starts, **arguments):
    def loss(factors):
        return float(np.abs(factors - 1.5).sum())

    return longrope_search.search(loss, factor=factor, starts=starts, rng=np.random.default_rng(0), **arguments).factors


CALLS = {
    "embedding.frequencies": (embedding.frequencies, {"d_model": 8, "base": 100.0, "exponent": "paper"}),
    "embedding.wavelengths": (embedding.wavelengths, {"d_model": 8, "base": 100.0}),
    "embedding.sinusoidal": (
        embedding.sinusoidal,
        {"positions": np.arange(S), "d_model": 8, "layout": "concatenated", "base": 100.0, "exponent": "paper"},
    ),
    "embedding.Sinusoidal": embeds(embedding.Sinusoidal, d_model=D, layout="interleaved", base=100.0),
    "embedding.MultiplicativeSinusoidal": embeds(embedding.MultiplicativeSinusoidal, d_model=D, layout="interleaved"),
    "embedding.multiply": (
        embedding.multiply, {"x": real(B, S, D), "vectors": real(S, D), "positions": np.arange(S)},
    ),
    "embedding.learned": (embedding.learned, {"positions": np.arange(S), "table": real(9, D), "offset": 2}),
    "embedding.padded_rows": (
        embedding.padded_rows, {"attention_mask": np.array([[0, 1, 1], [1, 1, 1]]), "offset": 2},
    ),
    "embedding.floater": (
        partial(embedding.floater, field=lambda t, p: -p), {"positions": np.arange(S), "start": real(D), **SOLVER},
    ),
    "embedding.trajectory": (
        partial(embedding.trajectory, field=lambda t, p: -p), {"num_positions": S, "start": real(D), **SOLVER},
    ),
    "embedding.mlp_field": (embedding.mlp_field, {"t": 0.5, "p": real(S, D), **FIELD}),
    "embedding.oscillators": (
        embedding.oscillators, {"d_model": 8, "layout": "interleaved", "delta": 0.5, "base": 100.0},
    ),
    "embedding.modules.LearnedEmbedding": embeds(
        embedding_modules.LearnedEmbedding, num_positions=9, d_model=D, offset=2, init_std=0.1
    ),
    "embedding.modules.MultiplicativeEmbedding": embeds(
        embedding_modules.MultiplicativeEmbedding, num_positions=9, d_model=D, init_std=0.1
    ),
    "embedding.modules.Floater": embeds(embedding_modules.Floater, d_model=D, width=3, init_std=0.1, **SOLVER),
    "bias.offsets": (bias.offsets, PAIR),
    "bias.slopes": (bias.slopes, {"num_heads": H}),
    "bias.alibi_bias": (bias.alibi_bias, PAIR | {"num_heads": H, "causal": True}),
    "bias.alibi_row_bias": (bias.alibi_row_bias, {"k_positions": K_POSITIONS, "num_heads": H}),
    "bias.ALiBi": biases(bias.ALiBi, num_heads=H, causal=False),
    "bias.bias_vector": (
        partial(bias.bias_vector, bias.ALiBi(H, causal=True)), {"q_len": S, "k_len": K, "like": real(1)},
    ),
    "bias.kerple_bias": (bias.kerple_bias, PAIR | {"r1": real(H), "r2": real(H), "variant": "log"}),
    "bias.fire_bias": (bias.fire_bias, PAIR | NETWORK | {"c": 0.1, "threshold": 3.0}),
    "bias.sandwich_bias": (bias.sandwich_bias, PAIR | {"num_heads": H, "d_bar": 8, "base": 100.0}),
    "bias.Sandwich": biases(bias.Sandwich, num_heads=H, d_bar=8, base=100.0),
    "bias.bucket_starts": (bias.bucket_starts, {"num_buckets": 8, "max_distance": 20}),
    "bias.t5_bucket": (
        bias.t5_bucket, {"offset": np.arange(-9, 9), "bidirectional": True, "num_buckets": 8, "max_distance": 20},
    ),
    "bias.t5_bias": (bias.t5_bias, PAIR | {"table": real(8, H), "bidirectional": False, "max_distance": 20}),
    "bias.modules.T5Bias": biases(
        bias_modules.T5Bias, num_heads=H, bidirectional=True, num_buckets=8, max_distance=20, init_std=0.1
    ),
    "bias.modules.KerpleBias": biases(bias_modules.KerpleBias, num_heads=H, variant="power"),
    "bias.modules.FireBias": biases(bias_modules.FireBias, num_heads=H, width=3, c=0.1, threshold=3.0),
    "content.relative_shift": (content.relative_shift, {"x": real(B, S, K)}),
    "content.shaw_index": (content.shaw_index, PAIR | {"max_distance": 2}),
    "content.shaw_bias": (content.shaw_bias, {"q": HEADS["q"], **PAIR, "keys": real(5, D)}),
    "content.shaw_bias_by_pair": (content.shaw_bias_by_pair, {"q": HEADS["q"], **PAIR, "keys": real(H, 5, D)}),
    "content.shaw_bias_skewed": (content.shaw_bias_skewed, {"q": HEADS["q"], "keys": real(5, D), "k_len": K}),
    "content.shaw_values": (content.shaw_values, {"weights": real(B, H, S, K), **PAIR, "values": real(5, D)}),
    "content.shaw_values_by_pair": (
        content.shaw_values_by_pair, {"weights": real(B, H, S, K), **PAIR, "values": real(5, D)},
    ),
    "content.transformer_xl_bias": (content.transformer_xl_bias, HEADS | PAIR | XL),
    "content.transformer_xl_bias_by_pair": (content.transformer_xl_bias_by_pair, HEADS | PAIR | XL),
    "content.transformer_xl_bias_shifted": (
        lambda **a: np.nan_to_num(plain(content.transformer_xl_bias_shifted(**a)), neginf=0),  # the future
        HEADS | XL | {"causal": False},
    ),
    "content.log_bucket_ends": (content.log_bucket_ends, {"bucket_size": 8, "max_position": 40}),
    "content.deberta_bucket": (
        content.deberta_bucket, {"relative": np.arange(-9, 9), "bucket_size": 8, "max_position": 40},
    ),
    "content.deberta_index": (content.deberta_index, PAIR | {"span": 4, "max_position": None}),
    "content.deberta_scale": (content.deberta_scale, {"head_dim": 4, "terms": 2}),
    "content.deberta_bias": (content.deberta_bias, DEBERTA),
    "content.deberta_bias_by_pair": (content.deberta_bias_by_pair, DEBERTA),
    "content.cope_bias": (content.cope_bias, HEADS | PAIR | {"table": real(3, D), "scaled": True, "mask": None}),
    "content.cope_counts": (content.cope_counts, {"gates": real(B, H, S, K), "k_positions": K_POSITIONS}),
    "content.cope_counts_by_pair": (
        content.cope_counts_by_pair, {"gates": real(B, H, S, K), "k_positions": K_POSITIONS},
    ),
    "content.modules.Shaw": of_content(content_modules.Shaw, head_dim=D, max_distance=2, num_heads=H, init_std=0.1),
    "content.modules.TransformerXL": of_content(
        content_modules.TransformerXL, num_heads=H, head_dim=D, d_model=8, base=100.0, init_std=0.1
    ),
    "content.modules.DeBERTa": of_content(
        content_modules.DeBERTa, num_heads=H, head_dim=D, span=4, p2c_index="paper", max_position=9, init_std=0.1
    ),
    "content.modules.CoPE": of_content(
        content_modules.CoPE, head_dim=D, num_positions=3, scaled=True, num_heads=H, init_std=0.1
    ),
    "rotary.inv_freq": (rotary.inv_freq, {"rotary_dim": 8, "base": 100.0}),
    "rotary.cos_sin": (rotary.cos_sin, {"positions": np.arange(S), "inv_freq": real(3)}),
    "rotary.rotate": (rotary.rotate, {"x": real(B, H, S, D)} | TABLES),
    "rotary.rotate_": (lambda x, **a: rotary.rotate_(_copied(x), **a), {"x": real(B, H, S, D)} | TABLES),
    "rotary.rerotate": (
        rotary.rerotate,
        {"k": real(B, H, S, D), "old_positions": np.arange(S), "new_positions": np.arange(S), "inv_freq": real(3),
         "layout": "half"},
    ),
    "rotary.permutation": (rotary.permutation, {"rotary_dim": 8, "source": "half", "target": "interleaved"}),
    "rotary.convert_projection": (
        rotary.convert_projection,
        {"weight": real(12, 5), "head_dim": 6, "source": "half", "target": "interleaved", "rotary_dim": 4},
    ),
    "rotary.RoPE": rotates(rotary.RoPE, **HALF, base=100.0, rotary_dim=4),
    "rotary.XPos": rotates(rotary.XPos, **HALF, reference=2.0, base=100.0, scale_base=512.0, gamma=0.4),
    "rotary.AxialRoPE": (
        of("rotate", rotary.AxialRoPE, "q", "k", *PAIR),
        HEADS | HALF | {"axes": 1, "base": 100.0}
        | {name: p[:, None] for name, p in PAIR.items()},
    ),
    "rotary.MultimodalRoPE": (
        of("rotate", rotary.MultimodalRoPE, "q", "k", *PAIR),
        HEADS | HALF | {"sections": (2, 1), "interleaved": False, "base": 100.0}
        | {name: np.stack([p, p], axis=-1) for name, p in PAIR.items()},
    ),
    "rotary.PI": scaled(rotary.PI),
    "rotary.NTK": scaled(rotary.NTK),
    "rotary.DynamicNTK": scaled(rotary.DynamicNTK, original_max_position=50),
    "rotary.ByParts": scaled(rotary.ByParts, original_max_position=50),
    "rotary.YaRN": scaled(rotary.YaRN, original_max_position=50, mscale=1.0, attention_factor=None),
    "rotary.Llama3": scaled(rotary.Llama3, original_max_position=50),
    "rotary.LongRoPE": scaled(
        rotary.LongRoPE, original_max_position=50, short_factor=[1.0] * 3, long_factor=[2.0] * 3
    ),
    "rotary.Proportional": scaled(rotary.Proportional, rotated=4),
    "rotary.ScaledRoPE": rotates(
        rotary.ScaledRoPE, **HALF, scaling=rotary.PI(2.0), base=100.0, rotary_dim=4, length=None
    ),
    "rotary.scaling.position_interpolation": (scaling.position_interpolation, SCALED),
    "rotary.scaling.ntk_base": (scaling.ntk_base, SCALED),
    "rotary.scaling.ntk_aware": (scaling.ntk_aware, SCALED),
    "rotary.scaling.dynamic_ntk": (scaling.dynamic_ntk, SCALED | {"length": 99, "original_max_position": 50}),
    "rotary.scaling.by_parts": (
        scaling.by_parts, SCALED | {"original_max_position": 50, "beta_fast": 32, "beta_slow": 1, "truncate": True},
    ),
    "rotary.scaling.yarn": (scaling.yarn, SCALED | {"original_max_position": 50, "mscale": 1.0}),
    "rotary.scaling.yarn_mscale": (scaling.yarn_mscale, {"factor": 4.0, "mscale": 1.0}),
    "rotary.scaling.llama3": (
        scaling.llama3,
        SCALED | {"original_max_position": 50, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    "rotary.scaling.longrope": (scaling.longrope, SCALED | LONG | {"length": 99, "original_max_position": 50}),
    "rotary.scaling.proportional": (scaling.proportional, SCALED | {"rotated": 4}),
    "rotary.longrope_search.search": (
        search, {"factor": 4.0, "starts": [[1.0, 2.0]], "population": 3, "parents": 2, "iterations": 2},
    ),
    "rotary.axial.cos_sin_axes": (
        cos_sin_axes, {"positions": np.arange(6).reshape(3, 2), "inv_freq": real(2), "axis_of_pair": np.array([0, 1])},
    ),
    "rotary.axial.section_axes": (section_axes, {"sections": [3, 2], "interleaved": True}),
    "rotary.xpos.decay": (decay, {"rotary_dim": 8, "gamma": 0.4}),
    "positions.decode_positions": (positions.decode_positions, {"q_len": 2, "cache_len": 3}),
    "positions.positions_from_mask": (
        positions.positions_from_mask, {"attention_mask": np.array([[0, 1, 1], [1, 1, 1]])},
    ),
    "positions.packed_positions": (positions.packed_positions, {"document_ids": np.array([1, 1, 2])}),
    "positions.causal": (positions.causal, PAIR),
    "positions.window": (positions.window, PAIR | {"size": 2}),
    "positions.same_document": (positions.same_document, IDS),
    "positions.kept_positions": (positions.kept_positions, {"length": 9, "sinks": 1, "size": 3}),
    "attention.masked_softmax": (masked_softmax, {"logits": real(S, K), "mask": np.ones((S, K), dtype=bool)}),
    "attention.attention": (
        attention,
        HEADS | {"v": real(B, H, K, 2), "encoding": rotary.RoPE(D, "half"), **PAIR, "mask": np.ones((S, K), bool)},
    ),
    "composition.Composition": (
        lambda one, other: composition.Composition(one, other).logit_scale(4),
        {"one": rotary.RoPE(D, "half"), "other": bias.ALiBi(H, causal=True)},
    ),
    "registry.create": (lambda name: registry.create(name).logit_scale(4), {"name": "nope"}),
    "registry.spec": (lambda name: len(registry.spec(name).name), {"name": "rope"}),
    "registry.load": (lambda name: len(registry.load(name).spec.name), {"name": "rope"}),
}  # fmt: skip
NOTHING_TO_GIVE = {"PositionTable", "Scaling", "SearchResult", "Spec", "Encoding", "names"}
OTHER_NAMES = {
    "rotary_dim",
    "bucket_size",
    "num_buckets",
    "keys",
    "table",
    "queries",
    "queries and keys",
    "parts",
    "weights",
    "positions",
    "offset",
    "offsets",
}
"""What a function calls an argument where it passes it on."""
TORCH_ONLY = {name for name in CALLS if ".modules." in name}


def public_names():
    for room in ("embedding", "bias", "content", "rotary"):
        yield from ((f"{room}.{name}", name) for name in import_module(f"posenc_ref.{room}").__all__)
    for room in ("embedding.modules", "bias.modules", "content.modules", "rotary.scaling", "rotary.longrope_search",
                 "positions", "composition", "attention", "registry"):  # fmt: skip
        module = import_module(f"posenc_ref.{room}")
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") == module.__name__ and callable(value) and not name.startswith("_"):
                yield f"{room}.{name}", name


def test_every_public_name_has_a_call():
    assert {path for path, name in public_names() if name not in NOTHING_TO_GIVE} <= set(CALLS)


# ---------------------------------------------------------------- spoiling

VALUES = [None, True, "half", "", math.nan, math.inf, 0, -1, 1, 3, 7, 2.5, -2.0, 1j, 2**70, 10**400, 1e300, [1, 2], (),
          {}, np.int64(4), np.float32(0.5), np.array(2), np.array([4, 4]), np.zeros(0), np.array("a"), np.array([None]),
          torch.tensor([1.0, 2.0])]  # fmt: skip


def is_array(x):
    return isinstance(x, np.ndarray | np.generic) or torch.is_tensor(x)


def spoilings(x, factors=(-1, 50, 10**9)):
    """Ways to change a good argument; of an array also its dtype, library, shape, sign and one of its values."""
    yield from (lambda value=value: value for value in VALUES)
    if not isinstance(x, np.ndarray):
        return
    for dtype in (
        "float64",
        "float32",
        "float16",
        "int64",
        "int32",
        "int8",
        "uint8",
        "uint64",
        "bool",
        "complex64",
        "O",
    ):
        yield lambda dtype=dtype: x.astype(dtype)
    yield lambda: torch.from_numpy(x.copy())
    yield lambda: torch.from_numpy(x.copy()).bfloat16()
    yield x.tolist
    shapes = [x[None], x[:0], x[0], x[..., :-1], x[:-1], x[..., :0], np.concatenate([x, x]), x[:1], x[..., :1]]
    yield from (lambda y=y: y for y in shapes)
    yield from (lambda f=f: x * f for f in factors)
    if x.dtype.kind == "f":
        yield from (lambda v=v: np.where(np.arange(x.size).reshape(x.shape) == 0, v, x) for v in (math.nan, math.inf))


def _copied(x):
    return x.clone() if torch.is_tensor(x) else x.copy() if isinstance(x, np.ndarray) else x


def plain(x):
    """Arrays as NumPy int64 or float64."""
    if torch.is_tensor(x):
        x = x.detach()
        x = (x.double() if x.is_floating_point() else x).numpy()
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "iuf":
        return x
    return x.astype(np.float64 if x.dtype.kind == "f" else np.int64)


def as_torch(x):
    return torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) and x.dtype.kind in "iufb" else x


def words_for(x):
    """What an error may say of a value."""
    if isinstance(x, float) and abs(x) > 3e38:
        yield "inf"  # in float32
    yield from (repr(x), str(x), reprlib.repr(x), str(np.shape(x)) if not isinstance(x, dict) else "{}")
    if is_array(x):
        yield from ("float64",) if "float" in str(x.dtype) else ()  # the dtype of an offset
        yield from (str(x.dtype).removeprefix("torch."), str(tuple(x.shape)), *map(str, x.shape))
        flat = plain(x).reshape(-1) if not isinstance(x, np.generic) else np.array([x])
        yield from (f"{v:g}" for v in flat if flat.dtype.kind in "iuf")
        yield from (str(v) for v in flat)
    elif isinstance(x, int) and abs(x) < 1e300:
        yield str(float(x))
    elif isinstance(x, list | tuple):
        yield from (str(len(x)), *map(str, x), *(w for y in x if isinstance(y, list) for w in map(str, y)))


def check_error(error, spoiled, names):
    """It is ours, names an argument (one that does not fit the spoiled one, perhaps), and says what it got."""
    text, trace = str(error), error.__traceback__
    if "Multiple namespaces" in text:  # array-api-compat's, where NumPy meets PyTorch
        return
    while trace.tb_next is not None:
        trace = trace.tb_next
    where = Path(trace.tb_frame.f_code.co_filename)
    assert PACKAGE in where.parents, f"raised in {where}: {error!r}"
    assert any(
        re.search(rf"(?<![\w.]){re.escape(w)}(?![\w])", text) for x in spoiled.values() for w in words_for(x) if w
    ), f"the value is not in the message: {error!r}"
    assert any(re.search(rf"\b{name}\b", text) for name in {*names, *OTHER_NAMES}), f"no argument is named: {error!r}"


def moderate(x):
    """Numbers of which products are finite, also in float32 and half precision."""
    number = isinstance(x, int | float) or (is_array(x) and np.asarray(x).dtype.kind in "biuf")
    return not number or bool(np.all(np.abs(np.asarray(x, dtype=float)) < 1e4))


def shape_of(result):
    return [tuple(np.shape(plain(r))) for r in (result if isinstance(result, tuple) else [result])]


@pytest.mark.filterwarnings("error", "ignore::RuntimeWarning")  # of NumPy, on its way to an error or to infinity
@pytest.mark.parametrize("name", CALLS)
def test_a_right_result_or_an_error_that_helps(name):
    function, good = CALLS[name]
    if name in TORCH_ONLY:
        good = {key: as_torch(x) for key, x in good.items()}
    torch.manual_seed(0)
    good_shape = shape_of(function(**good))
    refused = False

    @settings(max_examples=40, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(st.data())
    def run(data):
        nonlocal refused
        names = data.draw(st.lists(st.sampled_from(sorted(good)), min_size=1, max_size=2, unique=True))
        factors = (-1, 50) if "loater" in name else (-1, 50, 10**9)  # it takes a step for each position
        spoiled = {key: data.draw(st.sampled_from([*spoilings(plain(good[key]), factors)]))() for key in names}
        if name in TORCH_ONLY and data.draw(st.booleans()):
            spoiled = {key: as_torch(x) for key, x in spoiled.items()}
        arguments = good | spoiled
        torch.manual_seed(0)
        try:
            result = function(**arguments)
        except (ValueError, TypeError, IndexError) as error:
            refused = True
            check_error(error, spoiled, good)
            return
        if all(is_array(good[key]) and np.shape(x) == np.shape(good[key]) for key, x in spoiled.items()):
            assert shape_of(result) == good_shape, f"{spoiled}"
        results = [plain(r) for r in (result if isinstance(result, tuple) else [result])]
        inputs = [plain(x) for x in spoiled.values()]
        if all(moderate(x) for x in inputs):
            assert all(np.isfinite(np.asarray(r, dtype=float)).all() for r in results), f"{spoiled}: not finite"
        torch.manual_seed(0)
        again = function(
            **{key: plain(x) if name not in TORCH_ONLY else as_torch(plain(x)) for key, x in arguments.items()}
        )
        for got, right in zip(results, again if isinstance(again, tuple) else [again], strict=True):
            right, low = (
                np.asarray(plain(right), float),
                any(str(getattr(x, "dtype", "")).endswith(("t16", "t32")) for x in arguments.values()),
            )
            tolerance = 0.02 if low else 1e-5 if name in TORCH_ONLY else 1e-9
            assert np.shape(got) == right.shape
            assert np.allclose(
                got,
                right,
                rtol=tolerance,
                atol=tolerance * max(1, np.abs(right[np.isfinite(right)]).max(initial=0)),
                equal_nan=True,
            ), f"{spoiled}"

    run()
    assert refused
