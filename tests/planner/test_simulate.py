"""Simulated steps: nothing is lost, the parts are the whole, bounds are kept, and the planner agrees."""

import itertools
import json
import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from retool_mcore.cli import main
from retool_mcore.cli.simulate import turns_of
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.planner import Batch, run, scale
from retool_mcore.planner.rollout import generation_seconds
from retool_mcore.planner.serving import Trajectory
from retool_mcore.planner.simulate import Order, Simulation

WORDS = ["model=qwen2.5-32b", "parallel=2x8-80g", "data=math", "train.eval_every=-1", "train.n=4", "recipe.batch=32"]
OFF = ["pipeline=one_step_off", "pipeline.rollout_gpus=8"]
ASYNC = ["pipeline=async", "pipeline.rollout_nodes=2", "pipeline.rollout_gpus=8", "pipeline.transport=host"]


def made(*words, batch=None, cache=None, **order):
    config = compose("rl", [*WORDS, "train.mini_batch=8", *words])
    problem = run.read(config, run.shape_of(config), run.machine_of(config), batch)
    plan = run.present(config, problem)
    if cache:
        plan = replace(plan, rollout=replace(plan.rollout, cache_tokens=cache))
    return config, problem, plan, replace(scale.order_of(config, problem, plan), **order)


def simulation(*words, tools=(3.0, 1.0), seed=1, **changes):
    """And all that it was given, which grows as it takes more."""
    config, problem, plan, order = made(*words, **changes)
    given: list[list[Trajectory]] = []

    def noted():
        for group in scale.drawn(config, problem, seed, *tools):
            given.append(group)
            yield group

    return Simulation(
        problem, plan, order, max(1, (problem.own_gpus or problem.world) // plan.rollout.tp), noted()
    ), given


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ([], {}),
        ([], {"cache": 150_000, "live": 128}),  # evicts and preempts
        ([], {"ahead": 0.5}),  # partial
        ([], {"sticky": 3}),
        (OFF, {}),
        (ASYNC, {}),
    ],
)
def test_every_trajectory_ends_once_with_all_its_tokens(words, changes):
    played, given = simulation(*words, **changes)
    steps = [played.step() for _ in range(4)]
    ended = [trajectory for group in played.groups for trajectory in group]
    assert len(ended) == len(set(ended)) and set(ended) <= set(itertools.chain(*given))
    assert sum(len(step.staleness) for step in steps) == 4 * 128  # each consumed in one step
    assert all(trajectory.known == pytest.approx(trajectory.tokens, rel=1e-6) for trajectory in ended)
    spent = {name: sum(step.spent[name] for step in steps) for name in steps[0].spent}
    if not played.order.ahead:
        sampled = sum(sampled for trajectory in ended for _, sampled in trajectory.turns)
        assert len(ended) == 4 * 128 and spent["sampled"] == pytest.approx(sampled, rel=1e-6)
    if not changes and not words:  # there is room for all: only what fills no block of 16 is computed again
        assert 0 < spent["missed"] < 0.03 * spent["sent"]
    if "cache" in changes:
        assert spent["preempted"] > 0 and spent["missed"] > 0.2 * spent["sent"]
    for engine in played.engines:
        assert engine.load == len(engine.waiting) + len(engine.running)
        assert engine.context + engine.kept_tokens <= engine.capacity * (1 + 1e-6)


def test_a_step_in_turns_is_the_sum_of_its_parts_and_fresh():
    played, _ = simulation()
    step = played.step()
    assert step.seconds == pytest.approx(played.clock.now)
    assert step.seconds == pytest.approx(step.waited + played.order.train_s + played.order.push_s)
    assert set(step.staleness) == {0} and len(step.staleness) == 128


@pytest.mark.parametrize(("words", "bound"), [(OFF, 1), (ASYNC, 2)])
def test_no_token_is_older_than_the_bound(words, bound):
    """By one more where groups of later prompts went first, as verl's rule (max_off_policy_strategy: wait) allows."""
    played, _ = simulation(*words, train_s=1.0, push_s=1.0)
    for _ in range(8):
        ages = played.step().staleness
        assert max(ages) <= bound + (bound > 1)
        assert all(not count for step, count in played.unfinished.items() if step < played.version - bound)
    assert max(ages) >= bound


def test_what_runs_beside_the_training_is_not_waited_for():
    apart, _ = simulation(*ASYNC, train_s=10_000.0)
    assert [apart.step() for _ in range(4)][-1].waited == 0


def test_without_tools_and_with_room_generation_takes_what_the_planner_says():
    """Within 2 %: the planner deals the sequences by length, the router as they come."""
    config, problem, plan, order = made(batch=Batch.spread(128, 18432, 6144), cache=10**8, slots=10**6)
    groups = (
        [Trajectory([(1, length - 1)], []) for length in problem.batch.lengths[first : first + 4]]
        for first in range(0, 128, 4)
    )
    step = Simulation(problem, plan, order, 2, groups).step()
    planned = generation_seconds(problem.shape, plan.rollout, problem.batch, problem.machine, world=problem.world)
    assert step.waited == pytest.approx(planned, rel=0.02) and step.spent["missed"] == 0


