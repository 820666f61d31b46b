"""The loop of RL, its engines played: what a step does and in which order, what ends it, what a resumed run does."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from played_loop import RECIPE, Engines, Log, attempt, retool_section, settings
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from retool_mcore.errors import UserError
from retool_mcore.metrics.audit import POLICY, PREDICTED, MaskAuditError
from retool_mcore.metrics.records import read_step
from retool_mcore.recipes.mini_batches import Cut
from retool_mcore.state import alarms, heartbeat, stop
from retool_mcore.train import replay_step, rl
from retool_mcore.train.run import Run


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Trains in tmp_path by (settings, engines); returns (run, its log). A second call is another attempt."""

    def train(cfg, engines, alarm_settings=alarms.IGNORED, **more):
        return attempt(tmp_path, monkeypatch, cfg, engines, alarms=alarm_settings, **more)

    return train


def test_a_step_generates_trains_saves_and_pushes_in_this_order(started, tmp_path):
    engines = Engines(critic=True, reference=True)
    _, log = started(settings(steps=1), engines)
    passes = ["log_probs", "reference_log_probs", "values", "update_critic", "update"]
    assert engines.calls == ["push 0", "pause", *passes, "save 1", "push 1"]
    assert log.steps[1]["reward/accuracy"] == 0.5 and log.steps[1]["update/calls"] == 1
    assert (tmp_path / "checkpoints" / "global_step_1" / "COMPLETE").exists()
    records = read_step(tmp_path / "trajectories" / "step_000001.parquet")
    assert len(records) == 4 and {record["mini_batch"] for record in records} == {0, 1}


def test_a_step_is_shown_with_texts_histograms_throughput_and_a_trace(started, tmp_path):
    engines, log, drawn = Engines(), Log(), []
    engines.tokenizer = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))
    board = SimpleNamespace(
        add_histogram=lambda tag, values, step: drawn.append((tag, len(values), step)), log_dir=tmp_path / "board"
    )
    log.logger = {"tensorboard": SimpleNamespace(writer=board)}
    started(settings(steps=1), engines, log=log, texts={"every": 1, "count": 3})
    shown = EventAccumulator(str(tmp_path / "board/text")).Reload()
    assert shown.Tags()["tensors"] == [f"trajectory/{number}/text_summary" for number in range(3)]
    text = shown.Tensors("trajectory/0/text_summary")[0]
    assert text.step == 1 and b"1 2" in text.tensor_proto.string_val[0]
    assert ("behaviour/made/response_length", 4, 1) in drawn
    assert log.steps[1]["behaviour/code_ratio"] == 1.0 and log.steps[1]["perf/tokens_per_second"] > 0
    assert {"timing_share/audit", "timing_share/generation", "timing_s/tools"} <= log.steps[1].keys()
    assert json.loads((tmp_path / "trace/step_000001.json").read_text())["otherData"]["trajectories"] == 4


def test_the_update_reads_advantages_on_the_policys_tokens_alone(started):
    engines = Engines()
    started(settings(steps=1), engines)
    batch = engines.batch
    kinds, mask = batch["span_kind"], batch["response_mask"]
    assert torch.equal(kinds, mask) and (batch["advantages"][mask == 0] == 0).all()
    assert batch["advantages"][mask == 1].abs().min() > 0.7, "a group of one right and one wrong"


def test_a_mask_that_leaks_stops_the_run_before_the_update_with_the_trajectory_on_disk(started, tmp_path, monkeypatch):
    engines = Engines()
    whole = engines.sample

    def leaking(group, number):
        made = whole(group, number)
        made.response_mask[2] = 1
        return made

    monkeypatch.setattr(engines, "sample", leaking)
    with pytest.raises(MaskAuditError, match="an interpreter token has weight in the loss.* response token 2"):
        started(settings(), engines)
    assert "update" not in engines.calls and list((tmp_path / "audit").glob("*.parquet"))


