"""``posenc config``: what it says about files that mislead, and errors, never a guess, for those that cannot be read.

The values are compared with transformers' own in ``test_config_values.py``.
"""

import copy
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from posenc_ref.cli import main
from posenc_ref.configs import FAMILIES, ConfigError, as_json, as_text, read_config
from posenc_ref.rotary.rope import inv_freq

ROOT = Path(__file__).parents[1]
CONFIGS = json.loads((Path(__file__).parent / "configs.json").read_text(encoding="utf-8"))
LLAMA = {
    "model_type": "llama", "hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2,
    "max_position_embeddings": 4096, "rope_theta": 10000.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 1024, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}  # fmt: skip
MROPE = {"type": "mrope"}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}


def said(config):
    """The warnings, in one text."""
    return "\n".join(read_config(config).warnings)


def scaled(entry, **changes):
    return LLAMA | {"rope_scaling": entry} | changes


# -- words: what misleads ------------------------------------------------------------------------------------------


def test_a_plain_file_needs_no_warning():
    assert read_config(LLAMA).warnings == ()
    assert read_config(LLAMA | {"rope_scaling": None}).warnings == ()
    assert read_config(LLAMA | {"rope_scaling": {}}).warnings == ()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (scaled({"type": "linear", "factor": 2.0}), 'type "linear" is the older spelling'),
        (scaled({"type": "linear", **YARN}), 'rope_type "yarn" and the older type "linear" disagree'),
        (scaled(YARN, rope_parameters=YARN), "both there, and equal"),
        (scaled(YARN, rope_parameters=LLAMA3), "differ: transformers reads rope_scaling"),
        (scaled({"factor": 2.0}), "rope_type is absent: read as default, so factor has no effect"),
        (scaled({"rope_type": "default", "factor": 2.0}), 'factor plays no part in rope_type "default"'),
        (scaled({"rope_type": "linear", "factor": 1.0}), "Factor 1: linear changes no frequency"),
        (scaled({"rope_type": "yarn", "factor": 4.0}), "original_max_position_embeddings is absent"),
        (scaled(YARN | {"factor": 8.0}), "factor 8 × trained length 1,024 = 8,192, but the file's context is 4,096"),
        (scaled(YARN, rope_theta=1e6), "on top of a raised base"),
        (scaled(YARN | {"mscale": 0.7}), "Only one of mscale and mscale_all_dim is set"),
        (scaled(YARN | {"finetuned": True}), "Unknown field rope_scaling.finetuned: ignored"),
        (scaled(YARN | {"factr": 2}), "Unknown field rope_scaling.factr: ignored"),
        (scaled({"rope_type": "dynamic", "factor": 2.0}), "Cache keys before they are turned"),
        (scaled(LONG), "Keys cached with the first set are then wrong"),
        (LLAMA | {"rope_theta": None}, "rope_theta is absent: base 10,000"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "ignored: the code of this family turns the whole head"),
        (LLAMA | {"torch_dtype": "bfloat16"}, "in bfloat16 position 257 is stored as 256"),
        (LLAMA | {"dtype": "float16"}, "in float16 position 2,049 is stored as 2,048"),
        (LLAMA | {"rotary_pct": 0.25}, "Field rotary_pct is not used here: ignored"),
        (LLAMA | {"rope_parameters": {"rope_theta": 5e5}}, "500,000 and rope_theta 10,000 disagree"),
        (LLAMA | {"model_type": "phi", "rope_parameters": {"partial_rotary_factor": 0.25},
                  "partial_rotary_factor": 0.5},
         "0.25 and partial_rotary_factor 0.5 disagree"),
        (LLAMA | {"model_type": "qwen3", "hidden_size": 256}, "head_dim is absent: transformers takes 128"),
        (LLAMA | {"model_type": "gpt_oss"}, "transformers puts in that of the published models"),
        (LLAMA | {"model_type": "phi3", "original_max_position_embeddings": 2048, "rope_scaling": {
            **LONG, "original_max_position_embeddings": 1024}}, "is 1,024, but 2,048 counts"),
        (LLAMA | {"model_type": "olmo3", "rope_theta": 1e4}, "not read for sliding layers: transformers takes 500000"),
        (CONFIGS["deepseek-v3"] | {"rope_scaling": YARN | {"mscale_all_dim": 1.0}},
         "takes 1.13863; DeepSeek's code takes 1."),
        (CONFIGS["opt-125m"], "The table has 2 rows more than max_position_embeddings"),
        (CONFIGS["roberta-base"], "pad_token_id + 1 = 2, over tokens that are no padding: 514 rows hold 512"),
        (CONFIGS["mpt-7b"] | {"attn_config": {"alibi": False}}, "transformers 5.24 has ALiBi anyway"),
        (CONFIGS["falcon-rw-1b"], "bfloat16"),
        (CONFIGS["smollm3-3b"], "no_rope_layers has a 1 for layers that do rotate"),
    ],
)  # fmt: skip
def test_traps_are_named(config, words):
    assert words in said(config)


