"""The section `data`: which problems and traces a run has, and what suits them. Most keys are only some presets'."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from retool_mcore.config.defaults import computed, preset
from retool_mcore.config.kinds import (
    Answer,
    Count,
    Every,
    Interval,
    Natural,
    PartialShare,
    Positive,
    PositiveShare,
    Rate,
    Schedule,
    Share,
    Text,
    Texts,
    Weights,
)
from retool_mcore.config.models.own_files import made_of
from retool_mcore.config.models.section import Section
from retool_mcore.errors import UserError

Format = Literal["text", "hermes", "none"]
Style = Literal["list", "lines"]
Compared = Literal["exact", "loose"]
Files = str | list[str]


class Curriculum(Section):
    """Which problems RL draws (docs/data.md)."""

    by: Literal["problem", "source"] = "problem"
    """problem: each has a pass rate of its own. source: all problems of one data source share one, as the levels of a
    generated task."""
    weights: bool = False
    """true: problems are drawn in proportion to 4 p (1 - p) of the measured pass rate p, 0.1 at least."""
    retire: Count | None = None
    """A problem that its whole group solves so many times in a row is not drawn again. null: it is."""
    pass_rates: Text | None = None
    """The trajectories.jsonl of a `retool eval` on data.train_files: pass rates to begin with."""
    keep: Interval | None = None
    """[low, high]: of the problems in that file only those with such a pass rate are drawn. null: all."""

    @model_validator(mode="after")
    def _keep_needs_pass_rates(self) -> "Curriculum":
        if self.keep is not None and self.pass_rates is None:
            raise UserError(f"data.curriculum.keep={self.keep} is of data.curriculum.pass_rates: give that, too.")
        return self


class MadeRows(Section):
    """Numbers of rows that `retool prepare` makes with traces."""

    sft: Natural = preset()
    """Traces for the cold start."""
    train: Natural = preset()
    """Problems for RL."""
    held_back: Natural = preset()
    """Problems for the validation inside the run."""


class Arithmetic(MadeRows):
    """Numbers of the embedded task: multi-step integer arithmetic."""

    validation: Natural = preset()
    """Problems for `retool eval`."""
    tool_share: Share = preset()
    """Share of the traces that call the interpreter."""
    failed_share: Share = preset()
    """Of those, the share whose first program fails and is put right."""


class Functions(MadeRows):
    """Numbers of the generated function calls, in xLAM's columns."""

    validation: Natural = preset()
    """Problems for `retool eval`."""
    right_share: Share = preset()
    """Share of the traces with right arguments; the others call the right function with wrong arguments."""
    style: Style = preset()
    """How traces write their calls. list: recipe=tool_n1. lines: recipe=toolrl."""


class Calls(MadeRows):
    """Numbers of function calls on functions that training has not seen."""

    test: Natural = preset()
    """Problems for `retool eval`."""
    right_share: Share = preset()
    """Share of the traces with right arguments; the others call the right functions with wrong arguments."""
    style: Style = preset()
    """How traces write their calls. lines: recipe=toolrl. list: recipe=tool_n1."""
    near: Share = preset()
    """Of the three functions too many, the share that has a word of a right one in its name."""
    mix: Weights = preset()
    """Weights of the rows that ask for so many calls."""


class Toolmath(MadeRows):
    """Numbers of integer problems in four families (retool_mcore/data/toolmath.py)."""

    test: Natural = preset()
    """Problems for `retool eval`."""
    code_share: Share = preset()
    """Share of the traces with a program; the others are scratchpads."""
    failed_share: Share = preset()
    """Of the traces with a program, the share where the problem is pasted first, fails, and is put right."""
    mix: Weights = preset()
    """Weights of the problems by family; 0: none. Other families may be added (retool_mcore/data/toolmath.py)."""


class RepoBugs(Section):
    """Numbers of the small repositories with one bug each."""

    train: Natural = preset()
    """Repositories for RL."""
    validation: Natural = preset()
    """Repositories for the validation inside the run."""
    functions: Count = preset()
    """Functions in a repository, one of them with the bug."""


