"""``posenc config``: its numbers against transformers' own code, family by family.

The files are in ``configs.json``, written by hand with the sizes of published models where there are any.
"""

import copy
import importlib
import inspect
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from transformers import AutoModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_ref.configs import FAMILIES, read_config
from posenc_ref.configs.families import WRAPPERS
from posenc_ref.rotary.layouts import permutation

CONFIGS = json.loads((Path(__file__).parent / "configs.json").read_text(encoding="utf-8"))
ROTATING = [n for n, c in CONFIGS.items() if any(g.rotary for g in read_config(c).layers) and "chatglm" not in n]
EPS32 = float(np.finfo(np.float32).eps)


def language_part(content):
    content = copy.deepcopy(content)
    inner = content.get("text_config")
    if inner is None and content["model_type"] in WRAPPERS:
        return content | {"model_type": WRAPPERS[content["model_type"]]}
    return content if inner is None else {"model_type": WRAPPERS[content["model_type"]], **inner}


def their_config(content):
    content = language_part(content)
    return CONFIG_MAPPING[content.pop("model_type")](**content)


def modeling(config):
    return importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))


def their_rotation(config):
    """The module that makes their tables: the only one, or that for text."""
    module = modeling(config)
    names = [n for n in vars(module) if n.endswith("RotaryEmbedding") and "Vision" not in n]
    assert len(names) == 1, names
    return module, getattr(module, names[0])(config)


def theirs_turned(content, layer_type, position, x):
    """x, ``(head_dim,)`` float64, turned at a position by the family's own tables and its own function."""
    config = their_config(content)
    module, rotation = their_rotation(config)
    q = torch.as_tensor(x, dtype=torch.float32)[None, None, None]
    at = torch.tensor([[position]])
    if config.model_type in ("gptj", "codegen"):
        table = module.create_sinusoidal_positions(position + 1, config.rotary_dim)[position]
        sin, cos = table.chunk(2)
        turn = q[..., : config.rotary_dim]
        turned = module.apply_rotary_pos_emb(turn, sin[None, None], cos[None, None])
        return torch.cat([turned, q[..., config.rotary_dim :]], -1)[0, 0, 0].numpy()
    keys = {"layer_type": layer_type} if "layer_type" in inspect.signature(rotation.forward).parameters else {}
    tables = rotation(q, at, **keys)
    if isinstance(tables, torch.Tensor):  # Llama 4 and DeepSeek-V2: complex numbers
        return module.apply_rotary_emb(q, q, tables)[0][0, 0, 0].numpy()
    width = tables[0].shape[-1] * (2 if config.model_type == "gpt_oss" else 1)
    turn, rest = q[..., :width], q[..., width:]
    if config.model_type == "deepseek_v3" and config.rope_interleave:
        turned = module.apply_rotary_pos_emb_interleave(turn, turn, *tables)[0]
        back = permutation(width, source="half", target="interleaved")
        return turned[0, 0, 0].numpy()[back]
    turned = module.apply_rotary_pos_emb(turn, turn, *tables)[0]
    return torch.cat([turned, rest], -1)[0, 0, 0].numpy()


# -- values: transformers' own -------------------------------------------------------------------------------------


def test_every_family_has_a_file():
    assert {read_config(c).model_type for c in CONFIGS.values()} == set(FAMILIES)
    assert len(FAMILIES) >= 20


@pytest.mark.parametrize("name", ROTATING)
def test_rotation_equals_the_familys_own_code(name):
    """Layout, frequencies, attention factor and channels that pass, by one vector turned by their code and by ours."""
    model = read_config(CONFIGS[name])
    for group in model.layers:
        if group.rotary is None:
            continue
        found = group.rotary.sets[0]
        x, ours = group.rotary.test_vector(found)
        theirs = theirs_turned(CONFIGS[name], group.layer_type, 100, x)
        bound = 100 * EPS32 * (math.log(group.rotary.base) / 2 + 4) * 2
        assert np.abs(theirs - ours).max() < bound * found.attention_factor
        assert np.abs(theirs - x).max() > 0.01, "the vector must move"


