"""The typed configuration: one class a stage. A field has its type, default, docstring and relations in one place."""

import re
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from retool_mcore.config.benchmarks import Benchmark
from retool_mcore.config.defaults import MISSING, computed, follows
from retool_mcore.config.files import absolute
from retool_mcore.config.kinds import Answer, Count, Name, Natural, NotNegative, Positive, PositiveShare, Text
from retool_mcore.config.models.data import Data
from retool_mcore.config.models.environment import Environment
from retool_mcore.config.models.own_files import own_files
from retool_mcore.config.models.parallel import Parallel
from retool_mcore.config.models.recipe import Correction, EpisodeRecipe, Pipeline, PreparedRecipe, Recipe
from retool_mcore.config.models.run import Model, RecipeRollout, Rollout, Sandbox, Toolbox, TrainingRollout, run_folder
from retool_mcore.config.models.section import Section
from retool_mcore.config.models.train import Alarms, RlTrain, SftTrain, Trace
from retool_mcore.errors import UserError

# Words for the policies of a run that eval and export know, and each one's link in the run's folder.
STAGE_POLICIES = {"sft": "sft/policy", "rl": "rl/policy", "sft-best": "sft/policy_best", "rl-best": "rl/policy_best"}
_CHECKPOINT = re.compile(r"global_step_\d+")


def policy_path(policy: str, init: str, run_dir: str) -> str:
    """The Hugging Face folder of a policy: `init` is the model before SFT, STAGE_POLICIES are what the stages made.

    A stage links its last whole checkpoint there, and its best (state/checkpoints.py). Any other is a path itself.
    """
    return ({"init": init} | {word: f"{run_dir}/{link}" for word, link in STAGE_POLICIES.items()}).get(policy, policy)


def sft_policy(run_dir: str) -> str:
    return f"{run_dir}/{STAGE_POLICIES['sft']}"


def export_folder(run_dir: str) -> str:
    return f"{run_dir}/export/policy"


def is_folder(model: str) -> bool:
    return model == "folder"


def first_policy(model: str) -> str:
    return "init" if is_folder(model) else "rl"


def default_label(policy: str, files: Any = ()) -> str:
    """Name of an evaluation's result folder: its policy and, of problems that it reads itself, their files' names.

    A policy of the run is its word, which no folder takes: of a folder it is the name, of one in a checkpoint the stage
    and the step.
    """
    name = str(policy)
    if name != "init" and name not in STAGE_POLICIES:
        path = Path(absolute(name))
        step = next((part for part in path.parents if _CHECKPOINT.fullmatch(part.name)), None)
        name = f"{step.parent.parent.name}-{step.name.removeprefix('global_')}" if step else path.name
        name = f"folder-{name}" if name in ("", "init", *STAGE_POLICIES) else name
    return "-".join([name, *(["+".join(files).replace("/", "-")] if files else [])])


def result_label(policy: str, prepare: bool, files: Any, benchmark: str | None) -> str:
    if benchmark is not None:
        return f"{default_label(policy)}-{benchmark}"
    files = own_files("eval", None if files is MISSING else files)
    return default_label(policy, [file.name for file in files] if prepare else [])


def answer_of(data_sets: Any, recipes: str) -> str:
    return recipes if data_sets in (None, MISSING) else data_sets


class Stage(Section):
    """What every stage has. `name` is the run: all its files lie under runs/<name>/."""

    # Group -> its preset where neither the command line nor the data set chooses another.
    groups: ClassVar[dict[str, str]] = {
        "model": "tiny",
        "parallel": "cpu-tp2",
        "toolbox": "code",
        "data": "arithmetic",
        "sandbox": "local",
    }

    model: Model
    parallel: Parallel
    toolbox: Toolbox
    data: Data
    sandbox: Sandbox
    name: Name = "default"
    """Name of the run; `retool eval model=FOLDER` has eval-FOLDER."""
    runs_dir: Text = "runs"
    """Folder of all runs."""
    run_dir: Text = computed(run_folder, "runs_dir", "name")
    """The run's folder, an absolute path."""
    seed: Natural | None = 1
    """Seed of the data's order in SFT and RL, the mini-batches, and every sampled turn."""
    watchdog_minutes: Positive | None = follows("parallel.watchdog_minutes", otherwise=30.0)
    """A phase that stands still for so long (no beat, no output, no bytes of a checkpoint written or read) is a hang:
    dump stacks, stop, fail. Of phases that have ended once in this run: 3 times their longest silence, at least half of
    this; of a start and of the load of a checkpoint at least all of it. null: never."""
    rollout: Rollout


class Doctor(Stage):
    """What this machine has and what is missing."""