class ReasoningGym(Section):
    """Problems of reasoning-gym's families; another seed draws others."""

    families: list[Any] = preset()
    """Names, or sections {family, name, weight, parameters, levels}."""
    train: Count = preset()
    """Problems for RL."""
    test: Count = preset()
    """Problems for `retool eval`."""
    held_back: Count = preset()
    """Problems for the validation inside the run."""


class Episodes(Section):
    """Episodes of each environment, by the seeds from 0 on."""

    train: Count = preset()
    """For RL."""
    held_back: Count = preset()
    """For the validation inside the run."""
    test: Count = preset()
    """For `retool eval`."""


class DataSource(Section):
    """A published data set. A source that is null is left out, as its files must be."""

    role: Text
    """sft, rl or eval."""
    location: Text | None = preset()
    """null: the hub. Else a local file or folder, e.g. data.sources.dapo_math_17k.location=/shared/dapo.parquet; of
    bfcl also the package bfcl-eval, or the leaderboard's data folder, with possible_answer/ in it."""
    texts: Compared = preset()
    """Texts of right calls: exact, or loose as the Berkeley leaderboard compares them (docs/tools.md)."""


class OwnData(Section):
    """Your own files, folders of them or data sets on the hub, by the names of their columns (docs/data.md)."""

    train: Any = None
    """Problems for RL: a file, a folder or a hub name, or a list of them and of {path, name, weight, question, answer,
    messages, tools, source, keep, subset, split}."""
    eval: Any = None
    """Problems for `retool eval`, given in the same way. null: test_share of train."""
    sft: Any = None
    """Traces for the cold start, given in the same way."""
    question: Text = "question"
    """Column of the question; a.b is the field b of the column a."""
    answer: Text | None = "answer"
    """Column of the answer; of a whole solution, what its last \\boxed{} holds, or what follows ####. null:
    the rows have none (docs/rewards.md)."""
    messages: Text = "messages"
    """Column of a trace: user and assistant, with <code> and <interpreter> in the text or with tool calls."""
    texts: Compared = "exact"
    """Texts of right calls: exact, or loose, without capitals, spaces and `,./-_*^`, as the Berkeley leaderboard
    compares them."""
    tools: Text | None = None
    """Column of a row's own functions, where rows are function calls (docs/data.md). null: they are not."""
    source: Text | None = None
    """Column that names a problem's data source, as family or subject: accuracy is reported by it. null: the file's
    name."""
    keep: Texts = []
    """Further columns that a reward of your own reads, as [difficulty,meta.tests] (docs/rewards.md)."""


class SftData(Section):
    """What suits the cold start on this data set; `train` of `retool sft` follows it."""

    batch: Count = preset()
    """Sequences an optimizer step."""
    steps: Count | None = preset()
    """null: epochs decide."""
    epochs: Count = preset()
    """Passes over the traces."""
    lr: Rate = preset()
    """AdamW's learning rate."""
    min_lr: PartialShare = preset()
    """Where the schedule ends."""
    schedule: Schedule = preset()
    """How the learning rate falls."""
    warmup_steps: Natural = preset()
    """Steps in which the learning rate rises."""
    max_length: Count = preset()
    """Longest sequence in tokens."""
    save_every: Every = preset()
    """Steps between checkpoints."""
    eval_every: Every = preset()
    """Steps between validations."""

    @model_validator(mode="after")
    def _floor(self) -> "SftData":
        check_floor("data.sft", self.lr, self.min_lr)
        return self


def check_floor(section: str, lr: float | None, min_lr: float | None) -> None:
    if min_lr is not None and lr is not None and min_lr > lr:
        raise UserError(f"{section}.min_lr={min_lr:g} exceeds {section}.lr={lr:g}: lower it.")


def part_of_the_batch(parts: int) -> Any:
    """Default of a mini-batch: one of so many equal parts of the batch."""

    def part(batch: int | None) -> int | None:
        if batch and batch % parts:
            raise UserError(f"{batch} is not a multiple of {parts}")
        return batch and batch // parts

    return computed(part, "data.rl.batch")