@pytest.mark.parametrize("name", ROTATING)
def test_frequencies_equal_the_familys_own_tables(name):
    config = their_config(CONFIGS[name])
    if config.model_type in ("gptj", "codegen"):
        return  # no buffer of frequencies; the rotated vector is compared
    _, rotation = their_rotation(config)
    for group in read_config(CONFIGS[name]).layers:
        if group.rotary is None:
            continue
        prefix = f"{group.layer_type}_" if hasattr(rotation, f"{group.layer_type}_inv_freq") else ""
        ours, rotary = group.rotary.sets[0], group.rotary
        theirs = getattr(rotation, f"{prefix}inv_freq").numpy()
        assert theirs.shape == ours.inv_freq.shape
        growth = rotary.settings.get("factor", 1.0) if rotary.rope_type in ("yarn", "llama3") else 1.0
        assert_allclose(theirs, ours.inv_freq, rtol=(math.log(rotary.base) / 2 + 4) * EPS32 * growth)
        assert_allclose(getattr(rotation, f"{prefix}attention_scaling"), ours.attention_factor, rtol=1e-12)
        if len(rotary.sets) == 2:
            _check_longer(config, rotary)


def _check_longer(config, rotary):
    length = rotary.original + 1 if rotary.rope_type == "longrope" else 2 * rotary.original
    theirs, factor = ROPE_INIT_FUNCTIONS[rotary.rope_type](config, None, seq_len=length)
    assert_allclose(theirs.numpy(), rotary.sets[1].inv_freq, rtol=20 * EPS32)
    assert_allclose(factor, rotary.sets[1].attention_factor, rtol=1e-12)
    assert np.abs(rotary.sets[0].inv_freq - rotary.sets[1].inv_freq).max() > 1e-6


@pytest.mark.parametrize("name", ROTATING)
def test_layers_equal_theirs(name):
    config = their_config(CONFIGS[name])
    model = read_config(CONFIGS[name])
    ours = {i: g for g in model.layers for i in (g.numbers if g.numbers is not None else range(model.num_layers))}
    assert sorted(ours) == list(range(config.num_hidden_layers))
    types = getattr(config, "layer_types", None)
    if types is not None:
        assert [ours[i].layer_type for i in sorted(ours)] == list(types)
    listed = getattr(config, "no_rope_layers", None)
    size = getattr(config, "local_attention", None) or getattr(config, "sliding_window", None)
    if types is None:
        assert {g.layer_type for g in model.layers} == {"sliding_attention" if size else "full_attention"}
    assert all(g.window == size for g in model.layers if g.layer_type == "sliding_attention")
    if listed is not None:
        assert [int(ours[i].encoding == "rope") for i in sorted(ours)] == list(listed)
    if config.model_type in ("cohere2", "exaone4"):  # their attention rotates by this rule
        rotates = [config.sliding_window is not None and t == "sliding_attention" for t in types]
        if config.model_type == "exaone4" and config.sliding_window is None:
            rotates = [True] * len(types)
        assert [ours[i].encoding == "rope" for i in sorted(ours)] == rotates


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3"])
def test_softmax_scale_of_deepseek(name):
    config = their_config(CONFIGS[name])
    module = modeling(config)
    theirs = module.yarn_apply_mscale(config.rope_parameters, 1.0)
    assert_allclose(read_config(CONFIGS[name]).layers[0].rotary.logit_factor, theirs, rtol=1e-12)
    assert theirs > 1.1


