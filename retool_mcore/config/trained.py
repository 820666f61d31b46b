"""Settings that an evaluation takes over from the run of its policy, which is thus measured as it was trained.

RL's configuration of the run counts; before RL began, that of SFT. A value set on the command line stays.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from retool_mcore.config.defaults import MISSING, Values, at
from retool_mcore.config.models import STAGE_POLICIES
from retool_mcore.config.overrides import store
from retool_mcore.errors import UserError

ROLLOUT = (
    "format", "chat_template", "max_prompt_tokens", "max_response_tokens", "max_observation_tokens",
    "max_observation_chars", "error_lines", "max_turn_tokens", "max_turns", "after_last_call", "temperature",
)  # fmt: skip
SANDBOX = ("timeout_s", "memory_mb", "max_output_bytes")
TOOLBOX = ("toolbox.use", "toolbox.timeout_s")
TAKEN_OVER = (
    *(f"rollout.{name}" for name in ROLLOUT),
    *(f"sandbox.{name}" for name in SANDBOX),
    *TOOLBOX,
    "recipe.name",
    "recipe.reward",
    "recipe.right_from",
    "recipe.answer",
    "recipe.decimals",
    "model.apply_chat_template_kwargs",
)
GROUPS = ("recipe", "toolbox")  # a choice of one of these on the command line is meant for its keys above


def take_over(tree: dict[str, Any], asked: Iterable[str], choices: Mapping[str, str]) -> None:
    """Write the values of the run into `tree`, in place, whose defaults are not worked out yet.

    asked: dotted keys that the command line sets; a key of TAKEN_OVER that is one of these, or follows one, stays.
    choices: the groups' choices of the command line. Raises UserError for a configuration of the run that is broken.
    """
    known = Values(tree)
    try:
        run_dir, policy = known.value("run_dir"), known.value("policy")
    except UserError:
        return  # what is wrong is reported where the configuration is resolved
    if (run_and_config := _trained(run_dir, policy)) is None:
        return
    trained = run_and_config[1]
    groups = [group for group in GROUPS if group in choices and choices[group] != at(trained, f"{group}.name")]
    keys = [*asked, *groups]
    for key in TAKEN_OVER:
        value = at(trained, key)
        absent = MISSING in (value, known.raw(key))
        if absent or _is_datas(tree, trained, key):
            continue
        if not any(_touches(word, source) for source in known.sources(key) for word in keys):
            store(tree, key, value)


def report(config: DictConfig) -> str:
    """One line: whose settings a resolved evaluation has, and which of them it changes; "" where there is no run's."""
    try:
        source = _trained(config.run_dir, config.policy)
    except OmegaConfBaseException:  # a variable of the environment that is not set
        source = None
    if source is None:
        return ""
    path, trained = source
    answers = [value for key in ("data.answer", "recipe.answer") if (value := at(trained, key)) is not MISSING]
    pairs = {key: (at(trained, key), key) for key in TAKEN_OVER}
    pairs["recipe.answer"] = (answers[0] if answers else MISSING, "answer")
    pairs["recipe.decimals"] = (at(trained, "recipe.decimals"), "decimals")
    pairs["rollout.temperature"] = (at(trained, "rollout.temperature"), "temperature")
    changed = []
    for before, key in pairs.values():
        now = _plain(OmegaConf.select(config, key, default=MISSING))
        if MISSING not in (before, now) and now != before:
            changed.append(f"{key}={_shown(now)} (trained with {_shown(before)})")
    return f"settings of {path}" + (f", changed: {', '.join(changed)}" if changed else "")


def _trained(run_dir: str, policy: str) -> tuple[Path, dict[str, Any]] | None:
    """(file, content) of the configuration that the policy's run trained with; None: it is no run's policy."""
    run = Path(run_dir)
    inside = policy in ("init", *STAGE_POLICIES) or Path(policy).resolve().is_relative_to(run.resolve())
    path = next((file for stage in ("rl", "sft") if (file := run / stage / "config.yaml").is_file()), None)
    if not inside or path is None:
        return None
    try:
        return path, OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read ({reason}): restore it, or take a new name=.") from None


def _is_datas(tree: Mapping[str, Any], trained: Mapping[str, Any], key: str) -> bool:
    """Whether other data than the run's decide about this key: a data set brings its tools, and may bring a format."""
    same = at(trained, "data.name") == tree["data"]["name"]
    return not same and (key in TOOLBOX or (key == "rollout.format" and "format" in tree["data"]))


def _touches(asked: str, key: str) -> bool:
    return asked == key or key.startswith(f"{asked}.") or asked.startswith(f"{key}.")


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 and "\n" not in text else f"{' '.join(text[:30].split())}..."
