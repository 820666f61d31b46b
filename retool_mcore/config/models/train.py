"""The section `train` of the cold start and of RL, and what watches RL: alarms and traces."""

from typing import Any, Literal

from pydantic import model_validator

from retool_mcore.config.defaults import MISSING, computed, follows
from retool_mcore.config.kinds import (
    AboveOne,
    Best,
    Count,
    Every,
    Group,
    Loggers,
    Natural,
    Norms,
    NotNegative,
    PartialShare,
    Positive,
    PositiveShare,
    Rate,
    Reply,
    Schedule,
    Sets,
    Share,
)
from retool_mcore.config.models.data import check_floor
from retool_mcore.config.models.section import Section
from retool_mcore.errors import UserError


def first_given(value: Any, otherwise: Any) -> Any:
    """`value`, or `otherwise` where it is null."""
    return otherwise if value in (None, MISSING) else value


def accuracy_if_validated(eval_every: int) -> str | None:
    return "val/accuracy" if eval_every > 0 else None


def loss_if_validated(eval_every: int) -> str | None:
    return "val/loss" if eval_every > 0 else None


def lowest(*values: float) -> float:
    return min(values)


class Train(Section):
    """What the cold start and RL have in common."""

    save_minutes: Positive | None = 60
    """A step is also saved once so many minutes have passed since the last save, or so long that saving takes 5 % of
    the time. null: never."""
    keep_checkpoints: Count = 2
    """Checkpoints kept: the last ones."""
    loggers: Loggers = ["console", "tensorboard"]
    """Also wandb (WANDB_MODE=offline without a network) and mlflow: docs/viewing.md."""

    def check_best(self, *, rl: bool, best: str | None, eval_every: int, patience: int | None = None) -> None:
        """Whether the metric that chooses a checkpoint is one that the stage logs."""
        if eval_every < 1 and (patience or (best and best.startswith("val"))):
            what = f"stop_after_worse={patience} counts validations"
            what = what if patience else f"keep_best={best} is of a validation"
            raise UserError(
                f"train.{what}, which train.eval_every={eval_every} turns off: set one of the two, or it to null."
            )
        if best and best.startswith("val/evaluation/"):
            raise UserError(
                f"train.keep_best={best} would choose a checkpoint by the problems that are reported: set it to "
                "val/accuracy, the held-back problems'."
            )
        if best and (best.startswith(("val/", "train/")) and best.endswith("/loss")) == rl:
            stage, other, fitting = ("RL", "SFT", "val/accuracy") if rl else ("SFT", "RL", "val/loss")
            raise UserError(
                f"train.keep_best={best} is a metric of {other}, which {stage} does not log: set it to {fitting}."
            )


def check_warmup(warmup_steps: int, steps: int | None) -> None:
    if steps and warmup_steps >= steps:
        raise UserError(f"train.warmup_steps={warmup_steps} must be below the run's {steps} steps.")


