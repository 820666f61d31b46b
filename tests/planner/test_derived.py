"""What follows from a run's size where the configuration says null."""

import pytest
from omegaconf import OmegaConf

from retool_mcore.config import compose
from retool_mcore.planner import derived


def filled(cores: int, *overrides: str):
    config = compose("rl", list(overrides))
    derived.fill(config, cores)
    return config


def test_the_quickstart_on_two_cores_has_one_process_of_each_and_four_programs():
    config = filled(2)
    assert [config.parallel[key] for key in ("agent_workers", "reward_workers")] == [1, 1]
    assert config.sandbox.workers == 4 and config.sandbox.timeout_s == 5
    assert config.verl.actor_rollout_ref.rollout.agent.num_workers == config.verl.reward.num_workers == 1


def test_two_nodes_of_eight_gpus_follow_from_8192_trajectories_and_their_cores():
    large = ("parallel=2x8-80g", "data=math", "model=qwen2.5-32b")
    config = filled(96, *large)
    assert config.parallel.agent_workers == config.verl.actor_rollout_ref.rollout.agent.num_workers == 8192 / 256
    assert config.parallel.reward_workers == 8192 / 1024
    # 96 cores, 24 of them for 8 GPUs: 72 for the 16 agent workers of a node.
    assert config.sandbox.workers == 4 and config.sandbox.timeout_s == 30
    few = filled(32, *large)
    assert (few.parallel.agent_workers, few.sandbox.workers) == (8, 2)  # 8 cores left a node
    assert filled(8, *large).parallel.agent_workers == 1


def test_on_1024_gpus_every_node_has_an_agent_worker_and_its_cores_run_programs():
    large = compose("rl", ["parallel=2x8-80g", "data=math", "model=qwen2.5-32b", "parallel.nodes=128"])
    found = derived.sizes(large, 112)
    assert found["parallel.agent_workers"] == 128 and found["sandbox.workers"] == 112 - 24


def test_a_number_wins_and_the_rest_is_said(capsys):
    config = filled(64, "parallel.agent_workers=3", "sandbox.workers=7", "data.rl.batch=640")
    assert config.parallel.agent_workers == config.verl.actor_rollout_ref.rollout.agent.num_workers == 3
    assert config.sandbox.workers == 7
    assert capsys.readouterr().out == "Derived from the run's size: parallel.reward_workers=5\n"
    assert filled(64, "verl.reward.num_workers=2", "data.rl.batch=640").verl.reward.num_workers == 2


@pytest.mark.parametrize("sandbox", ["pool", "fusion"])
def test_a_service_bounds_its_programs_itself(sandbox):
    assert "workers" not in filled(2, f"sandbox={sandbox}").sandbox


def test_there_are_no_more_agent_workers_than_prompts():
    sizes = derived.sizes(compose("rl", ["data.rl.batch=2", "data.rl.n=4096", "data.rl.mini_batch=2"]), cores=64)
    assert sizes["parallel.agent_workers"] == 2


def test_what_is_derived_is_complete():
    config = compose("rl")
    assert all(OmegaConf.select(config, key) is None for key in derived.PLACES)
    derived.fill(config)
    assert all(OmegaConf.select(config, key) >= 1 for key in derived.PLACES)
