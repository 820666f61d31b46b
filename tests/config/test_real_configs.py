"""Every stage composes, and what must hold for the real runs holds."""

import pytest
from omegaconf import OmegaConf

from retool_mcore.config import compose

UNUSED = {"verl.reward.reward_model.rollout.name"}  # of a reward model, which no recipe has
LARGE = ["model=qwen2.5-32b", "parallel=2x8-80g", "data=math"]


@pytest.mark.parametrize("stage", ["prepare", "sft", "rl", "eval", "export", "doctor"])
def test_every_value_of_a_stage_resolves(stage):
    config = compose(stage, ["name=t", "runs_dir=/elsewhere"])
    assert OmegaConf.to_container(config, resolve=True)["run_dir"] == "/elsewhere/t"
    assert OmegaConf.missing_keys(config) <= UNUSED


def test_verl_learns_at_the_stages_rate_and_never_at_its_own_default():
    for stage, optim in (("sft", "optim"), ("rl", "actor_rollout_ref.actor.optim")):
        for overrides in ([], LARGE):
            config = compose(stage, overrides)
            node = config.verl
            for part in optim.split("."):
                node = node[part]
            assert node.lr == config.train.lr != 1e-3


def test_the_large_policy_resolves():
    config = compose("rl", LARGE)
    rollout = config.verl.actor_rollout_ref.rollout
    assert config.verl.actor_rollout_ref.actor.megatron.tensor_model_parallel_size == config.parallel.tp
    assert (rollout.prompt_length, rollout.response_length) == (2048, 16384)
    assert rollout.max_model_len == 2048 + 16384
    assert config.verl.trainer.nnodes * config.verl.trainer.n_gpus_per_node == 16
