"""model.init reaches every trainer's engine section. That nothing is read then: tests/e2e/test_train_benchmark.py."""

import pytest

from retool_mcore.config import compose


def inits(config) -> list[str]:
    sections = [config.verl.engine] if "engine" in config.verl else []
    if "actor_rollout_ref" in config.verl:
        sections += [config.verl.actor_rollout_ref.actor.megatron, config.verl.actor_rollout_ref.ref.megatron]
    return [section.override_mcore_model_config.init for section in sections]


@pytest.mark.parametrize(("stage", "parallel", "count"), [("sft", "cpu-tp2", 1), ("rl", "2x8-80g", 2)])
def test_the_choice_reaches_the_engines(stage, parallel, count):
    assert inits(compose(stage, [f"parallel={parallel}", "model.init=random"])) == ["random"] * count
    assert inits(compose(stage, [f"parallel={parallel}"])) == ["checkpoint"] * count
