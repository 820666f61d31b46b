"""What verl refuses of its own section is one sentence of the stage, before Ray starts."""

import pytest

from retool_mcore.backends.verl.check import check_config
from retool_mcore.config import compose
from retool_mcore.errors import UserError

DTYPE = "model.dtype=bfloat16"  # float32 is allowed by what a stage on a CPU loads (backends/cpu)
ROLLOUT, ACTOR = "verl.actor_rollout_ref.rollout", "verl.actor_rollout_ref.actor"


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (f"{ROLLOUT}.mode=sync", "Rollout mode 'sync' has been removed"),
        (f"{ROLLOUT}.pipeline_model_parallel_size=2", "not implemented pipeline_model_parallel_size > 1"),
        (f"{ACTOR}.loss_agg_mode=mean", "Invalid loss_agg_mode: mean"),
    ],
)
def test_refused(word, sentence):
    with pytest.raises(UserError, match="^verl refuses its configuration: ") as caught:
        check_config(compose("rl", [word, DTYPE]).verl)
    assert sentence in str(caught.value) and "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("words", [[], ["recipe=grpo"]])
def test_what_we_compose_passes(words):
    check_config(compose("rl", [*words, DTYPE]).verl)
