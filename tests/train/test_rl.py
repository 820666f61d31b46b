"""The loop of RL, its engines played: what a step does and in which order, what ends it, what a resumed run does."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from retool_mcore.data import prompt_stream
from retool_mcore.data.curriculum import Curriculum
from retool_mcore.data.prompt_stream import Prompts
from retool_mcore.errors import UserError
from retool_mcore.metrics.audit import MaskAuditError
from retool_mcore.metrics.records import read_step
from retool_mcore.recipes.mini_batches import Cut
from retool_mcore.rollout.samples import Sample
from retool_mcore.state import alarms, checkpoints, stop
from retool_mcore.train import replay_step, rl
from retool_mcore.train.run import Run
from retool_mcore.train.settings import Settings
from retool_mcore.train.validation import Validation

RECIPE = {
    "advantage": "grpo",
    "normalise_by_std": True,
    "gamma": 1.0,
    "lambda": 1.0,
    "critic": {"warmup_steps": 0},
    "policy_loss": "vanilla",
    "loss_aggregation": "token-mean",
    "loss_scale": None,
    "observation_weight": 0.0,
    "group_reward": {"name": None, "args": {}},
    "filters": {"all_equal": False, "accuracy": None, "samples": [], "refill_limit": 10},
}
NO_CORRECTION = {"rollout_is": None, "rollout_is_threshold": 2.0, "rollout_rs": None, "rollout_rs_threshold": None}


class Engines:
    """All that the loop asks of its engines, on made-up trajectories: policy, call, observation, answer."""

    dp, n_gpus, tokenizer = 1, 1, None

    def __init__(self, *, critic=False, reference=False):
        self.has_critic, self.has_reference, self.rollouts = critic, reference, self
        self.calls, self.flying, self.version, self.failing = [], [], 0, None

    def __getattr__(self, name):  # a pass over a batch, of which the test sees the order
        passes = {"log_probs": ("old_log_probs", "entropy"), "reference_log_probs": ("ref_log_prob",)}
        passes |= {"values": ("values",), "update": (), "update_critic": (), "pause": (), "end_rollouts": ()}
        if name not in passes:
            raise AttributeError(name)

        def call(batch=None, *_):
            self.calls.append(name)
            if name == self.failing:
                raise MaskAuditError("an interpreter token receives a gradient", "1", 4, "in the loss")
            for column in passes[name]:
                batch[column] = torch.full((int(batch.lengths.sum()),), -1.0)
            if batch is not None:
                self.batch = batch
            return {f"{name}/calls": 1.0, "actor/grad_norm": 0.5} if name.startswith("update") else None

        return call

    def push(self, step, verify):
        self.calls.append(f"push {step}")
        self.version = step
        return {"push/verified": float(verify)}

    def save(self, checkpoint, step):
        self.calls.append(f"save {step}")
        (checkpoint / "actor" / "model" / "huggingface").mkdir(parents=True)

    def gpu_samples(self):
        return []

    def ask(self, group, *, n, sampling, keep):
        group.samples = [self.sample(group, number) for number in range(n)]
        self.flying.append(group)

    def ended(self, wait_s):
        ended = [] if wait_s == 0 else self.flying[:1]
        self.flying = self.flying[len(ended) :]
        return ended

    def sample(self, group, number):
        acc = float(number % 2)
        spans = [("policy", 0, 2), ("observation", 2, 4 + number), ("policy", 4 + number, 6 + number)]
        spans = [dict(zip(("kind", "start", "end"), span, strict=True)) for span in spans]
        mask = np.ones(6 + number)
        mask[2 : 4 + number] = 0
        call = {"turn": 0, "start": 1, "status": "success", "malformed": False, "truncated": False, "tool": "code"}
        call |= {"code": "1", "stdout": "1", "stderr": "", "value": None, "duration_s": 0.1, "arguments": None}
        turn = {"programs": 1, "boxed": True, "fakes": [], "generate_s": 0.1, "tool_s": 0.1}
        version = {"version": self.version, "start": 0, "end": 6 + number}
        notes = {"spans": spans, "calls": [call], "turns": 2, "finish": "answer", "generate_s": 0.2, "tool_s": 0.1}
        notes |= {"started": 1.0, "turn_notes": [turn, turn], "versions": [version], "taken_over": False}
        outcome = {"score": acc, "acc": acc, "pred": "4", "overlong": 0.0, "drop": "", "graded_by": "text"}
        return Sample(
            group.uid, number, [1, 2], np.arange(6 + number), mask, -mask, notes, "answer", 4,
            (self.version, self.version), outcome=outcome,
        )  # fmt: skip


class Log:
    def __init__(self):
        self.logger, self.steps = {}, {}

    def log(self, data, step):
        self.steps[step] = data


def settings(**values):
    base = {"batch": 2, "mini_batch": 1, "n": 2, "steps": 3, "seed": 1, "recipe": RECIPE, "correction": NO_CORRECTION}
    return Settings(**(base | {"save_every": 1} | values))


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Trains in tmp_path by (settings, engines); returns (run, its log). A second call is another attempt."""
    rows = [
        {"data_source": "made", "prompt": [], "reward_model": {"ground_truth": "4"}, "extra_info": {"index": n}}
        for n in range(5)
    ]
    monkeypatch.setattr(prompt_stream, "rows_of", lambda files: rows)
    retool = OmegaConf.create(
        {"stage_dir": str(tmp_path), "trajectories": str(tmp_path / "trajectories"), "keep_trajectory_bytes": None,
         "texts": {"every": None, "count": 0}, "rotation": {"keep_last": 9}, "save_minutes": None}
    )  # fmt: skip

    def train(cfg, engines, alarm_settings=alarms.IGNORED):
        last = checkpoints.repair(tmp_path / "checkpoints")
        start = checkpoints.step_of(last) if last else 0
        prompts = Prompts("rows", 1, Curriculum())
        asked = prompts.load(last) if last else []
        retool.alarms = alarm_settings
        run, log = None, Log()
        run = Run(cfg, retool, log, start, identity=None)
        problems = None
        if cfg.validate_every > 0 or cfg.validate_first:
            problems = Validation(Prompts("rows", 1, Curriculum()), Prompts("rows", 1, Curriculum()))
        try:
            rl.train(cfg, engines, run, prompts, asked, problems)
        finally:
            run.close()
        return run, log

    (tmp_path / "checkpoints").mkdir()
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


def test_log_probabilities_of_the_engine_stand_in_where_the_trainers_pass_is_left_out(started):
    engines = Engines()
    _, log = started(settings(steps=2, log_probs_every=2), engines)
    assert engines.calls.count("log_probs") == 1
    assert "mismatch/kl" in log.steps[1] and "mismatch/kl" not in log.steps[2]


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
        columns = {
            name: batch[name].clone() for name in ("response_mask", "rollout_log_probs", "advantages", "span_kind")
        }
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
    retool = OmegaConf.create(
        {"stage_dir": str(tmp_path / "replay"), "trajectories": str(tmp_path / "replay"), "keep_trajectory_bytes": None,
         "texts": {"every": None, "count": 0}, "rotation": {"keep_last": 9}, "save_minutes": None,
         "alarms": alarms.IGNORED}
    )  # fmt: skip
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