class SftTrain(Train):
    """The training of `retool sft`. Its defaults are the data set's (data.sft)."""

    batch: Count = follows("data.sft.batch")
    """Sequences an optimizer step."""
    steps: Count | None = follows("data.sft.steps")
    """Steps of the run. null: epochs decide."""
    epochs: Count = follows("data.sft.epochs")
    """Passes over the traces."""
    lr: Rate = follows("data.sft.lr")
    """AdamW's learning rate."""
    min_lr: PartialShare = computed(lowest, "data.sft.min_lr", "train.lr")
    """Where the schedule ends; a lower train.lr takes it along."""
    schedule: Schedule = follows("data.sft.schedule")
    """How the learning rate falls."""
    warmup_steps: Natural = follows("data.sft.warmup_steps")
    """Steps in which the learning rate rises."""
    weight_decay: NotNegative = 0.01
    """AdamW's weight decay."""
    max_length: Count = follows("data.sft.max_length")
    """Longest sequence in tokens."""
    save_every: Every = follows("data.sft.save_every")
    """Steps between checkpoints; -1: only the last."""
    eval_every: Every = follows("data.sft.eval_every")
    """Steps between validations; -1: none."""
    keep_best: Best | None = computed(loss_if_validated, "train.eval_every")
    """The checkpoint with the best value of this metric stays too, as policy sft-best. null: none, as without
    validation."""
    best_is: Literal["highest", "lowest"] = "lowest"
    """highest or lowest: which value of keep_best is the best."""

    @model_validator(mode="after")
    def _relations(self) -> "SftTrain":
        check_warmup(self.warmup_steps, self.steps)
        check_floor("train", self.lr, self.min_lr)
        self.check_best(rl=False, best=self.keep_best, eval_every=self.eval_every)
        save, every = self.save_every, self.eval_every
        if (self.keep_best or "").startswith("val/") and save > 0 and save % every and every % save:
            raise UserError(
                f"train.keep_best={self.keep_best} chooses among steps that are saved and validated, and "
                f"train.save_every={save} and train.eval_every={every} rarely meet: let one be a multiple of the "
                "other, or set train.keep_best=null."
            )
        return self


class Evaluation(Section):
    """How the problems of data.validation_files are sampled; the community's ReTool run: mean, best and majority of
    30."""

    samples: Count = 30
    """Trajectories a problem."""
    temperature: Positive = 1.0
    """Their temperature."""
    top_p: PositiveShare = 0.6
    """Their top_p."""


class RlTrain(Train):
    """The training of `retool rl`."""

    batch: Count = follows("recipe.batch")
    """Prompts a step; verl's train_batch_size counts prompts, not trajectories."""
    n: Group = follows("recipe.n")
    """Trajectories a prompt: the group."""
    mini_batch: Count = computed(first_given, "pipeline.mini_batch", "recipe.mini_batch")
    """Prompts an optimizer step."""
    steps: Count | None = follows("data.rl.steps")
    """Steps of the run."""
    lr: Rate = follows("recipe.lr")
    """AdamW's learning rate."""
    warmup_steps: Natural = follows("data.rl.warmup_steps")
    """Steps in which the learning rate rises; it is constant then."""
    weight_decay: NotNegative = follows("data.rl.weight_decay")
    """AdamW's weight decay."""
    save_every: Every = follows("data.rl.save_every")
    """Steps between checkpoints; -1: only the last."""
    eval_every: Every = follows("data.rl.eval_every")
    """Steps between validations on data.held_back_files; the last step is one too. -1: none."""
    eval_samples: Count = 16
    """Trajectories a problem then: val/accuracy is mean@16."""
    eval_before: bool = False
    """true: also before the first step, as step 0."""
    eval_sets: Sets = ["held_back"]
    """Also evaluation: data.validation_files, which are reported as val/evaluation/... and never choose a
    checkpoint."""
    evaluation: Evaluation
    eval_share: Positive = 0.25
    """Most that validation may generate, as a share of the trajectories trained on; more is refused."""
    stop_after_worse: Count | None = None
    """End the stage after so many validations in a row that are not better by more than a standard error. null:
    train.steps decides."""
    keep_best: Best | None = computed(accuracy_if_validated, "train.eval_every")
    """The checkpoint with the best value of this metric stays too, as policy rl-best. null: none, as without
    validation (reward/accuracy is the policy's before the step, on what that step trained)."""
    best_is: Literal["highest", "lowest"] = "highest"
    """highest or lowest: which value of keep_best is the best."""
    thin_sft: bool = False
    """true: once RL has a whole checkpoint of its own, the optimizer's state goes from this run's SFT checkpoints, six
    sevenths of them; their policies stay, for RL, eval and export, and SFT cannot be resumed."""
    verify_push_every: Natural = 1
    """Pushes of the weights from one that is compared bit by bit in the engines to the next. 0: an attempt's first
    only. It takes 0.09 to 0.15 s for 15 GB (docs/measured/rollout.md), reported as push/verify_seconds."""
    text_every: Count | None = 5
    """Steps between trajectories in TensorBoard's text tab and in W&B's table. null: none."""
    text_samples: Natural = 3
    """Trajectories shown then, from the lowest to the highest reward."""
    keep_trajectory_bytes: Natural = 2_000_000_000
    """The oldest steps of RUN/rl/trajectories are removed above this size."""

    @model_validator(mode="after")
    def _relations(self) -> "RlTrain":
        if self.batch % self.mini_batch:
            raise UserError(
                f"train.batch={self.batch} is not a multiple of train.mini_batch={self.mini_batch} (both count "
                "prompts): change one of them, here or in data.rl."
            )
        if self.steps is None:
            raise UserError("train.steps=null: RL has no epochs to end with, so give the number of its steps.")
        check_warmup(self.warmup_steps, self.steps)
        self.check_best(rl=True, best=self.keep_best, eval_every=self.eval_every, patience=self.stop_after_worse)
        return self