def test_defaults_of_silent_files():
    """What the table assumes where a file is silent is what the family's class assumes."""
    for name, family in FAMILIES.items():
        if family.kind != "rope" or name in ("chatglm", "gptj", "codegen"):
            continue
        config = CONFIG_MAPPING[name](num_hidden_layers=2)
        parameters = config.rope_parameters
        parameters = parameters.get("full_attention", parameters)
        assert parameters["rope_theta"] == family.base, name
        if family.local_base:
            assert config.rope_parameters["sliding_attention"]["rope_theta"] == family.local_base[1]
        assert (parameters.get("partial_rotary_factor") or 1.0) == (family.partial or 1.0), name
        if family.head_dim:
            assert family.head_dim in (getattr(config, "head_dim", None), getattr(config, "qk_rope_head_dim", None))
        if family.context:
            assert config.max_position_embeddings == family.context
        assert (config.rope_parameters.get("rope_type", "default") == "default") == (family.scaling is None)
        source = inspect.getsource(modeling(config))
        assert ("partial_rotary_factor" in source) == (family.partial is not None), name


def test_chatglm_equals_its_published_tables():
    """ChatGLM 2's code: frequencies of half the head's kv_channels, neighbours are pairs."""
    group = read_config(CONFIGS["chatglm3-6b"]).layers[0]
    x, y = group.rotary.test_vector(group.rotary.sets[0])
    n = 128 // 2
    theta = 1.0 / (10000 ** (np.arange(0, n, 2) / n))
    pairs = (x[:n:2] + 1j * x[1:n:2]) * np.exp(100j * theta)
    assert_allclose(y[:n], np.stack([pairs.real, pairs.imag], -1).ravel(), atol=1e-12)
    assert_allclose(y[n:], x[n:])


@pytest.mark.parametrize("name", ["bloom-560m", "bloom-176b", "mpt-7b", "falcon-rw-1b"])
def test_alibi_slopes_equal_theirs(name):
    values = read_config(CONFIGS[name]).layers[0].values
    config = their_config(CONFIGS[name])
    module, heads, length = modeling(config), config.num_attention_heads, 5
    if config.model_type == "mpt":
        bias = module.build_mpt_alibi_tensor(heads, length)[:, 0].numpy()
    else:
        mask = torch.ones(1, length)
        bias = module.build_alibi_tensor(mask, heads, torch.float32).reshape(heads, length).numpy()
    tolerance = 2**-8 if config.model_type == "falcon" else 1e-6  # Falcon rounds to bfloat16
    assert_allclose(bias[:, -1] - bias[:, -2], values["slopes"], rtol=tolerance)
    if config.model_type == "falcon":
        assert_allclose(np.asarray(values["slopes"]) / values["slopes_after_scaling"], 8.0)


def test_the_attention_of_falcon_adds_before_it_divides():
    source = inspect.getsource(modeling(their_config(CONFIGS["falcon-rw-1b"])))
    assert "alibi / math.sqrt(self.config.hidden_size // self.num_heads)" in source


def test_transformers_takes_8_for_mpts_largest_bias():
    """The authors' slopes are 2^(−max·h/n); transformers never passes the maximum on. The report says so."""
    model = read_config(CONFIGS["mpt-7b-storywriter"])
    assert_allclose(model.layers[0].values["slopes"], [2 ** (-16 * h / 32) for h in range(1, 33)])
    assert any("alibi_bias_max 16" in w for w in model.warnings)
    assert "alibi_bias_max" not in inspect.getsource(modeling(their_config(CONFIGS["mpt-7b"])).MptModel.forward)


@pytest.mark.parametrize("name", ["t5-small", "flan-t5-base", "mt5-small", "umt5-small"])
def test_buckets_equal_theirs(name):
    values = read_config(CONFIGS[name]).layers[0].values
    config = their_config(CONFIGS[name])
    offsets = torch.tensor(values["offsets"])
    for side, both in (("encoder", True), ("decoder", False)):
        if config.model_type == "umt5":
            module = modeling(config).UMT5Attention(config, True, 0, is_causal=not both)
            module.is_decoder = not both
            theirs = module._relative_position_bucket(offsets)
        else:
            function = modeling(config).T5Attention if config.model_type == "t5" else modeling(config).MT5Attention
            theirs = function._relative_position_bucket(offsets, bidirectional=both)
        assert theirs.tolist() == values[f"{side}_buckets"]


