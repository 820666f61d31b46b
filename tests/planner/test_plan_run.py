"""A run's own words before the planner: its sequences, whether it fits, days, and what to change first."""

import numpy as np
import pytest

from retool_mcore.cli import main
from retool_mcore.cli.plan import measured
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.metrics.records import write_step
from retool_mcore.planner import Batch, changes, run, verdict
from retool_mcore.planner.memory import GIB
from retool_mcore.planner.search import refusal

BAD = ["parallel.rollout_tp=4", "parallel.gpu_memory_utilization=0.6"]


def read(*words, batch=None):
    config = compose("rl", ["model=qwen2.5-32b", "parallel=2x8-80g", "data=math", *words])
    problem = run.read(config, run.shape_of(config), run.machine_of(config), batch)
    return config, problem, run.present(config, problem)


def test_the_sequences_are_what_the_configuration_makes():
    _, problem, plan = read()
    assert len(problem.batch.lengths) == 512 * 16 and problem.batch.longest == 2048 + 16384
    assert problem.updates == 8 and len(problem.update_batch.lengths) == 64 * 16
    assert sum(problem.batch.lengths) / 8192 == pytest.approx(18432 / 3, rel=0.001)
    assert (plan.layout.tp * plan.layout.pp * plan.layout.cp * plan.layout.dp) == 16
    _, less, quicker = read("data.rl.batch=32", "data.rl.mini_batch=32")
    assert len(less.batch.lengths) == 512 and quicker.step < plan.step / 8
    config = compose("sft", ["model=qwen2.5-32b", "parallel=2x8-80g", "data=math"])
    sft = run.read(config, run.shape_of(config), run.machine_of(config))
    assert len(sft.batch.lengths) == 32 and sft.batch.longest == 16384 and not sft.rl


def test_known_lengths_are_sampled_and_end_at_the_limit():
    _, problem, _ = read(batch=Batch((1000,) * 3 + (40000,)))
    assert len(problem.batch.lengths) == 8192 and set(problem.batch.lengths) == {1000, 18432}
    assert problem.batch.lengths.count(1000) == 6144


def test_what_is_slow_is_said_first_and_gains_what_is_told():
    _, problem, plan = read(*BAD)
    found = changes.changes(problem, plan)
    assert found[0].words == ["parallel.rollout_tp=8"] and len(found) >= 2
    for change in found:
        assert change.after.step * 1.02 < change.before.step and refusal(problem, change.after) is None
    _, _, done = read(*BAD, *[word for change in found for word in change.words])
    assert done.step == pytest.approx(found[-1].after.step, rel=1e-6)
    assert done.layout == found[-1].after.layout and done.rollout == found[-1].after.rollout


def test_what_does_not_fit_is_made_to_fit_first():
    _, problem, plan = read("parallel.micro_batch_tokens=65536")
    assert refusal(problem, plan).startswith("the update takes ")
    found = changes.changes(problem, plan)
    assert refusal(problem, found[0].after) is None
    _, problem, plan = read("parallel.megatron.param_offload=false", "parallel.gpu_memory_utilization=0.9")
    assert refusal(problem, plan).startswith("vLLM takes ")


def test_hours_between_saves_are_the_clocks_or_the_steps():
    config, problem, plan = read("train.save_minutes=null", "train.eval_every=-1")
    found = run.course(config, problem, plan)
    assert found.between == 30 * plan.step and found.validation == 0
    assert found.hours == pytest.approx((150 * plan.step + 5 * found.save) / 3600)
    config, problem, plan = read()
    clocked = run.course(config, problem, plan)
    assert clocked.between < 2 * plan.step + 3600 and clocked.hours > found.hours


def test_engines_of_their_own_generate_beside_the_training():
    _, problem, plan = read("pipeline=one_step_off", "train.eval_every=-1", "parallel.megatron.param_offload=false")
    assert problem.own_gpus == 8 and plan.there == 0
    assert plan.step == max(plan.seconds["generation"], sum(plan.seconds.values()) - plan.seconds["generation"])


