"""The groups that decide how RL learns: recipe, pipeline and correction."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from retool_mcore.config.defaults import computed, follows, stands_in
from retool_mcore.config.kinds import (
    AboveOne,
    Aggregation,
    Answer,
    Count,
    Finite,
    Group,
    Interval,
    Natural,
    NotNegative,
    Positive,
    PositiveShare,
    PowerOfTwo,
    Rate,
    Share,
    Text,
)
from retool_mcore.config.models.section import Section
from retool_mcore.errors import UserError

# Policy losses that are their paper's with one aggregation only; the others' default is token-mean.
LOSS_AGGREGATIONS = {"gspo": "seq-mean-token-mean", "cispo": "token-mean", "sequence_clip": "seq-mean-token-sum"}


def aggregation_of(policy_loss: str) -> str:
    return LOSS_AGGREGATIONS.get(policy_loss, "token-mean")


def positive(value: float) -> bool:
    return value > 0


def five_times(value: float) -> float:
    return 5 * value


class Reward(Section):
    """A reward and its arguments."""

    name: Text | None = None
    """A name of retool_mcore/rewards/registry.py, or a dotted path."""
    args: dict[str, Any] = {}
    """Its arguments."""


class TrajectoryReward(Reward):
    """The reward of one trajectory."""

    name: Text = "retool"
    """A name of retool_mcore/rewards/registry.py, or a dotted path."""


class GroupReward(Reward):
    """The reward of a prompt's whole group, in place of recipe.reward. Without a name: none."""


class PreparedRecipe(Section):
    """What `retool prepare` reads of a recipe: whether every problem needs an answer."""

    reward: TrajectoryReward


class EpisodeRecipe(PreparedRecipe):
    """What shapes an episode or its grade; `retool eval` has these keys of a recipe."""

    name: Text
    """The preset's name."""
    right_from: Finite | None = None
    """A trajectory counts as right from this reward on, without the overlong punishment: in accuracies, validation,
    rl-best, pass rates, filters and alarms. null: its answer decides, and with answer=environment a reward of 1."""
    answer: Answer = "boxed"
    """Where the final answer stands. boxed, answer_tag and final_line: retool_mcore/rewards/answer.py. calls: the
    function calls are the answer. tests: its repository's tests decide. environment: no answer, the reward decides
    (right_from)."""
    decimals: Literal["exact", "rounded"] = "exact"
    """exact: 1.414214 is not the root of 2. rounded: 6 places and 4 digits stand for the exact value, as math-verify
    has it (docs/grader.md)."""
    max_turns: Count = follows("data.max_turns")
    """Calls in one trajectory."""
    after_last_call: Literal["end", "text"] = "end"
    """end: a call beyond max_turns ends the trajectory. text: it is not run, the reply says so once, and the policy
    goes on in text."""
    temperature: Positive = 1.0
    """Temperature of the training rollouts."""
    max_observation_chars: Count | None = None
    """Characters kept of an output, from its start. null: only the limit of tokens."""
    error_lines: Count = 10
    """Last lines kept of an error."""


class Critic(Section):
    """gae only: a second model of the policy's size and layout, with a value head."""

    lr: Positive = computed(five_times, "train.lr")
    """AdamW's learning rate; Open-Reasoner-Zero's PPO has 5e-6 next to the policy's 1e-6."""
    warmup_steps: Natural = 0
    """Steps at the start in which only the critic is trained."""
    value_clip: Positive = 0.5
    """A value moves at most so far in a step; verl's default."""


class Repetition(Section):
    """When a sample counts as a repetition."""

    n: PowerOfTwo = 16
    """Tokens of an n-gram; a power of two."""
    limit: Share = 0.2
    """Share of repeated n-grams above which a sample is left out."""


class Filters(Section):
    """What is left out of a step."""

    all_equal: bool = False
    """Drop groups whose verdicts are all equal (dynamic sampling)."""
    accuracy: Interval | None = None
    """[low, high]: keep a group only if its mean verdict lies strictly between. null: all."""
    samples: list[str] = []
    """Samples left out of the loss: overlong_wrong, repetition, faked_output, void_turn."""
    repetition: Repetition
    refill_limit: Count = 10
    """Dropped groups are replaced by new prompts; a step that drops more batches than this fails."""