def test_buckets_of_mpnet_equal_theirs():
    values = read_config(CONFIGS["mpnet-base"]).layers[0].values
    encoder = modeling(their_config(CONFIGS["mpnet-base"])).MPNetEncoder
    assert encoder.relative_position_bucket(torch.tensor(values["offsets"])).tolist() == values["buckets"]
    assert (values["first_row"], values["longest"]) == (2, 512)


def test_rows_of_deberta_equal_theirs():
    for name in ("deberta-v2-xlarge", "deberta-v3-base"):
        values = read_config(CONFIGS[name]).layers[0].values
        module = modeling(their_config(CONFIGS[name]))
        relative = -torch.tensor(values["offsets"])
        assert relative.abs().max() == 511
        bucket = module.make_log_bucket_position(relative, 256, 512)
        assert torch.clamp(bucket.long() + 256, 0, 511).tolist() == values["rows"]
        theirs = module.scaled_size_sqrt(torch.zeros(1, 64), 3)
        assert_allclose(values["scale"], 1 / float(theirs), rtol=1e-6)
    values = read_config(CONFIGS["deberta-base"]).layers[0].values
    assert values["rows"] == [min(max(512 - o, 0), 1023) for o in values["offsets"]]


@pytest.mark.parametrize(
    ("name", "rows", "first", "longest"),
    [
        ("bert-base", 512, 0, 512), ("roberta-base", 514, 2, 512), ("xlm-roberta-base", 514, 2, 512),
        ("camembert-base", 514, 2, 512), ("opt-125m", 2050, 2, 2048), ("bart-base", 1026, 2, 1024),
        ("mbart-large", 1026, 2, 1024), ("gpt2", 1024, 0, 1024), ("starcoder", 8192, 0, 8192),
        ("gpt-neo-1.3b", 2048, 0, 2048), ("albert-base", 512, 0, 512), ("electra-small", 512, 0, 512),
        ("distilbert-base", 512, 0, 512),
    ],
)  # fmt: skip
def test_tables_have_the_rows_of_theirs(name, rows, first, longest):
    values = read_config(CONFIGS[name]).layers[0].values
    assert (values["table_rows"], values["first_row"], values["longest"]) == (rows, first, longest)
    config = their_config(CONFIGS[name])
    assert _their_rows(config) == rows


def _their_rows(config):
    module, kind = modeling(config), config.model_type
    if kind in ("roberta", "xlm-roberta", "camembert"):
        prefix = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}[kind]
        embeddings = getattr(module, prefix + "Embeddings")
        ids = embeddings.create_position_ids_from_input_ids(torch.full((1, 3), 7), config.pad_token_id)
        assert ids[0, 0] == 2
    with torch.device("meta"):  # no memory, no numbers
        named = AutoModel.from_config(config).named_modules()
    tables = (m for n, m in named if isinstance(m, torch.nn.Embedding) and re.search(r"position|wpe", n))
    (rows,) = {table.num_embeddings for table in tables}
    return rows


@pytest.mark.parametrize("name", ["pegasus-large", "distilbert-sines"])
def test_sines_equal_theirs(name):
    row = read_config(CONFIGS[name]).layers[0].values["row_of_position_1"]
    config = their_config(CONFIGS[name])
    if config.model_type == "pegasus":
        table = modeling(config).PegasusSinusoidalPositionalEmbedding(3, config.d_model)
        theirs = table.create_weight()[1]
    else:
        theirs = torch.zeros(3, config.dim)
        modeling(config).create_sinusoidal_embeddings(3, config.dim, theirs)
        theirs = theirs[1]
    assert_allclose(row, theirs.numpy(), atol=1e-6)
