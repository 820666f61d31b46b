"""model.lora becomes verl's section, and without a rank verl's stays as it is."""

import pytest

from retool_mcore.config import compose
from retool_mcore.config.verl_defaults import verl_defaults

PLACES = {"sft": "model", "rl": "actor_rollout_ref.model"}


def section(stage, config):
    for part in PLACES[stage].split("."):
        config = config[part]
    return config.lora


@pytest.mark.parametrize("stage", PLACES)
def test_without_a_rank_verls_section_is_its_own(stage):
    config = compose(stage, ["model.lora.alpha=7", "model.lora.targets=[linear_qkv]"])
    assert section(stage, config.verl) == section(stage, verl_defaults(stage))


@pytest.mark.parametrize("stage", PLACES)
def test_with_a_rank_weights_are_merged(stage):
    config = compose(stage, ["parallel=1gpu", "model.lora.rank=8", "model.lora.targets=[linear_proj]"])
    found = section(stage, config.verl)
    assert found == dict(section(stage, verl_defaults(stage))) | {
        "rank": 8,
        "merge": True,
        "target_modules": ["linear_proj"],
    }
    assert found.alpha == 32 and found.dropout == 0.0


def test_export_and_evaluation_know_no_adapters():
    assert section("sft", compose("export", ["parallel=1gpu", "model.lora.rank=8"]).verl).rank == 0