def test_more_slots_are_never_slower_and_few_make_it_wait():
    tools = (4.0, 20.0)
    took = [simulation(tools=tools, slots=slots)[0].step() for slots in (1, 4, 16, 10**6)]
    assert all(less.waited >= more.waited for less, more in itertools.pairwise(took))
    assert took[0].waited > 2 * took[-1].waited and took[0].spent["tools"] > took[-1].spent["tools"]


def test_slower_tools_and_smaller_caches_take_longer():
    base = simulation(tools=(4, 0))[0].step()
    assert simulation(tools=(4, 60))[0].step().waited > base.waited + 60
    assert simulation(tools=(4, 0), cache=150_000, live=128)[0].step().waited > base.waited


def test_the_same_seed_gives_the_same_step_and_another_another():
    first, again, other = (simulation(seed=seed)[0].step() for seed in (1, 1, 2))
    assert first == again and first.waited != other.waited


def test_failures_leave_less_the_more_gpus_there_are():
    few, many = (scale.ettr(200, 60, 18, gpus, 1) for gpus in (16, 16_384))
    assert 0.97 < few < 200 * 18 / (200 * 18 + 60) and many < 0.85
    # Whole cycles of 3,660 s in a time between failures of mean m: 1 / (exp(3660 / m) - 1).
    mean = 3600 * scale.MTBF_GPU_H / 131_072
    back = scale.DETECT_S + scale.RESTART_S + 60
    expected = 3600 / math.expm1(3660 / mean) / (mean + back)
    found = [scale.ettr(200, 60, 18, 131_072, seed) for seed in range(20)]
    assert sum(found) / 20 == pytest.approx(expected, rel=0.03)


def test_a_run_grows_by_nodes_and_only_by_whole_ones():
    config, *_ = made(*ASYNC)
    grown = scale.resized(config, 64, scale_batch=True)
    assert (grown.parallel.nodes, grown.pipeline.rollout_nodes, grown.train.batch) == (4, 4, 64)
    assert config.parallel.nodes == 2
    with pytest.raises(UserError, match=r"--gpus 24: parallel.nodes=2 of the run's 32 GPUs"):
        scale.resized(config, 24)


def test_a_push_to_other_gpus_grows_with_them_through_the_host_and_not_by_nccl():
    few, many = (made(*ASYNC, f"pipeline.rollout_nodes={nodes}")[3].push_s for nodes in (2, 64))
    assert many == pytest.approx(2 * few)  # 10 links after one another instead of 5
    nccl = compose("rl", [*WORDS, "train.mini_batch=8", *ASYNC, "pipeline.transport=nccl"])
    problem = run.read(nccl, run.shape_of(nccl), run.machine_of(nccl))
    assert scale.order_of(nccl, problem, run.present(nccl, problem)).push_s < 5


def test_the_fixed_number_of_verl_is_what_docs_scale_says():
    """10,000 places in its router's memory."""
    verl = Path(find_spec("verl").origin).parent
    assert f"DEFAULT_ROUTING_CACHE_SIZE = {Order.sticky}\n" in (verl / "workers/rollout/router.py").read_text()


def test_a_recorded_trajectory_keeps_its_turns_and_its_tools_seconds():
    spans = [("policy", 0, 10), ("observation", 10, 14), ("policy", 14, 20), ("observation", 20, 21)]
    record = {
        "prompt_ids": [1, 2, 3],
        "spans": [{"kind": kind, "start": start, "end": end} for kind, start, end in spans],
        "calls": [{"turn": 0, "duration_s": 0.5}, {"turn": 0, "duration_s": 0.25}, {"turn": 1, "duration_s": 9.0}],
    }
    assert turns_of(record) == ([(3, 10), (4, 6)], [0.75])


def test_the_command_prints_a_table_and_writes_its_figures(tmp_path, capsys):
    words = [*WORDS, "train.mini_batch=8", "--gpus", "16,32", "--steps", "1"]
    file = tmp_path / "rows.json"
    assert main.main(["simulate", *words, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    rows = json.loads(file.read_text())
    assert [row["gpus"] for row in rows] == [16, 32] and rows[0]["speed"] == 1 < rows[1]["speed"]
    assert f"{rows[0]['step']:,.1f}" in out and "Simulated, not measured" in out
    assert main.main(["simulate", *words[:-4], "--gpus", "many"]) == 2
    assert "--gpus many: expected numbers" in capsys.readouterr().err
    assert main.main(["simulate", *words[:-4], "--gpus", "8", "parallel.pp=1"]) == 2
    assert "8 GPUs do not hold this run: the update takes " in capsys.readouterr().err