def test_what_is_not_finite_is_named_with_its_trajectory_on_the_disk(started, tmp_path, monkeypatch, capsys):
    engines = Engines()
    whole = engines.sample

    def broken(group, number):
        made = whole(group, number)
        made.outcome["score"] = float("nan") if number == 1 and group.uid.endswith("1") else made.outcome["score"]
        return made

    monkeypatch.setattr(engines, "sample", broken)
    _, log = started(settings(steps=1), engines)
    path = tmp_path / "audit/step_000001.parquet"
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("advantages of"))
    assert "advantages of 2 of 4 trajectories are not finite (NaN or infinite), first in trajectory 000001-" in said
    assert f" of step 1 (in {path}; `retool view {tmp_path.parent} --audit` shows it at #/t/1/0)" in said
    assert said.endswith("1 rewards of the batch are not finite, the first is nan: look at the reward.")
    assert log.steps[1]["audit/not_finite_tokens"] > 0 and len(read_step(path)) == 1


def test_a_workers_audit_names_the_trajectory_by_its_place(started, tmp_path):
    engines = Engines()
    engines.failing = "update"
    with pytest.raises(MaskAuditError, match=r"in the loss: .*000001-00000\d_\d of step 1 .*response token 4"):
        started(settings(), engines)
    (record,) = read_step(next((tmp_path / "audit").glob("*.parquet")))
    assert record["place"] == 1


def test_a_step_in_parts_puts_its_own_groups_into_each(started):
    engines = Engines()
    _, log = started(settings(steps=2, updates=2, staleness=1), engines)
    assert engines.calls.count("update") == 4 and engines.calls.count("push 1") == 1
    assert log.steps[1]["filters/samples/kept"] == 4, "counts are the step's"


def test_rollouts_ahead_are_never_older_than_their_bound(started):
    _, log = started(settings(steps=5, staleness=1, save_every=-1), Engines())
    oldest = [log.steps[step]["training/off_policy/trajectory_staleness_worst/max"] for step in range(1, 6)]
    assert max(oldest) <= 1


def test_a_resumed_run_goes_on_behind_its_checkpoint_and_takes_what_was_asked_for(started, tmp_path):
    cfg = settings(steps=2, staleness=1)
    started(cfg, Engines())
    state = json.loads((tmp_path / "checkpoints" / "global_step_2" / "prompts.json").read_text())
    asked = [uid for uid, *_ in state["asked"]]
    assert len(asked) == 2
    engines = Engines()
    started(settings(steps=3, staleness=1), engines)
    assert engines.calls[0] == "push 2" and engines.calls.count("update") == 1
    taken = {record["uid"] for record in read_step(tmp_path / "trajectories" / "step_000003.parquet")}
    assert taken == set(asked)


def test_no_trajectory_is_trained_on_twice_over_a_resume(started, tmp_path):
    for steps in (2, 5):
        started(settings(steps=steps, staleness=1), Engines())
    files = sorted((tmp_path / "trajectories").glob("*.parquet"))
    names = [(record["uid"], record["sample"]) for path in files for record in read_step(path)]
    assert len(names) == len(set(names)) == 5 * 4


def test_a_request_to_stop_ends_the_run_behind_a_saved_step(started, tmp_path):
    engines = Engines()
    push = engines.push

    def asked(step, verify):
        if step == 1:
            stop.request(tmp_path)
        return push(step, verify)

    engines.push = asked
    with pytest.raises(stop.StopRequested):
        started(settings(save_every=2, steps=6), engines)
    assert [call for call in engines.calls if call.startswith("save")] == ["save 2"]