class Recipe(EpisodeRecipe):
    """Where every recipe of configs/recipe/ starts; a recipe's file holds only what differs. Batch, group, mini-batch
    and lr are those of ReTool's community run."""

    paper: Text
    """Where the recipe comes from."""
    needs: Text | None = None
    """What this version does not have and the recipe cannot run without. null: nothing, it runs."""
    group_reward: GroupReward
    copied_answers: Literal["wrong", "right"] = "wrong"
    """wrong: a right answer that stands in the question, in another form than the truth's, does not count: `3+4` for
    "compute 3+4". right: it does (docs/grader.md)."""
    overlong_buffer: Natural = 0
    """Tokens before the limit in which a punishment grows from 0 to -1 (DAPO). 0: none."""
    advantage: Literal["grpo", "rloo", "reinforce_plus_plus_baseline", "gae"] = "grpo"
    """verl's estimators of these names; gae (PPO) trains a critic too."""
    normalise_by_std: bool = True
    """grpo only: divide by the group's standard deviation."""
    gamma: Share = 1.0
    """gae only: discount of a reward a token further on."""
    lambda_: Share = Field(1.0, alias="lambda")
    """gae only: 1 is the return minus the value; below 1 the critic's bias buys less variance."""
    critic: Critic
    policy_loss: Literal["vanilla", "retool", "gspo", "cispo", "sequence_clip"] = "vanilla"
    """vanilla: verl's clipped loss. retool: the same, for left-out samples and predicted observations. gspo, cispo,
    sequence_clip: docs/recipes.md, under Losses."""
    clip_low: PositiveShare = 0.2
    """The ratio to the old policy is cut at 1 - clip_low."""
    clip_high: Positive = 0.2
    """The ratio to the old policy is cut at 1 + clip_high."""
    dual_clip: AboveOne | None = 3.0
    """vanilla and retool only: bound of ratio * advantage where the advantage is negative; verl's default."""
    loss_aggregation: Aggregation = computed(aggregation_of, "recipe.policy_loss")
    """How the loss of tokens becomes one number. Without a value gspo's, cispo's and sequence_clip's own, else
    token-mean."""
    loss_scale: Annotated[int | float, Field(gt=0)] | None = None
    """Tokens by which seq-mean-token-sum-norm divides. null: the longest response of a micro-batch."""
    kl_loss: bool = computed(positive, "recipe.kl_coefficient")
    """A KL term to the starting policy in the loss (low_var_kl). It needs a second copy of the model; with a
    coefficient of 0 it is only measured."""
    kl_coefficient: NotNegative = 0.0
    """Factor of the KL term."""
    observation_weight: NotNegative = 0.0
    """alpha of a cross-entropy on observation tokens. 0: they are masked."""
    filters: Filters
    batch: Count = stands_in("data.rl.batch", 512)
    """Prompts a step. A data set that cannot bear the recipe's number has its own (data.rl)."""
    n: Group = stands_in("data.rl.n", 16)
    """Trajectories a prompt, the group; data.rl may have its own."""
    mini_batch: Count = stands_in("data.rl.mini_batch", 64)
    """Prompts an optimizer step; data.rl may have its own."""
    lr: Rate = stands_in("data.rl.lr", 1e-6)
    """AdamW's learning rate; data.rl may have its own."""

    @model_validator(mode="after")
    def _aggregation_of_the_loss(self) -> "Recipe":
        wanted = LOSS_AGGREGATIONS.get(self.policy_loss, self.loss_aggregation)
        if wanted != self.loss_aggregation:
            raise UserError(
                f"recipe.policy_loss={self.policy_loss} is its paper's with recipe.loss_aggregation={wanted}, not "
                f"{self.loss_aggregation}: set that."
            )
        return self

    @model_validator(mode="after")
    def _critics_keys(self) -> "Recipe":
        """Keys that only a critic reads."""
        changed = {
            "gamma": self.gamma != 1,
            "lambda": self.lambda_ != 1,
            "critic.warmup_steps": self.critic.warmup_steps,
        }
        for key in (key for key, differs in changed.items() if differs and self.advantage != "gae"):
            raise UserError(f"recipe.{key} is of recipe.advantage=gae and has no effect with {self.advantage}.")
        return self


def updates_of(batch: int, mini_batch: int) -> int:
    """Mini-batches of a batch."""
    if not mini_batch or batch % mini_batch:
        raise UserError(f"{batch} is not a multiple of {mini_batch}")
    return batch // mini_batch


class Pipeline(Section):
    """How rollout and training share time and devices."""

    name: Text
    """The preset's name."""
    mode: Literal["sync", "colocate_async", "separate_async"] = "sync"
    """As verl names it: sync, colocate_async (ahead on the trainer's devices), separate_async (on devices of their
    own)."""
    staleness: Natural = 0
    """Updates by which the policy that wrote a token may lag behind the one that is trained on it."""
    updates: Count = 1
    """Updates of the policy between two pushes of its weights. null in a preset: one a mini-batch."""
    mini_batch: Count | None = None
    """Prompts an update. null: the recipe's."""
    hybrid: bool = True
    """Rollout engines share the trainer's devices."""
    rollout_nodes: Natural = 0
    """Nodes of rollout engines that have devices of their own."""
    rollout_gpus: Natural = follows("parallel.gpus_per_node")
    """GPUs of such a node."""
    transport: Literal["naive", "host", "nccl"] = "naive"
    """How weights move. naive: within the device. host: through host memory and TCP, everywhere. nccl: needs CuPy."""
    transport_module: Text | None = None
    """The module that registers the transport."""

    @classmethod
    def of_preset(cls, key: str, value: Any) -> Any:
        return computed(updates_of, "train.batch", "train.mini_batch") if (key, value) == ("updates", None) else value


class Correction(Section):
    """For a rollout engine whose probabilities are not the trainer's: verl's presets."""

    name: Text
    """The preset's name."""
    rollout_is: Literal["token", "sequence"] | None
    """Importance weights by token or by trajectory. null: none."""
    rollout_is_threshold: Any = 2.0
    """Highest weight; "0.5_5.0": outside both bounds it is 0."""
    rollout_rs: Text | None
    """Statistic by which tokens or trajectories are rejected. null: none."""
    rollout_rs_threshold: Any
    """Bounds of that statistic, one number or lowest_highest."""
    log_probs_every: Count = 1
    """Steps from one pass for the trainer's own log-probabilities, which shows the mismatch and the entropy, to the
    next."""
