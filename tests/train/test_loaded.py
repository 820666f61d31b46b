"""The tokens of a conversation's context."""

import json

import pytest
from omegaconf import OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.train.loaded import context_of


def test_the_context_is_what_the_model_has_positions_for(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 1000}))
    config = OmegaConf.create({"rollout": {"max_prompt_tokens": 100, "max_response_tokens": 300}})
    assert context_of(config, tmp_path, None) == 1000
    assert context_of(config, tmp_path, 700) == 700
    with pytest.raises(UserError, match="more than the 1000 positions"):
        context_of(config, tmp_path, 1001)
