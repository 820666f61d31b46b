"""Values that mean nothing are refused when a configuration is composed: each with its sentence."""

import re
from typing import get_args

import pytest

from retool_mcore.config import compose
from retool_mcore.config.models.recipe import Recipe
from retool_mcore.config.models.run import Sandbox
from retool_mcore.config.models.train import Alarms
from retool_mcore.errors import UserError
from retool_mcore.rewards import verdict
from retool_mcore.sandbox.isolation import LEVELS
from retool_mcore.state import alarms

MCORE = "parallel.megatron.override_mcore_model_config"
NAME = "expected letters, digits and ._+- in one or several folders, as in mine or maths/first."
BEST = (
    "expected a metric that says how good the policy is, as val/accuracy, reward/accuracy, critic/score/mean or, in "
    "SFT, val/loss."
)
# stage, overrides, sentence; first what once passed every check.
REFUSED = [
    ("rl", ["train.lr=-1"], "train.lr=-1: expected more than 0."),
    ("rl", ["train.lr=1000"], "train.lr=1000: expected less than 1."),
    ("sft", ["train.lr=0"], "train.lr=0: expected more than 0."),
    ("rl", ["recipe.clip_low=-3"], "recipe.clip_low=-3: expected more than 0."),
    (
        "rl",
        ["recipe.policy_loss=gpso"],
        "recipe.policy_loss=gpso: expected 'vanilla', 'retool', 'gspo', 'cispo' or 'sequence_clip'.",
    ),
    (
        "rl",
        ["recipe=grpo", "recipe.policy_loss=cispo"],
        "recipe.policy_loss=cispo is its paper's with recipe.loss_aggregation=token-mean, not seq-mean-token-mean: set "
        "that.",
    ),
    ("rl", ["recipe.temperature=0"], "recipe.temperature=0: expected more than 0."),
    ("rl", ["rollout.temperature=-1"], "rollout.temperature=-1: expected more than 0."),
    ("rl", ["rollout.top_p=7"], "rollout.top_p=7: expected at most 1."),
    ("eval", ["k=0"], "k=0: expected 1 or more."),
    ("eval", ["problems=0"], "problems=0: expected 1 or more."),
    ("rl", ["train.save_every=0"], "train.save_every=0: expected 1 or more, or -1 for never."),
    ("rl", ["train.eval_every=-5"], "train.eval_every=-5: expected 1 or more, or -1 for never."),
    ("rl", ["recipe.max_turns=0"], "recipe.max_turns=0: expected 1 or more."),
    (
        "rl",
        ["data.rl.batch=3", "data.rl.mini_batch=2"],
        "train.batch=3 is not a multiple of train.mini_batch=2 (both count prompts): change one of them, here or in "
        "data.rl.",
    ),
    ("rl", ["sandbox.memory_mb=1"], "sandbox.memory_mb=1: expected 32 or more."),
    ("rl", ["train.keep_best=reward/accuray"], f"train.keep_best=reward/accuray: {BEST}"),
    (
        "rl",
        ["verl.actor_rollout_ref.rollout.name=sglang"],
        "verl.actor_rollout_ref.rollout.name=sglang: expected 'vllm'.",
    ),
    (
        "rl",
        ["verl.actor_rollout_ref.model.lora_rank=16"],
        "unknown key verl.actor_rollout_ref.model.lora_rank; it is not of Megatron, so set model.lora.rank.",
    ),
    (
        "rl",
        ["train.loggers=[wandbb]"],
        "train.loggers.0=wandbb: expected 'console', 'tensorboard', 'wandb' or 'mlflow'.",
    ),
    (
        "rl",
        ["verl.trainer.logger=[console,wandb,file]"],
        "verl.trainer.logger=['console', 'wandb', 'file'] follows train.loggers: set that.",
    ),
    ("rl", ["name="], f"name=: {NAME}"),
    ("rl", ["name=/etc/foo"], f"name=/etc/foo: {NAME}"),
    ("prepare", ["name=a/../../b"], f"name=a/../../b: {NAME}"),
    ("prepare", ["runs_dir="], "runs_dir=: expected a text that is not empty."),
    ("prepare", ["seed=-1"], "seed=-1: expected 0 or more."),
    ("prepare", ["data.arithmetic.tool_share=45"], "data.arithmetic.tool_share=45: expected at most 1."),
    (
        "prepare",
        ["data=functions", "data.functions.style=rows"],
        "data.functions.style=rows: expected 'list' or 'lines'.",
    ),
    (
        "prepare",
        ["data=functions", "data.functions.right_share=2"],
        "data.functions.right_share=2: expected at most 1.",
    ),
    ("prepare", ["data=calls", "data.calls.style=rows"], "data.calls.style=rows: expected 'list' or 'lines'."),
    ("prepare", ["data=calls", "data.calls.near=2"], "data.calls.near=2: expected at most 1."),
    (
        "prepare",
        ["data=calls", "data.calls.mix={calls_1: 0, calls_2: 0, calls_3: 0}"],
        "data.calls.mix={'calls_1': 0, 'calls_2': 0, 'calls_3': 0}: expected 0 or more, one above.",
    ),
    ("prepare", ["data=calls", "data.calls.right_share=-1"], "data.calls.right_share=-1: expected 0 or more."),
    ("rl", ["data.curriculum.weights=3"], "data.curriculum.weights must be true or false, not 3."),
    (
        "rl",
        ["verl.actor_rollout_ref.actor.megatron.seed=2"],
        "verl.actor_rollout_ref.actor.megatron.seed lies in a section that follows ${parallel.megatron}: set it there.",
    ),
    ("rl", ["data.curriculum.retire=0"], "data.curriculum.retire=0: expected 1 or more."),
    (
        "rl",
        ["data.curriculum.pass_rates=a.jsonl", "data.curriculum.keep=[0.9,0.1]"],
        "data.curriculum.keep=[0.9, 0.1]: expected [low, high] with 0 <= low < high <= 1.",
    ),
    (
        "rl",
        ["data.curriculum.keep=[0.1,0.9]"],
        "data.curriculum.keep=[0.1, 0.9] is of data.curriculum.pass_rates: give that, too.",
    ),
    ("prepare", ["data=math", "data.held_back=0"], "data.held_back=0: expected more than 0."),
    ("rl", ["watchdog_minutes=0"], "watchdog_minutes=0: expected more than 0."),
    ("rl", ["train.batch=null"], "train.batch=null: expected a whole number."),
    ("rl", ["train.n=1"], "train.n=1: expected 2 or more."),
    ("rl", ["train.mini_batch=17"], "train.batch=16 is not a multiple of train.mini_batch=17 (both count"),
    ("sft", ["train.warmup_steps=400"], "train.warmup_steps=400 must be below the run's 400 steps."),
    ("sft", ["train.schedule=cosin"], "train.schedule=cosin: expected 'constant', 'linear', 'cosine', "),
    ("rl", ["train.best_is=best"], "train.best_is=best: expected 'highest' or 'lowest'."),
    ("rl", ["train.keep_checkpoints=0"], "train.keep_checkpoints=0: expected 1 or more."),
    (
        "rl",
        ["train.keep_best=val/accuracy"],
        "train.keep_best=val/accuracy is of a validation, which train.eval_every=-1 turns off: set one of the two, or "
        "it to null.",
    ),
    (
        "rl",
        ["train.stop_after_worse=2"],
        "train.stop_after_worse=2 counts validations, which train.eval_every=-1 turns off: set one of the two, or it "
        "to null.",
    ),
    ("rl", ["parallel.tp=0"], "parallel.tp=0: expected 1 or more."),
    ("rl", ["parallel.device=gpu"], "parallel.device=gpu: expected 'cpu' or 'cuda'."),
    ("rl", ["parallel.gpu_memory_utilization=1.5"], "parallel.gpu_memory_utilization=1.5: expected less than 1."),
    ("rl", ["model.init=fresh"], "model.init=fresh: expected 'checkpoint' or 'random'."),
    ("rl", ["rollout.format=xml"], "rollout.format=xml: expected 'text', 'hermes' or 'none'."),
    ("rl", ["rollout.max_prompt_tokens=0"], "rollout.max_prompt_tokens=0: expected 1 or more."),
    (
        "rl",
        ["rollout.max_observation_tokens=320"],
        "rollout.max_observation_tokens=320 must be below rollout.max_response_tokens=320: one observation would fill "
        "the whole response.",
    ),
    ("rl", ["rollout.max_turn_tokens=321"], "rollout.max_turn_tokens=321 exceeds rollout.max_response_tokens=320: lo"),
    ("rl", ["recipe.advantage=grop"], "recipe.advantage=grop: expected 'grpo', 'rloo', "),
    ("rl", ["recipe.loss_aggregation=mean"], "recipe.loss_aggregation=mean: expected 'token-mean', "),
    ("rl", ["recipe.answer=last"], "recipe.answer=last: expected 'boxed', 'answer_tag', 'final_line', "),
    ("eval", ["answer=last"], "answer=last: expected 'boxed', "),
    ("rl", ["recipe.observation_weight=-0.1"], "recipe.observation_weight=-0.1: expected 0 or more."),
    (
        "rl",
        ["recipe.filters.accuracy=[0.8,0.05]"],
        "recipe.filters.accuracy=[0.8, 0.05]: expected [low, high] with 0 <= low < high <= 1.",
    ),
    ("rl", ["recipe.filters.repetition.n=10"], "recipe.filters.repetition.n=10: expected a power of two."),
    ("rl", ["recipe.filters.refill_limit=0"], "recipe.filters.refill_limit=0: expected 1 or more."),
    ("rl", ["sandbox.preload=[7]"], "sandbox.preload.0=7: expected a text."),
    ("rl", ["sandbox.timeout_s=0"], "sandbox.timeout_s=0: expected more than 0."),
    ("rl", ["sandbox.min_isolation=jail"], "sandbox.min_isolation=jail: expected 'none', 'process', "),
    ("rl", ["alarms.nan.answer=halt"], "alarms.nan.answer=halt: expected 'ignore', 'tell', 'skip', 'back' or 'stop'."),
    ("rl", ["alarms.reward.then=back"], "alarms.reward.then=back: expected 'ignore', 'tell' or 'stop'."),
    ("rl", ["alarms.entropy.in_a_row=0"], "alarms.entropy.in_a_row=0: expected 1 or more."),
    ("rl", ["alarms.backs=-1"], "alarms.backs=-1: expected 0 or more."),
    ("rl", ["trace.backend=weave"], "trace.backend=weave: expected 'none' or 'otlp'."),
    ("rl", ["trace.prompts=0"], "trace.prompts=0: expected 1 or more."),
    ("export", ["probe.tokens=0"], "probe.tokens=0: expected 1 or more."),
    ("prepare", ["data=file", "data.file.train={path: a, wieght: 2}"], "data.file.train.wieght=2: expected one of the"),
    ("prepare", ["data=file", "data.file.eval={path: a, weight: 0}"], "data.file.eval.weight=0: expected more than 0"),
    ("prepare", ["data=file", "data.file.train={name: a}"], "data.file.train.path: expected a value"),
    ("prepare", ["data=file", "data.file.train=[a/x.csv,b/x.csv]"], "data.file.train has two files of the name x: "),
    ("rl", ["foo=1"], "unknown key foo; none is near it."),
    ("rl", ["lora.rank=8"], "unknown key lora.rank; the nearest valid key is model.lora.rank."),
    ("sft", ["model.lora.rank=-1"], "model.lora.rank=-1: expected 0 or more."),
    ("sft", ["model.lora.alpha=0"], "model.lora.alpha=0: expected 1 or more."),
    ("sft", ["model.lora.targets=[]"], "model.lora.targets=[]: expected a list that is not empty."),
    ("sft", ["model.lora.targets=[q_proj]"], "model.lora.targets.0=q_proj: expected 'linear_qkv', 'linear_proj', "),
    (
        "rl",
        ["verl.critic.model.lora.rank=8"],
        "unknown key verl.critic.model.lora.rank; a critic has no adapters, so leave it out.",
    ),
    ("sft", ["exploration=8"], "unknown key exploration; "),
    (
        "sft",
        ["verl.model.lora.rank=8"],
        "verl.model.lora.rank lies in a section that follows ${model.lora}: set it there.",
    ),
    ("rl", ["train.step=3"], "unknown key train.step; the nearest valid key is train.steps."),
    ("rl", ["train.async_save=true"], "unknown key train.async_save; every save is synchronous, so leave it out."),
    (
        "rl",
        ["parallel=2gpu", f"{MCORE}.tp_overlap=true"],
        f"unknown key {MCORE}.tp_overlap; it took 0.6 to 2.9 % off an update, so leave it out.",
    ),
    (
        "rl",
        ["sandbox.cache_mb=100"],
        "unknown key sandbox.cache_mb; programs are no longer cached, since a step hardly waits for them, so leave it "
        "out.",
    ),
    ("rl", ["max_turn=3"], "unknown key max_turn; the nearest valid key is "),
    ("rl", ["train.leraning_rate=3"], "unknown key train.leraning_rate; none is near it."),
]


@pytest.mark.parametrize(("stage", "overrides", "sentence"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused(stage, overrides, sentence):
    with pytest.raises(UserError) as caught:
        compose(stage, overrides)
    said = str(caught.value)
    assert re.sub(r"^the value of \S+ cannot be worked out: ", "", said).startswith(sentence), said
    assert "\n" not in said and said.endswith(".") and not said.endswith("..")


def choices(kind, field: str) -> tuple:
    return get_args(kind.model_fields[field].annotation)


def test_choices_are_those_of_the_code():
    assert choices(Recipe, "answer") == verdict.ANSWERS and choices(Recipe, "decimals") == verdict.DECIMALS
    assert choices(Recipe, "copied_answers") == verdict.COPIES
    assert choices(Sandbox, "min_isolation") == LEVELS
    assert set(Alarms.model_fields) - {"backs"} == set(alarms.CHECKS)
