"""The sections that every stage has: the model, the rollout, the tools and the sandbox."""

from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from retool_mcore.config.defaults import computed, follows, preset
from retool_mcore.config.files import CONFIG_DIR, absolute
from retool_mcore.config.kinds import (
    Count,
    Mebibytes,
    Natural,
    Observation,
    Positive,
    PositiveShare,
    Share,
    Targets,
    Text,
    Texts,
)
from retool_mcore.config.models.section import Section
from retool_mcore.errors import UserError


def template_text(name: str | None) -> str | None:
    """The text of a file of configs/model/templates/ by its name, or of the user's own by its path; of None, None."""
    if name is None:
        return None
    folder = CONFIG_DIR / "model" / "templates"
    for file in (folder / f"{name}.jinja", Path(name).expanduser()):
        if file.is_file():
            return file.read_text(encoding="utf-8")
    known = ", ".join(sorted(file.stem for file in folder.glob("*.jinja")))
    raise UserError(f"model.chat_template={name} is no file: give the path of a Jinja template, or one of {known}")


class Lora(Section):
    """Adapters next to the weights, which stay as they are (docs/models.md). GPU layouts only."""

    rank: Natural = 0
    """Rank of each adapter; 0: none, all weights are trained."""
    alpha: Count = 32
    """An adapter's product counts alpha / rank times."""
    targets: Targets = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    """Which of a layer's four products get an adapter: q, k and v; attention's output; the MLP's gate and up; its
    down."""


class Model(Section):
    """The model that is trained."""

    lora: Lora
    name: Text
    """The preset's name."""
    path: Text | None
    """A Hugging Face folder or a name on the hub. null: none yet, which is enough for `retool prepare`."""
    dtype: Literal["float32", "bfloat16", "float16"] = follows("parallel.dtype", otherwise="float32")
    """Type of the weights in training and rollout. In float32 both agree to 1e-6."""
    make: bool = False
    """true: `retool prepare` writes the model (the embedded tiny one)."""
    init: Literal["checkpoint", "random"] = "checkpoint"
    """random: seeded random weights, no checkpoint is read (benchmarks)."""
    chat_template: Text | None = None
    """A name of configs/model/templates/ or the path of a Jinja template, in place of the tokenizer's own. null: the
    tokenizer's (docs/models.md)."""
    apply_chat_template_kwargs: dict[str, Any] = {}
    """Further arguments of the template, the same in every stage, as {enable_thinking: false}."""


class Rollout(Section):
    """One episode: its format and its limits, in tokens unless the name says otherwise."""

    format: Literal["text", "hermes", "none"] = follows("data.format", otherwise="text")
    """text: <code> and <interpreter> tags (the paper's). hermes: function calls. none: text only, no tool."""
    chat_template: str | None = computed(template_text, "model.chat_template")
    """The text of the file that model.chat_template names. null: the tokenizer's own template."""
    max_prompt_tokens: Count = follows("data.max_prompt_tokens")
    """Longest prompt."""
    max_response_tokens: Count = follows("data.max_response_tokens")
    """Longest response: the policy's tokens and the observations."""
    max_observation_tokens: Observation = follows("data.max_observation_tokens")
    """Longest observation; a longer one keeps its head and its tail."""
    max_observation_chars: Count | None = None
    """Characters kept of an output, from its start. null: only the limit of tokens."""
    error_lines: Count = 10
    """Last lines kept of an error."""
    max_turn_tokens: Count = follows("rollout.max_response_tokens")
    """Longest turn of the policy."""
    max_turns: Count = follows("data.max_turns")
    """Calls to the interpreter in one trajectory."""
    after_last_call: Literal["end", "text"] = "end"
    """What a call beyond max_turns does. end: it ends the trajectory. text: the reply says once that no calls are left,
    and the next call ends the trajectory."""
    sandbox_errors: Share = 0.2
    """Share of a step's trajectories that the sandbox may spoil: their groups are generated again. Above it the run
    stops."""
    temperature: Positive = 1.0
    """Temperature of the training rollouts."""
    top_p: PositiveShare = 1.0
    """Below 1 the importance ratio is biased in training: vLLM renormalises its log-probabilities, the trainer does
    not."""

    @model_validator(mode="after")
    def _response_holds_its_parts(self) -> "Rollout":
        most = f"rollout.max_response_tokens={self.max_response_tokens}"
        if self.max_observation_tokens >= self.max_response_tokens:
            raise UserError(
                f"rollout.max_observation_tokens={self.max_observation_tokens} must be below {most}: one observation "
                "would fill the whole response."
            )
        if self.max_turn_tokens > self.max_response_tokens:
            raise UserError(f"rollout.max_turn_tokens={self.max_turn_tokens} exceeds {most}: lower it.")
        return self