class Prepare(Stage):
    """Data sets to parquet in verl's schema, and the tiny model when the run uses it."""

    groups = Stage.groups | {"recipe": "retool"}
    recipe: PreparedRecipe
    """Only its reward, which decides whether every problem needs an answer."""


class Sft(Stage):
    """The cold start: verl's SFT trainer with the Megatron engine."""

    init_from: Text | None = follows("model.path")
    """The model that the training starts from."""
    predict_observations: bool = False
    """true: also learn to predict the interpreter's output (a world-model variant, never ReTool)."""
    train: SftTrain


class Rl(Stage):
    """GRPO, DAPO or PPO with tools in the rollout. verl's V1 trainer, in the mode of `pipeline`: Megatron trains, vLLM
    generates."""

    groups = Stage.groups | {
        "recipe": "retool",
        "pipeline": "sync",
        "correction": "decoupled_token_is",
        "environment": "loop",
    }
    recipe: Recipe
    pipeline: Pipeline
    environment: Environment
    correction: Correction
    rollout: TrainingRollout
    init_from: Text = computed(sft_policy, "run_dir")
    """The SFT result, which must be complete; any Hugging Face folder will do."""
    train: RlTrain
    alarms: Alarms
    trace: Trace

    @model_validator(mode="after")
    def _critic_leaves_steps_to_the_policy(self) -> "Rl":
        warmup, steps = self.recipe.critic.warmup_steps, self.train.steps
        if self.recipe.advantage == "gae" and warmup >= steps:
            raise UserError(
                f"recipe.critic.warmup_steps={warmup} must be below the run's {steps} steps: the policy is trained in "
                "none of them."
            )
        return self


class Eval(Stage):
    """mean@k, best@k and maj@k of a policy, by the rollout's own episodes on vLLM. Of a run's policy the episode's
    settings are those of RUN/rl/config.yaml, else of RUN/sft/config.yaml."""

    groups = Stage.groups | {"recipe": "retool"}
    recipe: EpisodeRecipe
    """Only its limits, reward and answer rules."""
    rollout: RecipeRollout
    prepare: bool = computed(is_folder, "model.name")
    """true: the problems (data.file.eval, or the data set's evaluation sources) are read first, as `retool prepare`
    does; the default of model=FOLDER."""
    policy: Text = computed(first_policy, "model.name")
    """init (before SFT), sft, rl, sft-best, rl-best (train.keep_best) or a Hugging Face folder. rl; with model=FOLDER
    init."""
    policy_path: Text | None = computed(policy_path, "policy", "model.path", "run_dir")
    """The Hugging Face folder of that policy."""
    benchmark: Benchmark | None = None
    """A public benchmark by name: its data, and the official grader of its package (config/benchmarks.py)."""
    label: Text = computed(result_label, "policy", "prepare", "data.file.eval", "benchmark")
    """Name of the result folder under RUN/eval: the policy's word, or its folder's name; with prepare=true also the
    files'."""
    k: Count = follows("data.eval.k")
    """Samples a problem."""
    problems: Count | None = None
    """Problems that are evaluated. null: all."""
    answer: Answer = computed(answer_of, "data.answer", "recipe.answer")
    """Where the final answer stands, as recipe.answer; the data set's rule comes first."""
    decimals: Literal["exact", "rounded"] = follows("recipe.decimals")
    """As recipe.decimals: exact, or rounded as in figures published with math-verify."""
    temperature: NotNegative = follows("rollout.temperature")
    """As the policy was trained; ReTool evaluates at 1.0, too."""
    top_p: PositiveShare = follows("data.eval.top_p")
    """ReTool evaluates with 0.7; the tiny task samples as it trains."""


class Probe(Section):
    """The batch on which exported and trained weights are compared."""

    sequences: Count = 4
    """Sequences."""
    tokens: Count = 48
    """Tokens of each."""


class Export(Stage):
    """A Megatron checkpoint to Hugging Face, checked: HF logits must equal Megatron's on a probe batch."""

    policy: Text = "rl"
    """sft or rl: its last whole checkpoint. sft-best or rl-best: its best (train.keep_best)."""
    policy_path: Text | None = computed(policy_path, "policy", "model.path", "run_dir")
    """The Hugging Face folder of that policy."""
    output: Text = computed(export_folder, "run_dir")
    """The folder that is written."""
    push: Text | None = None
    """org/name: upload the exported folder there, with a model card. The token is that of `hf auth login`, or
    HF_TOKEN."""
    push_private: bool = True
    """A repository that this makes is private."""
    probe: Probe
    max_difference: Positive = Field(1e-3)
    """Largest difference of the log-probabilities, beyond what rounding in the dtype of the model makes of them."""


STAGES: dict[str, type[Stage]] = {
    "prepare": Prepare,
    "sft": Sft,
    "rl": Rl,
    "eval": Eval,
    "export": Export,
    "doctor": Doctor,
}
