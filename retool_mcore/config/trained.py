"""What an evaluation takes over from the run whose policy it evaluates, so that a policy is measured as it was trained.

RL's configuration of the run counts, before RL began that of SFT. Whatever the command line sets stays as it is set.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from retool_mcore.errors import UserError

# Words for the policies of a run that eval and export know, and each one's link in the run's folder.
STAGE_POLICIES = {"sft": "sft/policy", "rl": "rl/policy", "sft-best": "sft/policy_best", "rl-best": "rl/policy_best"}

# Of a recipe what shapes an episode or its grade; the rest is of training, and `retool eval` has no such keys.
RECIPE = (
    "name", "reward", "right_from", "answer", "decimals",
    "max_turns", "after_last_call", "temperature", "max_observation_chars", "error_lines",
)  # fmt: skip
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
_MISSING = object()
_REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")


def keep_episode_keys(config: DictConfig, kept: Collection[str] = RECIPE) -> None:
    """Remove from the group `recipe`, in place, all but `kept`: what only training reads follows keys of its own."""
    for key in [key for key in config.get("recipe", {}) if key not in kept]:
        del config.recipe[key]


def take_over(config: DictConfig, asked: Iterable[str], choices: Mapping[str, str]) -> None:
    """Write the values of the run into `config`, in place, which is not resolved yet.

    asked: dotted keys that the command line sets; a key of TAKEN_OVER that is one of these, or follows one, stays.
    choices: the groups' choices of the command line. Raises UserError for a configuration of the run that is broken.
    """
    if (found := _trained(config)) is None:
        return
    trained = found[1]
    groups = [group for group in GROUPS if group in choices and choices[group] != _at(trained, f"{group}.name")]
    keys = [*asked, *groups]
    for key in TAKEN_OVER:
        value = _at(trained, key)
        absent = value is _MISSING or OmegaConf.select(config, key, default=_MISSING) is _MISSING
        if absent or _is_datas(config, trained, key):
            continue
        if not any(_touches(word, source) for source in _sources(config, key) for word in keys):
            OmegaConf.update(config, key, value, merge=False)


def report(config: DictConfig) -> str:
    """One line: whose settings a resolved evaluation has, and which of them it changes; "" where there is no run's."""
    if (found := _trained(config)) is None:
        return ""
    path, trained = found
    answers = [value for key in ("data.answer", "recipe.answer") if (value := _at(trained, key)) is not _MISSING]
    pairs = {key: (_at(trained, key), key) for key in TAKEN_OVER}
    pairs["recipe.answer"] = (answers[0] if answers else _MISSING, "answer")
    pairs["recipe.decimals"] = (_at(trained, "recipe.decimals"), "decimals")
    pairs["rollout.temperature"] = (_at(trained, "rollout.temperature"), "temperature")
    changed = []
    for before, key in pairs.values():
        now = _plain(OmegaConf.select(config, key, default=_MISSING))
        if _MISSING not in (before, now) and now != before:
            changed.append(f"{key}={_shown(now)} (trained with {_shown(before)})")
    return f"settings of {path}" + (f", changed: {', '.join(changed)}" if changed else "")


def _trained(config: DictConfig) -> tuple[Path, dict] | None:
    """(file, content) of the configuration that the policy's run trained with; None: it is no run's policy."""
    try:
        run, policy = Path(str(config.run_dir)), str(config.policy)
    except OmegaConfBaseException:
        return None  # what is wrong is reported where the configuration is resolved
    inside = policy in ("init", *STAGE_POLICIES) or Path(policy).resolve().is_relative_to(run.resolve())
    path = next((file for stage in ("rl", "sft") if (file := run / stage / "config.yaml").is_file()), None)
    if not inside or path is None:
        return None
    try:
        return path, OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        said = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read ({said}): restore it, or take a new name=.") from None


def _is_datas(config: DictConfig, trained: Mapping, key: str) -> bool:
    """Whether other data than the run's decide about this key: a data set brings its tools, and may bring a format."""
    same = _at(trained, "data.name") == OmegaConf.select(config, "data.name")
    return not same and (key in TOOLBOX or (key == "rollout.format" and "format" in config.data))


def _sources(config: DictConfig, key: str) -> Iterator[str]:
    """`key`, and every key that its value follows."""
    seen, left = set(), [key]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        yield name
        section, _, last = name.rpartition(".")
        parent = OmegaConf.select(config, section, default=None)
        node = parent._get_node(last) if isinstance(parent, DictConfig) else None
        text = str(node._value()) if node is not None else ""
        left += _REFERENCE.findall(text) if "${" in text else []


def _touches(asked: str, key: str) -> bool:
    return asked == key or key.startswith(f"{asked}.") or asked.startswith(f"{key}.")


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return _MISSING
        config = config[part]
    return config


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 and "\n" not in text else f"{' '.join(text[:30].split())}..."