def test_the_factor_of_a_fitting_file_is_not_doubted():
    assert "trained length" not in said(scaled(YARN))


def test_deepseeks_own_attention_factor_for_one_mscale():
    """In DeepSeek's code mscale is 1 and mscale_all_dim 0 where they are absent."""
    entry = YARN | {"mscale": 0.707}
    assert f"DeepSeek's code takes {0.1 * 0.707 * math.log(4) + 1:.6g}" in said(scaled(entry))


def test_scaling_of_old_files_wins_over_new_ones():
    model = read_config(scaled({"rope_type": "linear", "factor": 2.0}, rope_parameters=YARN))
    assert model.layers[0].rotary.rope_type == "linear"


def test_entries_by_layer_type_are_for_families_that_have_them():
    entry = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    with pytest.raises(ConfigError, match="one set for all layers"):
        read_config(LLAMA | {"rope_parameters": entry})
    flat = LLAMA | {"model_type": "gemma3_text", "rope_parameters": {"rope_type": "linear", "factor": 8.0}}
    with pytest.raises(ConfigError, match="one entry for each layer type"):
        read_config(flat)


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"), ("{", "no JSON"), ("[]", "must hold an object"), ("null", "must hold an object"),
        ('"llama"', "must hold an object"), ('{"a": NaN}', "NaN"), ('{"a": Infinity}', "Infinity"),
        ('{"a": 1, "a": 2}', '"a" twice'), ("[" * 100_000, "nested too deep"),
        ('{"a": ' + "9" * 5000 + "}", "too long"),
        ("{}", "model_type is missing"), ('{"model_type": 3}', "model_type must be a text, got 3"),
        ('{"model_type": "lama"}', 'nearest name is "llama"'), ('{"model_type": "qwen9"}', 'nearest name is "qwen'),
        ('{"model_type": "zzzz"}', "Known: albert, "),
        ('{"model_type": "gemma3"}', "text_config is missing"),
        ('{"model_type": "llava", "text_config": {"model_type": "xyz"}}', "text_config.model_type"),
        ('{"model_type": "new_vl", "text_config": {"model_type": "llama"}}', "can be read as a file of its own"),
    ],
)  # fmt: skip
def test_files_that_are_no_configuration(text, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_config(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, "head_dim cannot be derived: hidden_size missing"),
        ({"hidden_size": None, "num_attention_heads": None}, "hidden_size and num_attention_heads missing"),
        ({"hidden_size": 510}, "510 is no multiple of num_attention_heads 4"),
        ({"hidden_size": -512}, "hidden_size must be from 1"),
        ({"hidden_size": "512"}, 'whole number, got the text "512"'),
        ({"hidden_size": 512.5}, "whole number, got 512.5"), ({"hidden_size": True}, "whole number, got true"),
        ({"hidden_size": [512]}, "whole number, got a list"), ({"hidden_size": 10**12}, "from 1 to 1000000"),
        ({"num_hidden_layers": 10**9}, "from 1 to 10000"), ({"num_hidden_layers": 0}, "from 1 to 10000"),
        ({"head_dim": 3}, "an even number, got 3"), ({"head_dim": 1}, "an even number"),
        ({"rope_theta": 0}, "rope_theta must be > 1"), ({"rope_theta": -1e4}, "> 1, got -10000"),
        ({"rope_theta": "1e4"}, "a number"), ({"rope_theta": 10**400}, "finite"), ({"rope_theta": [1e4]}, "a number"),
        ({"max_position_embeddings": 0}, ">= 1"), ({"max_position_embeddings": {}}, "whole number, got an object"),
        ({"rope_scaling": "yarn"}, "an object { … }, got the text"),
        ({"rope_scaling": [YARN]}, "an object { … }, got a list"),
        ({"rope_scaling": 2.0}, "an object { … }, got 2.0"),
        ({"rope_scaling": {"rope_type": "yarm", "factor": 2}}, 'must be one of default, linear'),
        ({"rope_scaling": {"rope_type": "su"}}, "must be one of"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "must be one of"),
        ({"rope_scaling": {"rope_type": 7}}, "rope_type must be a text, got 7"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}, "max_position_embeddings": None}, "is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor must be >= 1, got 0.5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "factor must be >= 1, got -2"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor is missing"),
        ({"rope_scaling": YARN | {"beta_fast": 1, "beta_slow": 32}}, "beta_fast must be at least"),
        ({"rope_scaling": YARN | {"truncate": "no"}}, "true or false"),
        ({"rope_scaling": YARN | {"attention_factor": 0}}, "attention_factor must be > 0"),
        ({"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}}, "low_freq_factor is missing"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 8}}, "high_freq_factor must be at least low_freq_factor = 8"),
        ({"rope_scaling": LONG | {"short_factor": [1.0] * 63}}, "short_factor must have 64 entries, got 63"),
        ({"rope_scaling": LONG | {"long_factor": [0.0] * 64}}, "long_factor[0] must be > 0"),
        ({"rope_scaling": LONG | {"long_factor": None}}, "long_factor is missing"),
        ({"rope_scaling": LONG | {"long_factor": "64"}}, "long_factor must be a list"),
        ({"model_type": "phi", "partial_rotary_factor": 1.5}, "at most 1, got 1.5"),
        ({"model_type": "phi", "partial_rotary_factor": 0.01}, "an even number, got 1 of head_dim 128"),
        ({"model_type": "gptj"}, "rotary_dim is missing"),
        ({"model_type": "gptj", "rotary_dim": 256}, "at most the head's 128"),
        ({"model_type": "qwen2_vl", "rope_scaling": MROPE | {"mrope_section": [16, 24, 25]}}, "add up to 64 pairs"),
        ({"model_type": "qwen2_vl", "rope_scaling": MROPE | {"mrope_section": [64]}}, "3 entries"),
        ({"model_type": "gemma2", "num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "must have 2 entries, got 1"),
        ({"model_type": "gemma2", "layer_types": ["full", "full"]}, "must hold full_attention"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "a 0 or 1 for each of 2 layers"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2]}, "a 0 or 1"),
        ({"model_type": "chatglm", "rope_ratio": 50}, "does not tell which code"),
        ({"model_type": "chatglm", "position_encoding_2d": True}, "ChatGLM 1"),
        ({"model_type": "bert", "max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "is not described here"),
        ({"model_type": "roberta", "max_position_embeddings": 2, "pad_token_id": 1}, "leaves no row"),
        ({"model_type": "t5", "relative_attention_num_buckets": 31, "num_heads": 4}, "must be even"),
        ({"model_type": "t5", "relative_attention_max_distance": 4, "num_heads": 4}, "must exceed the exact range"),
        ({"model_type": "deberta"}, "relative_attention is not true"),
        ({"model_type": "deberta", "relative_attention": True, "pos_att_type": ["p2p"]}, "must hold c2p and p2c"),
        ({"model_type": "bloom", "num_attention_heads": None}, "is missing"),
        ({"model_type": "phi3", "rope_scaling": {"rope_type": "linear", "factor": 2}}, "default or longrope"),
        ({"model_type": "mpt", "n_heads": 8, "attn_config": {"alibi": False, "rope": True}}, "rope must be false"),
        ({"model_type": "mpt", "attn_config": {"alibi": False}, "learned_pos_emb": False}, "must not both be false"),
        ({"rope_scaling": YARN | {"mscale": 1e200}}, "must be at most 1e6"),
        ({"model_type": "x", "text_config": {"model_type": []}}, '"x" is not known'),
        ({"model_type": "gemma2", "sliding_window": 64, "use_bidirectional_attention": True}, "must be false"),
        ({"model_type": "mistral"}, "sliding_window is missing: null for none"),
        ({"model_type": "qwen3_moe", "use_sliding_window": True}, "use_sliding_window must be false"),
        ({"rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.001}}, "must leave a pair of 128"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be(changes, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_config(LLAMA | changes)


@pytest.mark.parametrize("more", [{}, {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}])
def test_code_that_knows_one_base_and_no_scaling(more):
    """GPT-J's attention has 10,000 as a literal."""
    model = read_config(LLAMA | {"model_type": "gptj", "rotary_dim": 64, "rope_theta": None} | more)
    (group,) = model.layers
    assert (group.rotary.base, group.rotary.rope_type) == (10000, "default")
    assert [f"Field {name} is not used here: ignored." in model.warnings for name in more] == [True] * len(more)


WILD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.sampled_from([10**19, -(10**400), 1e308, 0.0, -0.0, 1e-300, 0.5]),
    st.floats(allow_nan=True), st.text(max_size=3), st.lists(st.floats(0, 3), max_size=3), st.just({}),
    st.dictionaries(st.sampled_from(["factor", "rope_type", "rope_theta"]), st.integers(0, 9), max_size=2),
)  # fmt: skip


def _spoil(data, content):
    """Replace, remove or add one field, here or one level deeper."""
    content = copy.deepcopy(content)
    inner = [v for v in content.values() if isinstance(v, dict) and v]
    place = data.draw(st.sampled_from([content, *inner]))
    name = data.draw(st.sampled_from([*sorted(place), "rope_theta", "rope_scaling", "rope_parameters", "factor"]))
    if data.draw(st.booleans()):
        place[name] = data.draw(WILD)
    else:
        place.pop(name, None)
    return content


@settings(max_examples=300)
@given(st.data())
def test_right_or_refused(data):
    """Whatever one field becomes: a report of at most 80 columns with finite numbers, or a ConfigError of one line."""
    content = CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))]
    for _ in range(data.draw(st.integers(1, 2))):
        content = _spoil(data, content)
    try:
        model = read_config(content)
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    json.dumps(as_json(model), allow_nan=False)
    assert max(map(len, as_text(model).splitlines())) <= 80


@settings(max_examples=100)
@given(st.text(max_size=20))
def test_any_text_is_refused(text):
    with pytest.raises(ConfigError):
        read_config(text)


@pytest.mark.parametrize(("changes", "words"), [
    ({"model_type": "gpt_neox", "rope_theta": 1e6}, "Field rope_theta (GPT-NeoX has rotary_emb_base) is not used here"),
    ({"model_type": "bloom", "dtype": "bfloat16"}, "casts slope × position to bfloat16"),
    ({"model_type": "mpt", "n_heads": 8, "attn_config": {"alibi_bias_max": 8}}, "attn_config.alibi is absent"),
    ({"rope_theta": None}, "rope_theta is null, which is not absent"),
    ({"model_type": "olmo2", "layer_types": ["full_attention"] * 2}, "Field layer_types is not used here"),
])  # fmt: skip
def test_more_traps_are_named(changes, words):
    assert any(words in warning for warning in read_config(LLAMA | changes).warnings)


def test_half_a_weight_is_that_of_the_slopes_in_effect():
    """Falcon divides slopes by √head_dim, with the logits."""
    bloom, falcon = (
        dict(read_config(LLAMA | {"model_type": m, "alibi": True}).layers[0].facts)["Half at"].split(",")[0]
        for m in ("bloom", "falcon")
    )
    assert float(falcon) == pytest.approx(float(bloom) * 128**0.5, rel=0.01)


def test_pairs_are_counted_in_the_texts_that_a_set_serves():
    text = as_text(
        read_config(LLAMA | {"model_type": "phi3", "rope_scaling": LONG, "original_max_position_embeddings": 512})
    )
    first, second = text.split("Texts over 512 tokens")
    assert "pairs in 512 tokens" in first and "pairs in 4,096 tokens" in second


def test_whoever_stops_reading_gets_no_traceback(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), "utf-8")
    command = f"{sys.executable} -m posenc_ref.cli config {path}"
    run = subprocess.run(f"{command} | head -n 1", shell=True, capture_output=True, text=True, check=False)
    assert run.stdout.startswith("LLaMA") and run.stderr == ""
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    run = subprocess.run(command.split(), env=ascii_only, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and run.stderr == ""


ALONE = """
import json, os, socket, subprocess, sys, threading
from pathlib import Path
for name in "torch", "transformers", "scipy", "hypothesis", "matplotlib", "resource", "fcntl":
    sys.modules[name] = None
os.fork = subprocess.Popen = socket.socket = threading.Thread.start = None
cells = json.loads(Path("configuration.ipynb").read_text("utf-8"))["cells"]
(cell, *_) = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
install, _, code = cell.partition("\\n")
assert install == "%pip install -q posenc_ref"
exec(code)
"""


def test_the_browser_edition_reads_a_file_with_numpy_alone():
    """Pyodide has no PyTorch, processes, threads or sockets; the notebook's first cell runs without them."""
    folder = Path(__file__).parents[1] / "book" / "browser"
    run = subprocess.run([sys.executable, "-c", ALONE], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.rstrip() == as_text(read_config((folder / "config.json").read_text("utf-8")))


# -- the report ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_reports_fit_80_columns_and_repeat(name):
    text = as_text(read_config(json.dumps(CONFIGS[name])))
    assert max(map(len, text.splitlines())) <= 80
    assert text == as_text(read_config(CONFIGS[name])), "the same file, the same words"
    assert "\u00a0" not in text and not re.search(r"\bnan\b|\binf\b", text)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_reading_leaves_the_object_alone(name):
    content = copy.deepcopy(CONFIGS[name])
    read_config(content)
    assert content == CONFIGS[name]


def test_counts_of_pairs_are_those_of_the_definition():
    """Llama 3.1's bands: turns in 8192 tokens below 1 are divided by 8, above 4 are kept."""
    text = as_text(read_config(CONFIGS["llama-3.1-8b"]))
    turns = 8192 * 500000.0 ** (-np.arange(64) / 64) / (2 * math.pi)
    kept, slow = int((turns >= 4).sum()), int((turns <= 1).sum())
    assert f"{kept} pairs keep their frequency" in text
    assert f"{slow} by the whole factor 8".replace(" ", "") in text.replace("\n", "").replace(" ", "")
    assert f"{slow} of 64 pairs in training" in text


def test_json_has_all_numbers():
    found = as_json(read_config(CONFIGS["gpt-j-6b"]))["layers"][0]
    assert_allclose(found["frequencies"][0]["inv_freq"], inv_freq(64))
    x, y = (np.asarray(found["frequencies"][0]["test_vector"][k]) for k in ("input", "output"))
    turned = (x[:64:2] + 1j * x[1:64:2]) * np.exp(1j * 100 * inv_freq(64))
    assert_allclose(y[:64:2] + 1j * y[1:64:2], turned, atol=1e-12)
    assert_allclose(y[64:], x[64:])


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["llama-3.1-8b"]), encoding="utf-8")
    return str(path)


def test_command_prints_the_report(file, capsys):
    assert main(["config", file]) == 0
    assert capsys.readouterr().out == as_text(read_config(CONFIGS["llama-3.1-8b"])) + "\n"


def test_command_prints_json(file, capsys):
    assert main(["config", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(as_json(read_config(CONFIGS["llama-3.1-8b"]))))


def test_command_reads_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"model_type": "mamba"}'))
    assert main(["config", "-"]) == 0
    assert "Mamba" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b'{"model_type": "lama"}'])