@pytest.mark.parametrize(("save_every", "saved"), [(9, ["end_rollouts", "save 2"]), (1, []), (-1, [])])
def test_a_users_error_in_a_step_leaves_what_the_steps_before_have_trained(started, tmp_path, save_every, saved):
    def broken(whole):
        engines = Engines()
        ended = engines.ended

        def end(wait_s):
            if wait_s is None and engines.calls[-1] == "push 2" and not whole:
                raise UserError("loosen recipe.filters")
            return ended(wait_s)

        engines.ended = end
        return engines

    engines = broken(False)
    with pytest.raises(UserError, match="loosen"):
        started(settings(save_every=save_every, steps=4), engines)
    assert engines.calls[engines.calls.index("push 2") + 1 :] == saved
    if saved:
        state = json.loads((tmp_path / "checkpoints" / "global_step_2" / "prompts.json").read_text())
        assert state["epoch"] * 5 + state["position"] == 4 and state["asked"] == [], "as at the end of step 2"
        engines = broken(True)
        _, log = started(settings(save_every=save_every, steps=4), engines)
        assert engines.calls[0] == "push 2" and sorted(log.steps) == [3, 4]


def alarm(name, answer, **values):
    return alarms.IGNORED | {name: {"answer": answer, "then": answer, "in_a_row": 1, **values}, "backs": 3}


def test_an_alarm_whose_answer_is_back_saves_nothing_and_says_which_prompts_led_there(started, tmp_path):
    engines = Engines()
    with pytest.raises(alarms.Ended):
        started(settings(), engines, alarm("mismatch", "back", bound=-1.0))
    assert "save 1" not in engines.calls and "push 1" not in engines.calls
    (entry,) = alarms.backs(tmp_path)
    assert entry["step"] == 1 and entry["from"] == 0 and entry["skip"] == 2
    assert (tmp_path / "trajectories" / "step_000001.parquet").exists()


def test_an_alarm_whose_answer_is_skip_leaves_the_update_out(started):
    engines = Engines()
    _, log = started(settings(steps=1), engines, alarm("mismatch", "skip", bound=-1.0))
    assert "update" not in engines.calls and log.steps[1]["actor/skipped_updates"] == 2
    assert "push 1" in engines.calls


def test_while_the_critic_warms_up_the_policy_is_not_updated(started):
    engines = Engines(critic=True)
    recipe = RECIPE | {"advantage": "gae", "critic": {"warmup_steps": 2}}
    started(settings(steps=2, recipe=recipe), engines)
    assert engines.calls.count("update_critic") == 2 and engines.calls.count("update") == 1


@pytest.mark.parametrize("updates", [1, 2])
def test_bypass_has_one_objective_in_every_step(started, tmp_path, updates):
    """The trainer's own pass of every second step is for the metrics: the loss reads the rollout engine's in all."""

    class Off(Passes):
        def log_probs(self, batch, *_):
            self.calls.append("log_probs")
            batch["entropy"] = torch.zeros(int(batch.lengths.sum()))
            batch["old_log_probs"] = batch["rollout_log_probs"] - 0.125

    engines = Off()
    _, log = started(settings(steps=2, log_probs_every=2, updates=updates, staleness=updates - 1), engines)
    assert engines.calls.count("log_probs") == updates and len(engines.read) == 2 * updates
    for *_, columns in engines.read:
        assert torch.equal(columns["old_log_probs"], columns["rollout_log_probs"]) and "is_weights" not in columns
    names = ("mismatch/mean", "actor/entropy", "rollout_corr/kl")
    assert [[name in log.steps[step] for name in names] for step in (1, 2)] == [[True] * 3, [False] * 3]
    assert log.steps[1]["mismatch/mean"] == pytest.approx(0.125)
    assert log.steps[1]["rollout_corr/kl"] == pytest.approx(0.125, abs=1e-4)
    for step in (1, 2):
        for record in read_step(tmp_path / f"trajectories/step_{step:06d}.parquet"):
            assert record["old_log_probs"].tolist() == pytest.approx(record["logprobs"].tolist())


def test_a_recipe_that_predicts_observations_says_so_to_the_workers(started):
    engines = Engines()
    recipe = RECIPE | {"observation_weight": 0.1, "policy_loss": "retool"}
    started(settings(steps=1, recipe=recipe), engines)
    assert engines.batch["span_kind"].unique().tolist() == sorted({POLICY, PREDICTED})
    assert (engines.batch["advantages"][engines.batch["response_mask"] == 0] == 0.1 * torch.ones(1)).all()