class RlData(Section):
    """What suits RL on this data set. Its batch, n, mini_batch and lr stand in for the recipe's: a toy of so few
    problems bears no more. null: the recipe's."""

    batch: Count | None = preset()
    """Prompts a step."""
    n: Count | None = preset()
    """Trajectories a prompt."""
    mini_batch: Count | None = preset()
    """Prompts an optimizer step; in a preset also a share of the batch: 1/4 makes four optimizer steps a rollout."""
    steps: Count = preset()
    """Steps of the run."""
    lr: Rate | None = preset()
    """AdamW's learning rate."""
    warmup_steps: Natural = preset()
    """Steps in which the learning rate rises."""
    weight_decay: Annotated[float, Field(ge=0)] = preset()
    """AdamW's weight decay."""
    save_every: Every = preset()
    """Steps between checkpoints."""
    eval_every: Every = preset()
    """Steps between validations; -1: none."""

    @classmethod
    def of_preset(cls, key: str, value: Any) -> Any:
        if key == "mini_batch" and isinstance(value, str) and value.startswith("1/"):
            return part_of_the_batch(int(value.removeprefix("1/")))
        return value


class EvalData(Section):
    """What suits `retool eval` on this data set."""

    k: Count = preset()
    """Samples a problem."""
    top_p: PositiveShare = preset()
    """ReTool evaluates with 0.7; the tiny task samples as it trains."""


class Data(Section):
    """Problems and traces."""

    drop_long_prompts: bool = False
    """true: prompts longer than rollout.max_prompt_tokens are left out of RL and `retool eval`, and counted. false:
    they are refused."""
    curriculum: Curriculum
    name: Text
    """The preset's name."""
    prompt: Text
    """A template's name, or a text of your own with {question} in it, or a .txt file of one."""
    format: Format = preset()
    """rollout.format follows it; hermes: the chat template lists the functions."""
    answer: Answer = preset()
    """Where the final answer stands, for `retool eval`; RL has recipe.answer."""
    environment: Text = preset()
    """The environment of the trajectories."""
    stages: dict[str, Count] = preset()
    """Trajectories at once in each stage of a rollout worker; a full stage holds up the one before."""
    sources: dict[str, DataSource | None] = preset()
    """Published data sets by name."""
    episodes: Episodes = preset()
    train_files: Files = preset(made_of("train", "train.parquet"))
    """Parquet files of the problems for RL. null, here and below: those that `retool prepare` makes of data.file."""
    held_back_files: Files = preset()
    """For the validation inside the run, which chooses rl-best."""
    held_back: Positive = preset()
    """Training problems moved to held_back_files: below 1 a share, from 1 on their number."""
    test_share: PartialShare = preset()
    """Share of the training problems moved to the evaluation where it has no files of its own."""
    validation_files: Files = preset(made_of("eval", "test.parquet"))
    """For `retool eval`: to report, never to choose a checkpoint by."""
    evaluation: Count = preset()
    """Problems in validation_files, for the plan of a run whose data are not prepared here."""
    sft_train_files: Files = preset(made_of("sft", "train.parquet"))
    """Parquet files of the traces for the cold start."""
    sft_validation_files: Files = preset(made_of("sft", "validation.parquet"))
    """Parquet files of the traces that validate the cold start."""
    sft_validation_share: PartialShare = preset()
    """Share of the traces moved to sft_validation_files."""
    max_prompt_tokens: Count = preset()
    """Longest prompt."""
    max_response_tokens: Count = preset()
    """Longest response, observations included."""
    max_observation_tokens: Count = preset()
    """Longest observation; verl's default is 256 characters, cut in the middle."""
    max_turns: Count = preset()
    """Calls in one trajectory."""
    program_timeout_s: Positive = preset()
    """Seconds of one program in the local sandbox: a tiny policy's programs are done at once or never."""
    overlong_buffer: Natural = preset()
    """Tokens before the limit in which a recipe with the overlong punishment lets it grow (DAPO's L_cache)."""
    arithmetic: Arithmetic = preset()
    functions: Functions = preset()
    calls: Calls = preset()
    toolmath: Toolmath = preset()
    repo_bugs: RepoBugs = preset()
    reasoning_gym: ReasoningGym = preset()
    file: OwnData = preset()
    sft: SftData = preset()
    rl: RlData = preset()
    eval: EvalData = preset()
