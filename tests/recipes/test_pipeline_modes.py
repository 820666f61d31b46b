"""What an asynchronous pipeline is refused for, how old its tokens are said to be, and what reaches verl."""

import pytest

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.recipes.pipeline import check_pipeline


def check(*overrides):
    config = compose("rl", overrides)
    check_pipeline(
        config.pipeline,
        batch=config.train.batch,
        mini_batch=config.train.mini_batch,
        rollout_tp=config.parallel.rollout_tp,
        eval_every=config.train.eval_every,
    )
    return config.verl


def test_each_pipeline_sets_its_mode_and_bound():
    seen = {}
    for name in ("sync", "partial", "one_step_off", "async"):
        verl = check(f"pipeline={name}")
        v1 = verl.trainer.v1
        assert v1.colocate_async.num_warmup_batches == verl.trainer.v1.separate_async.num_warmup_batches
        ahead = v1.separate_async.num_warmup_batches, v1.separate_async.parameter_sync_step
        seen[name] = v1.trainer_mode, *ahead, verl.ray_kwargs.ray_init.num_gpus
        assert verl.actor_rollout_ref.hybrid_engine == (name in ("sync", "partial"))
    assert seen == {
        "sync": ("sync", 0, 1, 2),
        "partial": ("colocate_async", 1, 1, 2),
        "one_step_off": ("separate_async", 1, 1, 3),
        "async": ("separate_async", 2, 4, 3),
    }


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("pipeline=one_step_off", "train.mini_batch=8"),
            "holds 2 of train.mini_batch=8: leave train.mini_batch out, or take",
        ),
        (("pipeline=async", "pipeline.staleness=0"), "pipeline=sync"),
        (("pipeline=one_step_off", "pipeline.rollout_gpus=0"), "not filled by rollout engines"),
        (("pipeline=one_step_off", "parallel.rollout_tp=2", "pipeline.rollout_gpus=3"), "parallel.rollout_tp=2"),
        (("pipeline=async", "train.eval_every=5"), "retool eval"),
        (("pipeline=partial", "train.eval_every=5"), "retool eval"),
        (("pipeline=partial", "pipeline.staleness=0"), "pipeline=sync"),
        (("pipeline=one_step_off", "pipeline.transport=nccl"), "CuPy"),
    ],
)
def test_what_does_not_work_is_one_sentence(overrides, words):
    with pytest.raises(UserError, match=words) as caught:
        check(*overrides)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