def test_every_phase_of_a_step_beats_before_it_begins(started, tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    monkeypatch.setattr(heartbeat, "_writers", {})
    monkeypatch.setenv(heartbeat.VARIABLE, str(heartbeat.prepare(tmp_path)))
    phases = {"log_probs": "log-probabilities", "reference_log_probs": "reference log-probabilities"}
    phases |= {"values": "values", "update_critic": "critic update", "update": heartbeat.UPDATE}
    phases |= {"push": heartbeat.PUSH, "save": heartbeat.SAVE, "ended": heartbeat.GENERATION}
    seen = set()

    class Told(Engines):
        def __getattribute__(self, name):
            if name in phases:
                seen.add((name, heartbeat.read(tmp_path)[heartbeat.TRAINER]["phase"]))
            return super().__getattribute__(name)

    started(settings(steps=1), Told(critic=True, reference=True))
    assert seen == set(phases.items())


def test_finished_trajectories_are_kept_by_policy_or_where_rollouts_run_ahead_by_settings(started, tmp_path):
    def chain(step):
        return SimpleNamespace(policy="policy", settings="settings", link="link", advance=len)

    for steps, staleness, name in ((1, 0, "policy"), (2, 1, "settings")):
        run, _ = started(settings(steps=steps, staleness=staleness), Engines(), identity=chain)
        assert run.options(7)["keep"] == str(tmp_path / f"unfinished/step_000007-{name}")
    run, _ = started(settings(steps=3, save_every=-1), Engines())
    assert run.options(7)["keep"] is None, "without checkpoints nothing is kept"


def test_validation_shares_its_seeds_and_is_measured_on_the_pushed_policy(started, tmp_path, monkeypatch):
    engines, asked = Engines(), []
    ask = engines.ask
    monkeypatch.setattr(
        engines, "ask", lambda group, **options: (asked.append((group.uid, group.step)), ask(group, **options))
    )
    _, log = started(settings(steps=1, validate_every=1, validation_n=2), engines)
    assert [step for uid, step in asked if uid.startswith("val")] == [0] * 5
    assert log.steps[1]["val/accuracy"] == 0.5 and log.steps[1]["val/failed"] == 0
    assert json.loads((tmp_path / "validation.jsonl").read_text())["problems"] == [0.5] * 5


def test_the_evaluation_set_is_sampled_as_it_says_and_also_before_the_first_step(started, tmp_path, monkeypatch):
    engines, asked = Engines(), []
    ask = engines.ask
    monkeypatch.setattr(
        engines, "ask", lambda group, **options: (asked.append((group, options)), ask(group, **options))
    )
    own = {"samples": 4, "sampling": {"temperature": 0.6}}
    usual = {"temperature": 1.0, "top_p": 1.0}
    cfg = settings(steps=1, validate_first=True, validation_n=2, validation_sampling=usual, evaluation=own)
    _, log = started(cfg, engines)
    found = {options["n"]: options["sampling"] for group, options in asked if group.uid.startswith("val-evaluation")}
    assert found == {4: {"temperature": 0.6, "top_p": 1.0}}
    assert log.steps[0]["val/accuracy"] == log.steps[0]["val/evaluation/accuracy"] == 0.5
    assert log.steps[0]["val/evaluation/best@4"] == 1.0 and log.steps[0]["val/evaluation/failed"] == 0
    assert sorted(log.steps) == [0, 1] and "val/accuracy" not in log.steps[1]
    started(settings(steps=2, validate_first=True), Engines())
    assert len((tmp_path / "validation.jsonl").read_text().splitlines()) == 1, "a resumed run has been validated"


def test_a_group_reward_that_is_no_finite_number_is_not_trained_on(started, monkeypatch):
    engines = Engines()
    monkeypatch.setattr(rl, "find_reward", lambda name: lambda accs, calls, fewest: [float("nan")] * len(accs))
    with pytest.raises(ValueError, match="the group reward own returned nan"):
        started(settings(recipe=RECIPE | {"group_reward": {"name": "own", "args": {}}}), engines)
    assert "update" not in engines.calls


def test_a_run_that_no_longer_improves_ends(started):
    run, log = started(settings(steps=9, validate_every=1, validation_n=2, stop_after_worse=2), Engines())
    assert sorted(log.steps) == [1, 2, 3] and run.total == 3


def test_the_file_imports_no_engines():
    nodes = list(ast.walk(ast.parse(Path(rl.__file__).read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.split(".")[0] in ("verl", "megatron", "vllm", "ray")}


class Passes(Engines):
    """Engines that keep a copy of what the update reads of each batch."""

    def __init__(self, **options):
        super().__init__(**options)
        self.read = []

    def update(self, batch):
        names = ("response_mask", "rollout_log_probs", "old_log_probs", "advantages", "span_kind", "is_weights")
        columns = {name: batch[name].clone() for name in names if name in batch}
        self.read.append((batch.groups, [sample.response_ids.tolist() for sample in batch.samples], columns))
        return {"actor/grad_norm": 0.5}

    def log_probs(self, batch, *_):
        for column in ("old_log_probs", "entropy"):
            batch[column] = torch.full((int(batch.lengths.sum()),), -1.0)


CLOCKED = (
    "timing",
    "batch/order_correlation",
    "perf/",
    "stages/",
    "behaviour/tool_time_share",
    "behaviour/tool_queued",
    "checkpoint/",
    "curriculum/",
)


@pytest.mark.parametrize("updates", [1, 2])
def test_a_recorded_step_is_made_again_from_its_records(started, tmp_path, updates):
    """Also where a filter has left samples out, and where a step has several updates."""
    filters = RECIPE["filters"] | {"samples": ["void"]}
    cfg = settings(steps=2, updates=updates, staleness=updates - 1, recipe=RECIPE | {"filters": filters})
    engines, whole = Passes(), Engines.sample

    def sample(group, number):
        made = whole(engines, group, number)
        made.outcome["drop"] = "void" if number == 1 and group.row["index"] == 3 else ""
        return made

    engines.sample = sample
    _, log = started(cfg, engines)
    records = read_step(tmp_path / "trajectories" / "step_000002.parquet")
    (tmp_path / "replay").mkdir()
    retool = retool_section(tmp_path / "replay", trajectories=str(tmp_path / "replay"))
    again, replayed = Passes(), Log()
    run = Run(cfg, retool, replayed, 1, identity=None)
    replay_step.replay(cfg, again, run, list(reversed(records)))
    run.close()
    assert [read[:2] for read in again.read] == [read[:2] for read in engines.read[updates:]]
    for (*_, old), (*_, new) in zip(engines.read[updates:], again.read, strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)
    figures = [{k: v for k, v in one.steps[2].items() if not k.startswith(CLOCKED)} for one in (log, replayed)]
    assert figures[1].keys() <= figures[0].keys() and {k: figures[0][k] for k in figures[1]} == figures[1]
    assert {"reward/accuracy", "actor/grad_norm", "mismatch/kl", "filters/samples/kept"} <= figures[1].keys()


def test_records_without_places_stay_in_their_order():
    record = {"uid": "a", "sample": 0, "index": 1, "data_source": "made", "ground_truth": "4", "step": 3, "score": 1.0}
    record |= {"spans": [{"kind": "policy", "start": 0, "end": 1}, {"kind": "observation", "start": 1, "end": 2}]}
    record |= {
        name: np.array(ids) for name, ids in (("prompt_ids", [1]), ("response_ids", [2, 3]), ("logprobs", [-1, 0]))
    }
    record |= {"finish": "answer", "acc": 1.0, "response_mask": np.zeros(2)}
    (batch,) = replay_step.in_recorded_order([record | {"sample": n} for n in (1, 0)], Cut(2, 2, ranks=1))
    assert [sample.number for sample in batch.samples] == [1, 0]
    assert batch["response_mask"].tolist() == [1, 0, 1, 0], "by the spans, not by what a filter left"
    assert batch.samples[0].versions == (2, 2)