def test_command_says_what_is_wrong_in_one_line(content, tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert main(["config", str(path)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("posenc config: ") and error.count("\n") == 1


@pytest.mark.parametrize("path", ["missing.json", "."])
def test_command_without_a_file(path, capsys):
    assert main(["config", path]) == 2
    assert capsys.readouterr().err.startswith("posenc config: ")


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gemma-3-4b", "phi-3-su", "bloom-560m", "t5-small", "deberta-v3-base"]
)
def test_plot(name, tmp_path):
    source, picture = tmp_path / "c.json", tmp_path / "c.png"
    source.write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    assert main(["config", str(source), "--plot", str(picture)]) == 0
    first = picture.read_bytes()
    assert first.startswith(b"\x89PNG")
    main(["config", str(source), "--plot", str(picture)])
    assert picture.read_bytes() == first


def test_plot_of_what_has_no_curve(tmp_path, capsys):
    source = tmp_path / "c.json"
    source.write_text(json.dumps(CONFIGS["bert-base"]), encoding="utf-8")
    assert main(["config", str(source), "--plot", str(tmp_path / "c.png")]) == 2
    assert "no curve to draw" in capsys.readouterr().err


def test_numpy_is_enough(file):
    """Neither torch nor transformers nor matplotlib is imported for a report."""
    script = f"""
import sys
from posenc_ref.cli import main
main(["config", {file!r}])
print(sorted({{"torch", "transformers", "matplotlib"}} & set(sys.modules)))
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert out.endswith("[]\n")


# -- the page of the book ------------------------------------------------------------------------------------------


def test_the_page_shows_what_the_command_prints():
    """Each report in book/configs.md is what is printed today for the file above it."""
    page = (ROOT / "book" / "configs.md").read_text(encoding="utf-8")
    shown = re.findall(r"```json\n(.*?)```.*?```text\n(.*?)```", page, re.DOTALL)
    assert len(shown) >= 3
    for source, report in shown:
        assert as_text(read_config(source)) + "\n" == report, as_text(read_config(source))


def test_the_page_names_all_families():
    page = (ROOT / "book" / "configs.md").read_text(encoding="utf-8")
    assert f"{len(FAMILIES)} values of `model_type`" in page
    assert [name for name in FAMILIES if f"`{name}`" not in page] == []