class RecipeRollout(Rollout):
    """The rollout of a stage that has a recipe, which sets some limits."""

    max_turns: Count = follows("recipe.max_turns")
    after_last_call: Literal["end", "text"] = follows("recipe.after_last_call")
    temperature: Positive = follows("recipe.temperature")
    max_observation_chars: Count | None = follows("recipe.max_observation_chars")
    error_lines: Count = follows("recipe.error_lines")


class TrainingRollout(RecipeRollout):
    """The rollout of `retool rl`."""

    live: Count | None = None
    """Trajectories at work at once, in all rollout workers. null: as many as the engines' KV caches hold, by the mean
    length so far."""


class Toolbox(Section):
    """The tools of an episode (docs/tools.md)."""

    use: list[Any]
    """Sections {path, args}: the dotted path of a class of tools, and its arguments."""
    timeout_s: Positive = 30
    """Seconds of one call of a tool; programs have sandbox.timeout_s."""


def _timeout(kind: str, data_sets: Any) -> float:
    return data_sets if kind == "local" and isinstance(data_sets, int | float) else 30.0


def hosts_folder(runs_dir: str) -> str:
    return absolute(f"{runs_dir}/sandbox-hosts")


class Sandbox(Section):
    """Where programs run. The kinds have different keys."""

    kind: Literal["local", "fusion", "pool"]
    """local: on this machine. fusion: a SandboxFusion service. pool: services of `retool sandbox serve`."""
    url: Text = preset()
    """fusion: address of the service's /run_code."""
    hosts: Texts = preset()
    """pool: addresses, as in sandbox.hosts=[http://node1:8080,http://node2:8080]."""
    hosts_from: Text | None = preset(computed(hosts_folder, "runs_dir"))
    """pool: also a file of addresses, or the folder into which services write theirs. null: none."""
    timeout_s: Positive = computed(_timeout, "sandbox.kind", "data.program_timeout_s")
    """Seconds of one program; 30 as in the community's ReTool recipe. The local sandbox has data.program_timeout_s
    where the data set has it."""
    memory_mb: Mebibytes = 1024
    """Memory of one program; of a pool at most what its services were started with."""
    max_output_bytes: Count = preset()
    """Bytes kept of a program's output."""
    workers: Count | None = preset()
    """local: programs at once in each process that runs them. null: the cores that the engines leave
    (planner/derived.py), elsewhere all."""
    preload: Texts = preset()
    """local: packages imported once, before any program; docs/measured/sandbox.md has what they cost and save."""
    min_isolation: Literal["none", "process", "landlock", "namespaces"] = preset()
    """local: refuse to start below this level. process hides neither this machine's files nor the data's answers."""
    concurrency: Count = preset()
    """fusion and pool: runs at once in each rollout worker."""
    patience_s: Positive = preset()
    """fusion and pool: a run that fails is tried again for so many seconds. In an outage that lasts longer, later runs
    are tried again only for seconds."""


def run_folder(runs_dir: str, name: str) -> str:
    return absolute(f"{runs_dir}/{name}")