class Alarm(Section):
    """A metric that is out of its bounds, and the answer."""

    answer: Reply = "tell"
    """ignore, tell (no more than that), skip (leave the update out), back (to the last checkpoint, on other prompts
    with other seeds) or stop."""
    in_a_row: Count = 1
    """Steps with the alarm after which `then` is the answer."""
    then: Reply = "tell"
    """The answer to so many alarms in a row."""


class NanAlarm(Alarm):
    """A mini-batch's gradient norm is NaN or infinite. All answers but tell and ignore keep it from the weights."""

    answer: Reply = "skip"
    in_a_row: Count = 3
    then: Reply = "back"


class GradientNormAlarm(Alarm):
    """A mini-batch's norm before clipping, compared with the median of those before it."""

    in_a_row: Count = 3
    factor: AboveOne = 10.0
    """Times the median above which the alarm is raised."""
    window: Norms = 64
    """Optimizer steps that make the median; a new attempt begins it anew."""


class EntropyAlarm(Alarm):
    """The policy's entropy, compared with that of the run's first step."""

    share: Share = 0.1
    """Share of it below which the entropy has collapsed."""


class MismatchAlarm(Alarm):
    """KL from the rollout engine's policy to the trainer's, mean over the batch's tokens (mismatch/kl)."""

    bound: Positive = 0.01
    """verl's bound of one trajectory's mean in its k3 rejection."""


class RewardAlarm(Alarm):
    """The training reward rises and the accuracy on held-back problems does not (eval_every=-1 measures none)."""

    # Known only after the step's weights are saved and measured: nothing is left to skip or to go back to.
    answer: Literal["ignore", "tell", "stop"] = "tell"
    then: Literal["ignore", "tell", "stop"] = "tell"
    validations: Count = 3
    """Validations over which both are compared."""
    sigmas: Positive = 3.0
    """Standard deviations of the reward's noise that a rise must exceed."""


class Alarms(Section):
    """Metrics out of their bounds: a line in the log and in RUN/rl/alarms.jsonl, the metric alarm/NAME, and an
    answer."""

    backs: Natural = 3
    """Times that a run goes back; at the next it stops."""
    nan: NanAlarm
    gradient_norm: GradientNormAlarm
    entropy: EntropyAlarm
    mismatch: MismatchAlarm
    reward: RewardAlarm


class Trace(Section):
    """Spans of episodes, turns, tool calls and rewards."""

    backend: Literal["none", "otlp"] = "none"
    """otlp: to the receiver that OTEL_EXPORTER_OTLP_ENDPOINT names (docs/viewing.md)."""
    prompts: Count | None = 1
    """Prompts of a step whose whole group is traced, the first ones. null: all."""
    text: bool = False
    """Send prompts, responses, programs and outputs, too."""
