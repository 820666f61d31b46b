"""Values that do not fit each other are refused from the configuration alone: also where no GPU, model or data is."""

import json

import pytest

from retool_mcore.cli import main
from retool_mcore.config import compose
from retool_mcore.data.prepare import write_problems
from retool_mcore.data.records import Problem
from retool_mcore.errors import UserError
from retool_mcore.planner import parallel
from retool_mcore.preflight import relations
from retool_mcore.preflight.data import check_curriculum

REPLAY = "parallel.megatron.router_replay.mode"
REFUSED = [
    ("rl", ["recipe=dapo", "data.overlong_buffer=4096"], "recipe.overlong_buffer=4096 exceeds"),
    ("rl", ["recipe=simpletir", "recipe.policy_loss=vanilla"], "recipe.filters.samples needs recipe.policy_loss=reto"),
    ("rl", ["correction=bypass", "correction.rollout_is=token"], "correction=bypass needs the trainer's own"),
    ("rl", ["pipeline=partial", "train.eval_every=5"], "pipeline=partial does not validate inside the run"),
    ("rl", ["pipeline=partial", "train.eval_before=true"], "train.eval_before=true needs pipeline=sync: pipeline=p"),
    ("rl", ["pipeline.staleness=3"], "pipeline=sync: nothing runs ahead, so pipeline.staleness=3 has no effect"),
    ("rl", ["pipeline.mode=separate_async"], "pipeline=sync: pipeline.mode=separate_async does not go with pipeline"),
    ("rl", ["pipeline=async", "pipeline.hybrid=true"], "pipeline=async: pipeline.mode=separate_async does not go with"),
    ("rl", ["sandbox.timeout_s=600"], "sandbox.timeout_s=600 is as long as watchdog_minutes=10, after which a run"),
    ("rl", ["toolbox.timeout_s=900"], "toolbox.timeout_s=900 is as long as watchdog_minutes=10, after which a run"),
    ("eval", ["sandbox.timeout_s=600"], "sandbox.timeout_s=600 is as long as watchdog_minutes=10, after which a run"),
    ("rl", ["parallel.ray.num_gpus=1"], "parallel.ray.num_gpus=1 is less than parallel.gpus_per_node=2: the trainer's"),
    ("rl", [f"{REPLAY}=R4"], f"{REPLAY}=R4: expected disabled, R2 or R3."),
    ("rl", [f"{REPLAY}=R2", "correction=bypass"], f"{REPLAY}=R2 records routes in the trainer's pass for log-probab"),
    ("rl", [f"{REPLAY}=R3"], f"{REPLAY}=R3 replays the routes of the rollout engine: set verl.actor_rollout_ref."),
    ("rl", ["parallel=2x8-80g", "model.path=x", "data.rl.batch=3", "data.rl.mini_batch=3", "parallel.tp=1",
            "parallel.pp=1"], "train.batch=3 prompts x train.n=8 = 24 trajectories, which is not a multiple of the 16"),
    ("sft", ["parallel=2x8-80g", "model.path=x", "train.batch=5", "parallel.tp=2", "parallel.pp=1"],
     "train.batch=5 sequences is not a multiple of the 8 data-parallel ranks."),
    ("rl", ["verl.data.train_batch_size=7"], "verl.data.train_batch_size=7 follows train.batch=16, by which it is"),
    ("rl", ["verl.actor_rollout_ref.rollout.n=3"], "verl.actor_rollout_ref.rollout.n=3 follows train.n=8, by which"),
    ("rl", ["verl.trainer.val_before_train=true"], "verl.trainer.val_before_train=True follows train.eval_before=Fa"),
    ("sft", ["verl.data.max_length=100"], "verl.data.max_length=100 follows train.max_length=384, by which it is"),
    ("rl", ["train.save_every=10", "train.eval_every=4"], "train.save_every=10 is no multiple of train.eval_every=4"),
    ("rl", ["parallel.tp=3"], "parallel.tp=3 x parallel.pp=1 = 3 does not divide the 2 devices"),
    ("rl", ["parallel.micro_batch_tokens=100"], "parallel.micro_batch_tokens=100 is less than one longest sequence of"),
    ("sft", ["train.max_length=100000"], "parallel.micro_batch_tokens=8192 is less than one longest sequence of"),
    ("eval", ["rollout.max_response_tokens=9000"], "parallel.rollout.max_num_batched_tokens=8192 is less than one"),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "overrides", "sentence"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused(stage, overrides, sentence):
    with pytest.raises(UserError) as caught:
        relations.check(stage, compose(stage, overrides))
    assert str(caught.value).startswith(sentence), str(caught.value)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("stage", ["prepare", "sft", "rl", "eval", "export"])
def test_the_embedded_task_fits(stage):
    relations.check(stage, compose(stage))


def test_the_flagship_fits():
    relations.check("rl", compose("rl", ["model=qwen2.5-32b", "parallel=2x8-80g", "data=math", "recipe=dapo"]))


def test_a_dry_run_a_plan_and_a_submission_refuse_them(tmp_path, capsys):
    words = ["model=qwen2.5-32b", "parallel=2x8-80g", "data=math", "recipe=dapo", "data.overlong_buffer=20000"]
    words += [f"runs_dir={tmp_path}"]
    for command in (["rl", *words, "--dry-run"], ["plan", *words], ["submit", "rl", *words, "--dry-run"]):
        assert main.main(command) == 2
        said = capsys.readouterr()
        assert "recipe.overlong_buffer=20000 exceeds" in said.out + said.err, command


def test_a_curriculum_keeps_enough_for_a_batch(tmp_path):
    problems = [Problem("s", f"What is {n}?", "1", n) for n in range(9)]
    write_problems(problems, tmp_path / "a.parquet", template="tiny", split="train")
    rates = [{"index": n, "ground_truth": "1", "acc": float(n > 6 or half)} for n in range(9) for half in (0, 1)]
    (tmp_path / "rates.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in rates))
    section = {"pass_rates": str(tmp_path / "rates.jsonl"), "keep": [0.9, 1.0]}
    check_curriculum(section, [tmp_path / "a.parquet"], 1, batch=2)
    with pytest.raises(UserError, match=r"^data.curriculum leaves 2 problems to draw from, fewer than train.batch=4: "):
        check_curriculum(section, [tmp_path / "a.parquet"], 1, batch=4)
    with pytest.raises(UserError, match=r"^data.curriculum.pass_rates=.*: expected the trajectories.jsonl of"):
        check_curriculum(section | {"pass_rates": str(tmp_path / "none")}, [tmp_path / "a.parquet"], 1, batch=2)


def test_a_weight_push_holds_the_largest_tensor():
    parallel.check_weight_bucket(16, largest_bytes=16 * 2**20)
    with pytest.raises(UserError, match=r"weight_bucket_mb=16 is less than the 109 MB .*: set it to 109 or more\.$"):
        parallel.check_weight_bucket(16, largest_bytes=49152 * 576 * 4 + 2**20)
