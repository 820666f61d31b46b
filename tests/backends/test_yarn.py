"""The yarn settings that Megatron-Bridge would leave empty; the defaults are transformers'."""

import inspect

import pytest

from retool_mcore.backends.megatron.yarn import missing_settings

QWEN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
WHOLE = QWEN | {"beta_fast": 16, "beta_slow": 2, "truncate": False}
DEFAULTS = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_correction_range_round_to_int": True}


@pytest.mark.parametrize(
    ("scaling", "settings"),
    [
        (None, {}),
        ({"rope_type": "default"}, {}),
        ({"rope_type": "llama3", "factor": 8.0}, {}),
        (WHOLE, {}),
        (QWEN, DEFAULTS),
        ({"type": "yarn", "factor": 2.0}, DEFAULTS | {"yarn_original_max_position_embeddings": 4096}),
    ],
)
def test_what_the_scaling_leaves_out(scaling, settings):
    assert missing_settings(scaling, 4096) == settings


def test_the_defaults_are_those_of_transformers():
    from transformers.modeling_rope_utils import _compute_yarn_parameters

    source = inspect.getsource(_compute_yarn_parameters)
    assert '.get("beta_fast") or 32' in source and '.get("beta_slow") or 1' in source
    assert '.get("truncate", True)' in source
