"""Values that fit their own range and not each other are refused when a configuration is composed."""

import pytest

from retool_mcore.config import compose
from retool_mcore.config.kinds import Norms, Observation
from retool_mcore.errors import UserError
from retool_mcore.rollout import episode
from retool_mcore.state import alarms

REFUSED = [
    ("sft", ["train.eval_every=-1", "train.keep_best=val/loss"], "train.keep_best=val/loss is of a validation, which"),
    ("rl", ["train.eval_every=-1", "train.keep_best=val/accuracy"], "train.keep_best=val/accuracy is of a validation"),
    ("rl", ["train.eval_every=9", "train.keep_best=val/loss"], "train.keep_best=val/loss is a metric of SFT, which RL"),
    ("sft", ["train.keep_best=val/accuracy"], "train.keep_best=val/accuracy is a metric of RL, which SFT does not"),
    ("sft", ["train.keep_best=reward/accuracy"], "train.keep_best=reward/accuracy is a metric of RL, which SFT"),
    (
        "rl",
        ["train.eval_every=9", "train.keep_best=val/evaluation/accuracy"],
        "train.keep_best=val/evaluation/accuracy would choose a checkpoint by the problems that are reported: set it",
    ),
    ("rl", ["train.eval_sets=[evaluation]"], "train.eval_sets=['evaluation']: expected held_back, by which a"),
    ("rl", ["train.eval_sets=[held_back,test]"], "train.eval_sets.1=test: expected 'held_back' or 'evaluation'."),
    ("rl", ["train.evaluation.samples=0"], "train.evaluation.samples=0: expected 1 or more."),
    ("rl", ["train.evaluation.top_p=6"], "train.evaluation.top_p=6: expected at most 1."),
    ("sft", ["train.save_every=50", "train.eval_every=30"], "train.keep_best=val/loss chooses among steps that are"),
    ("sft", ["train.min_lr=0.01"], "train.min_lr=0.01 exceeds train.lr=0.002: lower it."),
    ("sft", ["data.sft.min_lr=0.01"], "data.sft.min_lr=0.01 exceeds data.sft.lr=0.002: lower it."),
    ("sft", ["train.schedule=WSD"], "the schedule WSD needs the number of steps in which the rate falls: add verl.o"),
    (
        "rl",
        ["verl.actor_rollout_ref.actor.optim.lr_decay_style=WSD"],
        "the schedule WSD needs the number of steps in which the rate falls: add verl.actor_rollout_ref.actor.optim.",
    ),
    ("rl", ["verl.critic.optim.min_lr=1"], "verl.critic.optim.min_lr=1 exceeds verl.critic.optim.lr=0.00125: lower"),
    ("rl", ["train.steps=null"], "train.steps=null: RL has no epochs to end with, so give the number of its steps."),
    ("rl", ["recipe.gamma=0.9"], "recipe.gamma is of recipe.advantage=gae and has no effect with grpo."),
    ("rl", ["recipe.lambda=0.9"], "recipe.lambda is of recipe.advantage=gae and has no effect with grpo."),
    ("rl", ["recipe.critic.warmup_steps=2"], "recipe.critic.warmup_steps is of recipe.advantage=gae and has no"),
    (
        "rl",
        ["recipe.advantage=gae", "recipe.critic.warmup_steps=30"],
        "recipe.critic.warmup_steps=30 must be below the run's 30 steps: the policy is trained in none of them.",
    ),
    ("rl", ["rollout.max_observation_tokens=31"], "rollout.max_observation_tokens=31: expected 32 or more."),
    ("rl", ["alarms.gradient_norm.window=7"], "alarms.gradient_norm.window=7: expected 8 or more."),
    ("rl", ["correction.rollout_is=tokens"], "correction.rollout_is=tokens: expected 'token' or 'sequence'."),
    ("rl", ["parallel.rollout.kv_cache_dtype=fp9"], "parallel.rollout.kv_cache_dtype=fp9: expected 'auto', "),
    (
        "rl",
        ["parallel.max_num_seqs=10000"],
        "parallel.max_num_seqs=10000 exceeds parallel.rollout.max_num_batched_tokens=8192, and an engine takes at",
    ),
    ("rl", ["data=repo_bugs", "data.stages.act=0"], "data.stages.act=0: expected 1 or more."),
    ("rl", ["pipeline.staleness=-1"], "pipeline.staleness=-1: expected 0 or more."),
    ("prepare", ["data.arithmetic.sft=-4"], "data.arithmetic.sft=-4: expected 0 or more."),
]


@pytest.mark.parametrize(("stage", "overrides", "sentence"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused(stage, overrides, sentence):
    with pytest.raises(UserError) as caught:
        compose(stage, overrides)
    said = str(caught.value)
    assert said.startswith(sentence), said
    assert "\n" not in said and said.endswith(".")


@pytest.mark.parametrize(
    ("stage", "overrides"),
    [
        ("sft", ["train.schedule=WSD", "verl.optim.lr_wsd_decay_steps=10"]),
        ("sft", ["train.eval_every=-1", "train.keep_best=train/loss"]),
        ("sft", ["train.save_every=8", "train.eval_every=24"]),
        ("sft", ["train.lr=2e-6"]),  # the end of the schedule follows
        ("rl", ["recipe.advantage=gae", "recipe.critic.warmup_steps=29", "recipe.gamma=0.9"]),
        ("rl", ["correction.rollout_is=null"]),
        ("rl", ["rollout.max_observation_tokens=32"]),
    ],
)
def test_what_fits_is_taken(stage, overrides):
    compose(stage, overrides)


@pytest.mark.parametrize(
    ("stage", "data"), [("sft", "arithmetic"), ("sft", "math"), ("rl", "arithmetic"), ("rl", "math")]
)
def test_one_key_turns_validation_off(stage, data):
    train = compose(stage, [f"data={data}", "train.eval_every=-1"]).train
    assert train.keep_best is None


def test_a_coefficient_turns_the_kl_term_on_and_one_key_turns_it_off():
    assert compose("rl", ["recipe.kl_coefficient=0.01"]).verl.actor_rollout_ref.actor.use_kl_loss is True
    assert compose("rl", ["recipe=grpo", "recipe.kl_loss=false"]).verl.actor_rollout_ref.actor.use_kl_loss is False
    assert compose("rl").recipe.kl_loss is False and compose("rl", ["recipe=grpo"]).recipe.kl_loss is True


def test_bounds_are_those_of_the_code():
    bounds = {
        name: kind.__metadata__[0].metadata[0].ge for name, kind in (("Observation", Observation), ("Norms", Norms))
    }
    assert bounds == {"Observation": episode._MIN_OBSERVATION_TOKENS, "Norms": alarms.LEAST}