def test_a_critic_is_trained_and_lies_there():
    _, _, alone = read("parallel.megatron.optimizer_offload=false")
    _, _, ppo = read("parallel.megatron.optimizer_offload=false", "recipe.advantage=gae", "recipe.kl_loss=true")
    assert ppo.seconds["critic"] > ppo.seconds["update"] and ppo.seconds["reference"] == ppo.seconds["log-probs"]
    assert ppo.gpu_bytes - alone.gpu_bytes > 20 * GIB


def test_the_gpu_that_is_here_is_judged_else_the_layouts():
    config = compose("rl", ["model=qwen2.5-32b", "parallel=2x8-80g", "data=math"])
    assert run.machine_of(config).name == "H100-80"
    assert run.machine_of(config, ["GPU 0: NVIDIA H200 (UUID: x)"]).name == "H200-141"
    config.parallel.gpu = "A100-80"
    assert run.machine_of(config).name == "A100-80"
    assert verdict.lines(compose("rl")) == [] and verdict.lines(compose("eval", ["parallel=2x8-80g"])) == []


def test_lengths_of_a_run_are_prompt_and_response(tmp_path):
    record = {"prompt_ids": np.zeros(5, np.int32), "response_ids": np.zeros(7, np.int32)}
    for step in range(1, 8):
        write_step(tmp_path / "rl/trajectories", step, [record | {"step": step}] * 2)
    assert measured(tmp_path).lengths == (12,) * 10  # the last five steps
    with pytest.raises(UserError, match="no trajectories"):
        measured(tmp_path / "other")


def test_the_command_prints_it_all(capsys):
    words = ["plan", "model=qwen2.5-7b", "parallel=2gpu", "data=math", "--mean-length", "2000"]
    assert main.main(words) == 0
    out = " ".join(capsys.readouterr().out.split())
    for part in ("8,192 sequences", "average 2,000 tokens", "an update's peak", "idle in generation", "GPU-hours"):
        assert part in out, out
    for part in ("A node's memory", "Disk: ", "A checkpoint every", "generation", "log-probs", "push"):
        assert part in out, out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "add model=NAME"),
        (["model=qwen2.5-7b"], "a layout such as"),
        (["model=qwen2.5-7b", "--gpus", "2x8"], "takes --model, --gpus"),
        (["--model", "qwen2.5-7b", "--gpus", "2", "--gpu-memory", "80", "--max-length", "9", "name=x"], "no KEY=VALUE"),
        (["model=qwen2.5-7b", "parallel=1gpu", "parallel.tp=3"], "28 attention heads"),
        (["model=qwen2.5-7b", "parallel=1gpu", "--lengths-of", "/nowhere"], "no trajectories"),
    ],
)
def test_what_it_cannot_judge_is_one_sentence(words, part, capsys):
    assert main.main(["plan", *words]) == 2
    assert part in capsys.readouterr().err


def test_a_validation_before_the_run_and_of_the_evaluation_set_takes_its_time():
    plain = run.course(*read())
    before = run.course(*read("train.eval_before=true"))
    assert before.validation == plain.validation > 0
    assert before.hours == pytest.approx(plain.hours + plain.validation / 3600)
    sets = ["train.eval_before=true", "train.eval_sets=[held_back,evaluation]"]
    config, problem, plan = read(*sets)
    assert run.validation_samples(config) == 128 * 16 + 60 * 30
    both = run.course(config, problem, plan)
    assert both.validation > 1.5 * plain.validation
    assert both.hours == pytest.approx(plain.hours + (16 * both.validation - 15 * plain.validation) / 3600)
    once = run.course(*read("train.eval_before=true", "train.eval_every=-1"))
    never = run.course(*read("train.eval_every=-1"))
    assert once.hours == pytest.approx(never.hours + once.validation / 3600)
