"""The lab: model and tasks do what they say, results are those of this recipe, and a cluster changes nothing."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from posenc_ref.lab import corpus, measures, store, tasks
from posenc_ref.lab.config import Job, config
from posenc_ref.lab.model import Decoder
from posenc_ref.lab.run import run
from posenc_ref.lab.training import batch_loss, parameter_groups, schedule, train

TINY = {"steps": 3, "batch": 4, "length": 16, "measures": ["loss"], "settings": {"loss": {"total": 512}}}
ENCODINGS = [
    "nope", "sinusoidal", "learned", "floater", "multiplicative", "multiplicative_sinusoidal", "rope", "xpos", "alibi",
    "sandwich", "t5", "kerple", "fire", "shaw", "shaw_keys", "transformer_xl", "deberta", "cope", "rope+t5",
]  # fmt: skip


def decoder(encoding, task="lm", **overrides):
    torch.manual_seed(0)
    return Decoder(config(task, **overrides), tasks.vocabulary_size(task), encoding)


def committed(name, **choice):
    """Results of an experiment, if they are committed; the assertions are about those."""
    try:
        return store.results(name, **choice)
    except FileNotFoundError:
        pytest.skip(f"results of {name} are not committed")


# ---------------------------------------------------------------- model and training


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_no_token_sees_a_later_one(encoding):
    model, tokens = decoder(encoding), torch.arange(20)[None]
    other = tokens.clone()
    other[0, 12:] += 7
    a, b = model(tokens), model(other)
    assert torch.allclose(a[0, :12], b[0, :12], atol=1e-5) and not torch.allclose(a[0, 12:], b[0, 12:], atol=1e-3)


@pytest.mark.parametrize("windows", [[], [8, 8]], ids=["all keys", "windows"])
@pytest.mark.parametrize(
    "encoding", [e for e in ENCODINGS if e not in ("learned", "floater", "multiplicative", "xpos")]
)
def test_a_step_runs_on_one_device(encoding, windows):
    """On the device without numbers, which refuses to mix with the processor. The four left out look at positions."""
    model = decoder(encoding, windows=windows).to("meta")
    batch = tasks.draw(config("lm"), 0, torch.Generator().manual_seed(0))
    batch_loss(model, batch).backward()
    assert {p.grad.device.type for p in model.parameters() if p.requires_grad} == {"meta"}
    with pytest.raises(RuntimeError, match="not on the expected device meta"):
        torch.zeros(3, device="meta") + torch.zeros(3)


@pytest.mark.parametrize("encoding", ["rope", "alibi", "t5", "shaw", "deberta", "kerple", "sinusoidal"])
def test_positions_given_are_those_assumed(encoding):
    """The fused kernel (no positions given) against attention as specified (positions given)."""
    model, tokens = decoder(encoding), torch.arange(20)[None]
    assert torch.allclose(model(tokens), model(tokens, torch.arange(20)), atol=1e-5)


def test_a_window_hides_what_is_farther_away():
    model, tokens = decoder("rope", windows=[4, 4]), torch.arange(20)[None]
    other = tokens.clone()
    other[0, 5] += 1
    same = torch.isclose(model(tokens), model(other), atol=1e-6).all(-1)[0]
    assert same[:5].all() and not same[5:12].any() and same[12:].all()  # two layers of 3 tokens back each


def test_one_layer_without_encoding_ignores_order_and_a_list_is_one_for_each_layer():
    model, tokens = decoder("nope", num_layers=1), torch.arange(12)[None]
    shuffled = torch.cat([tokens[:, :11].flip(1), tokens[:, 11:]], 1)
    assert torch.allclose(model(tokens)[0, -1], model(shuffled)[0, -1], atol=1e-5)
    rope = decoder(["nope", "rope"])
    assert [e.spec.name for e in rope.encodings] == ["nope", "rope"]
    with pytest.raises(ValueError, match="first of a list"):
        decoder(["rope", "sinusoidal"])


def test_what_is_shared_is_shared():
    t5, shaw, deberta = decoder("t5"), decoder("shaw"), decoder("deberta")
    assert t5.encodings[0] is t5.encodings[1]
    assert shaw.encodings[0] is not shaw.encodings[1]
    assert deberta.encodings[0].relative is deberta.encodings[1].relative
    assert deberta.encodings[0].key is not deberta.encodings[1].key


def test_unused_rows_of_a_table_shrink_by_weight_decay_alone():
    fit = train("learned", steps=20, batch=4, length=16, arguments={"num_positions": 24})
    before, after = (m.encodings[0].table.detach()[16:] for m in (fit.initial, fit.model))
    kept = math.prod(1 - rate * fit.config.weight_decay for rate in fit.learning_rates)
    assert torch.allclose(after, before * kept, rtol=1e-5)
    assert not torch.allclose(fit.model.encodings[0].table[:16], fit.initial.encodings[0].table[:16] * kept, rtol=0.1)


def test_biases_of_logits_are_exempt_from_decay_and_learn_faster():
    model = decoder("t5")
    groups = parameter_groups(model, config("lm"))
    table = model.encodings[0].table
    [own] = [g for g in groups if any(p is table for p in g["params"])]
    assert own["weight_decay"] == 0 and own["faster"] == 10
    assert sum(p.numel() for g in groups for p in g["params"]) == sum(p.numel() for p in model.parameters())


def test_the_schedule_rises_and_falls():
    rates = [schedule(step, 100, config("lm")) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0]) and rates[-1] == pytest.approx(0.02)
    assert np.all(np.diff(rates[4:]) < 0)


def test_the_caller_keeps_its_random_state():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train("learned", **{k: TINY[k] for k in ("steps", "batch", "length")})
    assert torch.equal(torch.rand(3), expected)


# ---------------------------------------------------------------- tasks and measures


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_text_is_the_one_of_the_note_and_held_out_text_is_not_trained_on():
    note = (store.files("posenc_ref.lab") / "austen.md").read_text()
    assert corpus.sha256() in note
    assert len(corpus.training_tokens()) + len(corpus.held_out_tokens()) == 1_567_796
    batch = tasks.draw(config("lm", batch=2), 0, generator())
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert corpus.decode(batch.tokens[0]) in corpus.decode(corpus.training_tokens())


@pytest.mark.parametrize("latest", [False, True])
def test_recall_can_be_answered_from_the_text_and_only_so(latest):
    drawn = tasks.recall(300, 40, generator(), latest=latest)
    records = tasks.KEYS * tasks.VALUES
    for row, target, place in zip(drawn.batch.tokens, drawn.batch.targets, drawn.place, strict=True):
        asked, values = row[-tasks.QUERIES :] - records - tasks.FILLERS, target[-tasks.QUERIES :]
        assert len(set(asked.tolist())) == tasks.QUERIES
        for key, value in zip(asked.tolist(), values.tolist(), strict=True):
            found = [(p, int(t) % tasks.VALUES) for p, t in enumerate(row) if t < records and t // tasks.VALUES == key]
            assert len(found) == (2 if latest else 1) and (not latest or found[0][1] != found[1][1])
            assert found[-1][1] == value - records - tasks.FILLERS - tasks.KEYS
        assert found[-1][0] == place  # of the last query
        assert (target[: -tasks.QUERIES] == tasks.IGNORED).all()
        assert sum(t < records for t in row.tolist()) == tasks.RECORDS


def test_sorting_texts_hold_their_items_in_order():
    batch = tasks.sorting(torch.tensor([2, 5, 3]), generator())
    for n, tokens, targets in zip([2, 5, 3], batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        items = sorted(tokens[:n])
        assert tokens[n] == tasks.ITEMS and tokens[n + 1 : 2 * n] == items[:-1]
        assert [t for t in targets if t != tasks.IGNORED] == items and targets[n : 2 * n] == items


def test_skewed_lengths_have_loss_at_their_own_tokens_only_and_random_starts_stay_in_range():
    c = config("lm", batch=400, lengths=[16, 64], length_probs=[0.75, 0.25], random_start=True)
    batch = tasks.draw(c, 0, generator())
    counted = (batch.targets != tasks.IGNORED).sum(1)
    assert set(counted.tolist()) == {16, 64} and 0.15 < (counted == 64).double().mean() < 0.35
    start = batch.positions[:, 0]
    assert set(start[counted == 16].tolist()) <= set(range(49)) and start[counted == 16].max() > 40
    assert (start[counted == 64] == 0).all() and batch.positions.max() == 63


def test_loss_by_position_and_perplexity_are_two_views_of_one_loss():
    model = decoder("alibi")
    losses = measures.token_losses(model, 32, total=1024)
    by_position = measures.loss_by_position(model, 32, losses_of=lambda *_: losses)
    assert math.isclose(np.mean(by_position), losses.mean().item(), rel_tol=1e-5) and len(by_position) == 32
    tokens = corpus.held_out_tokens()
    one = torch.log_softmax(model(tokens[None, 32:64]), -1)[0, 3, tokens[36]].item()
    assert math.isclose(losses[1, 3].item(), -one, rel_tol=1e-4)


def test_costs_are_over_those_without_positions():
    """Memory is counted, not timed: ALiBi's bias is one array of S × S for all texts, Shaw's term one for each."""
    memory = {}
    for encoding in ("nope", "rope", "alibi", "shaw"):
        fit = train(encoding, steps=1, batch=2, length=16)
        memory[encoding] = measures.take(fit, ["memory_ratio"])["memory_ratio"]["512"]
        decode = measures.take(fit, ["decode_ratio"])["decode_ratio"]
        assert set(decode) == {"512", "4096"} and all(0.1 < x < 100 for x in decode.values())
    assert memory["nope"] == 1 < memory["rope"] < memory["shaw"] > memory["alibi"] >= 1


def test_a_probe_finds_what_is_linear_and_nothing_in_noise():
    x = torch.randn(20, 16, 8, generator=generator())
    assert measures.ridge_r2(x, x[..., :2] * 3 + 1) > 0.999
    assert measures.ridge_r2(x, torch.randn(20, 16, 2, generator=generator(1))) < 0.1


def test_the_toeplitz_share_tells_a_grid_of_distances_from_noise():
    circle = torch.arange(16) * 2 * math.pi / 16
    ring = torch.stack([circle.cos(), circle.sin()], -1)[None]
    assert measures.toeplitz_share(ring) == pytest.approx(1)
    assert measures.toeplitz_share(torch.randn(1, 64, 64, generator=generator())) < 0.6


# ---------------------------------------------------------------- jobs and results


def test_a_result_depends_on_its_job_alone():
    job = Job("lm", "alibi", 1, TINY)
    one = run(job)
    torch.manual_seed(99)
    torch.rand(7)
    again = run(job)
    assert one["figures"] == again["figures"] and one["key"] == job.key
    assert run(Job("lm", "alibi", 2, TINY))["figures"] != one["figures"]
    assert json.loads(store.as_json(one)) == one


@pytest.mark.parametrize("settings", [{"measures": ["perplexities"]}, {"settings": {"perplexities": {}}}])
def test_a_misspelt_measure_is_named_before_the_training(settings, monkeypatch):
    monkeypatch.setattr("posenc_ref.lab.run.train_config", None)
    with pytest.raises(ValueError, match=r"measures must be of .*perplexity.*, got 'perplexities'"):
        run(Job("lm", "alibi", 0, settings))


def test_a_result_of_another_recipe_is_noticed(tmp_path, monkeypatch):
    job = Job("lm", "alibi", 1, TINY)
    result = {"job": job.as_dict(), "key": job.key, "figures": {"loss": 1.0}}
    path = store.save(result, tmp_path)
    assert store.load(job, tmp_path) == result and [p.name for p in tmp_path.iterdir()] == [job.name]
    with pytest.raises(FileNotFoundError, match="another recipe; make it with: posenc lab run"):
        store.load(Job("lm", "alibi", 1, TINY | {"learning_rate": 1e-3}), tmp_path)
    path.write_text(store.as_json(result | {"key": "0" * 12}))
    with pytest.raises(ValueError, match=f"must hold the result of job {job.key}, got 000000000000"):
        store.load(job, tmp_path)
    monkeypatch.setattr("posenc_ref.lab.config.RECIPE", 0)
    with pytest.raises(FileNotFoundError):
        store.load(job, tmp_path)


def test_committed_results_are_all_of_this_recipe_and_text():
    assert store.unknown_files() == []
    for path in store.RESULTS.glob("*.json"):
        result = json.loads(path.read_text())
        assert store.load(Job(**result["job"])) == result
        assert result["corpus"] == corpus.sha256() and not re.search(r"NaN|Infinity", path.read_text())


def close(a, b, tolerance):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k], tolerance) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    return a == b if isinstance(a, str) else math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


@pytest.mark.parametrize(
    ("name", "encoding"), [("floater-control", "sinusoidal"), ("higher-rates", "multiplicative_sinusoidal")]
)
def test_training_again_gives_the_committed_figures_to_three_digits(name, encoding):
    result = committed(name, encoding=encoding, seed=0)[0]
    again, figures = run(Job(**result["job"]))["figures"], result["figures"]
    assert again.keys() == figures.keys() and close(again["history"]["loss"], figures["history"]["loss"], 2e-3)
    for part in figures.keys() & {"loss", "perplexity", "positions"}:
        assert close(again[part], figures[part], 2e-3), part


# ---------------------------------------------------------------- what the results say, over seeds


def ratio(name, encoding, above, below, which="last"):
    """Perplexity at ``above`` tokens over that at ``below``, for each seed."""
    figures = [r["figures"]["perplexity"] for r in committed(name, encoding=encoding)]
    return np.array([f[str(above)][which] / f[str(below)][which] for f in figures])


def test_lengths_beyond_the_training():
    """Claims X1 to X3, over seeds; the bounds leave room for other machines, not for another outcome."""
    for steady in ("alibi", "sandwich", "kerple", "transformer_xl"):
        flat = ratio("lengths", steady, 1024, 64)
        assert len(flat) == 3 and (flat > 0.9).all() and (flat < 1.05).all()
    for clipped in ("shaw", "shaw_keys", "deberta"):
        assert (ratio("lengths", clipped, 1024, 64) < 1.4).all()
    assert (ratio("lengths", "sinusoidal", 128, 64) >= 2).all() and (ratio("lengths", "learned", 128, 64) >= 1.4).all()
    assert (ratio("lengths", "rope", 128, 64) <= 1.7).all() and (ratio("lengths", "rope", 256, 64) >= 3).all()


def test_the_mean_over_all_tokens_hides_what_the_last_ones_show():
    for name in ("sinusoidal", "rope"):
        assert (ratio("lengths", name, 256, 64, "all") < ratio("lengths", name, 256, 64)).all()
    for result in committed("lengths"):  # both are means of the same losses, rounded to five digits
        blocks, long = result["figures"]["positions"], result["figures"]["perplexity"]["1024"]
        assert math.isclose(np.exp(np.mean(blocks)), long["all"], rel_tol=1e-3)
        assert math.isclose(np.exp(np.mean(blocks[-4:])), long["last"], rel_tol=1e-3)


def test_at_the_training_length_learned_tables_are_behind_and_alibi_is_behind_rope():
    """Claims X10 and L6, for this recipe."""
    at_length = {
        name: np.array([r["figures"]["perplexity"]["64"]["all"] for r in committed("lengths", encoding=name)])
        for name in ("learned", "sinusoidal", "rope", "alibi", "nope")
    }
    assert (at_length["rope"] < at_length["alibi"]).all() and (at_length["sinusoidal"] < at_length["learned"]).all()
    assert (at_length["learned"] < at_length["nope"]).all()


def test_a_window_saves_rope_and_a_long_tail_half_does():
    """Claim S10: texts of four times the length in the last tenth help, and are not enough."""
    assert (ratio("windows", "rope", 1024, 64) < 1.1).all()
    assert (ratio("long-tail", "rope", 256, 64) > 1.3).all()
    assert (ratio("long-tail", "rope", 256, 64) < 0.8 * ratio("lengths", "rope", 256, 64)).all()


def test_the_sinusoids_fail_at_twice_the_length_after_a_short_training_too_and_alibi_does_not():
    assert (ratio("absolute", "sinusoidal", 128, 64) >= 1.5).all()
    assert (np.abs(ratio("absolute", "alibi", 256, 64) - 1) <= 0.05).all()


def test_a_probe_finds_the_sinusoids_before_training_and_less_of_them_after():
    """Claim A8: LayerNorm and FFN keep the linear structure; training takes it away, layer by layer."""
    for result in committed("absolute", encoding="sinusoidal"):
        before, after = ([p["pe_r2"] for p in result["figures"]["probes"][end]] for end in ("before", "after"))
        assert min(before) > 0.95 and after[0] > 0.98 and after[-1] < 0.85 and after[1] > 0.95


def test_multiplied_positions_are_learned_worse_than_added_ones():
    """Claim A11, over seeds, at the training length."""
    for seed in range(3):
        loss = {
            encoding: committed("absolute", encoding=encoding, seed=seed)[0]["figures"]["perplexity"]["64"]["all"]
            for encoding in ("sinusoidal", "multiplicative_sinusoidal")
        }
        assert loss["multiplicative_sinusoidal"] > 1.1 * loss["sinusoidal"]


def test_scaled_rope():
    for result in committed("scaling"):
        four = result["figures"]["scaling"]["4"]
        none, yarn = (four[name]["untuned"]["256"]["last"] for name in ("none", "yarn"))
        assert yarn < 0.3 * none
        assert four["yarn"]["tuned"]["256"]["last"] <= 1.1 * four["none"]["untuned"]["64"]["last"]


def test_recall_by_distance():
    for result in committed("recall", encoding="nope"):
        assert result["figures"]["recall"]["lengths"]["256"]["all"] >= 0.85
    for result in committed("recall", encoding="rope"):
        at = result["figures"]["recall"]["lengths"]["256"]
        assert at["all"] <= 0.85 and at["by_distance"]["0-15"][0] >= 0.9


def test_rows_never_trained_stay_random_and_rows_seldom_trained_stay_rough():
    cosines = {
        name: [r["figures"]["cosines"] for r in committed(name, encoding="learned")]
        for name in ("full-lengths", "skewed-lengths")
    }
    assert len(cosines["full-lengths"]) == 3
    for full, skewed in zip(*cosines.values(), strict=True):
        assert abs(full["64-127"]) < 0.05 and full["16-63"] > full["64-127"] + 0.1
        assert skewed["16-63"] < full["16-63"]


def test_alibi_does_not_care_where_a_text_starts():
    for result in committed("skewed-controls", encoding="alibi"):
        assert np.ptp(list(result["figures"]["placement"].values())) < 1e-3


# ---------------------------------------------------------------- a real cluster, and the command line


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def processes():
    started = []

    def start(*arguments):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_killed_worker_loses_nothing_and_changes_nothing(processes, tmp_path):
    from distributed import Client

    from posenc_ref.lab.cluster import run_all

    address = f"tcp://127.0.0.1:{free_port()}"
    processes("distributed.cli.dask_scheduler", "--host", address, "--no-dashboard")
    options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
    workers = [processes("distributed.cli.dask_worker", address, *options) for _ in range(2)]
    jobs = [Job("lm", "nope", seed, TINY | {"steps": 40}) for seed in range(4)]
    seen = []
    with Client(address, timeout="30s") as client:
        client.wait_for_workers(2, timeout=60)
        pids = client.run(os.getpid)
        assert sorted(pids.values()) == sorted(w.pid for w in workers)

        def step(job, message):
            seen.append((job.seed, message))
            if len(seen) == 1:  # the others are being worked on
                busy = {a for a, tasks in client.processing().items() if tasks}
                os.kill(next(pid for a, pid in pids.items() if a in busy), signal.SIGKILL)

        assert run_all(jobs, client, tmp_path, step) == []
        assert run_all(jobs, client, tmp_path, step) == []  # nothing left to do
    assert sorted(seen) == [(seed, "") for seed in range(4)]
    for worker in workers:
        worker.poll()
    assert sum(w.returncode == -signal.SIGKILL for w in workers) == 1
    for job in jobs:
        assert store.load(job, tmp_path)["figures"] == run(job)["figures"]


def posenc(*arguments):
    command = [sys.executable, "-m", "posenc_ref.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_line_names_what_is_wrong_and_shows_what_is_there(tmp_path):
    for arguments, message in [
        (["train"], "command must be grade, progress, lab or config, got 'train'"),
        (["lab", "run", "--suite", "all"], "suite must be one of book, chapters, full, quick, got 'all'"),
        (
            ["lab", "run", "--experiment", "full-lengths"],
            "suite must hold the experiment full-lengths: chapters, full",
        ),
        (["lab", "show", "nix"], "experiment must be one of quick, full-lengths"),
        (["lab", "show", "quick", "--folder", tmp_path], "missing or of another recipe; make it with: posenc lab run"),
    ]:
        result = posenc(*arguments)
        assert result.returncode == 2 and message in result.stderr and "Traceback" not in result.stderr
    assert "grade exercise notebooks" in posenc("help").stdout
    jobs = store.suite("quick")
    for job in jobs:
        store.save({"job": job.as_dict(), "key": job.key, "figures": {"loss": 2.5, "positions": [1.0]}}, tmp_path)
    shown = posenc("lab", "show", "quick", "--folder", tmp_path).stdout
    assert re.search(r"nope, 1 seed.*loss +2.5 .*alibi, 1 seed", shown, re.S)
    assert "2 jobs, 2 of them done before." in posenc("lab", "run", "--folder", tmp_path).stdout


def test_reading_results_needs_no_torch():
    script = "import sys; from posenc_ref.lab.store import suite; suite('full'); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "False\n"
