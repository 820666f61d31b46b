"""Composes the configuration of one stage: typed classes, presets, the user's overrides, and verl's defaults.

The classes of models/ hold every key of ours with its default, the files of configs/ hold presets, and to_verl.py gives
the stages that run on verl's trainers a section `verl`, laid over verl's own YAML (verl_defaults.py).
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override

from retool_mcore.config import overrides as ov
from retool_mcore.config import presets, trained
from retool_mcore.config.benchmarks import with_benchmark
from retool_mcore.config.defaults import REQUIRED, Default, Values
from retool_mcore.config.files import CONFIG_DIR
from retool_mcore.config.models import STAGES, Stage
from retool_mcore.config.models.section import validate
from retool_mcore.config.to_verl import TRANSLATIONS
from retool_mcore.config.verl_defaults import check_override, check_verl, over_defaults
from retool_mcore.errors import UserError

# Sections in which any key may stand: one that becomes verl's engine section, whose keys are checked there, arguments
# of templates and rewards, and bounds that are one number or two (recipes/correction.py).
FREE = (
    "parallel.megatron",
    "model.apply_chat_template_kwargs",
    "data.toolmath.mix",
    "environment.env",
    "recipe.reward.args",
    "recipe.group_reward.args",
    "correction.rollout_is_threshold",
    "correction.rollout_rs_threshold",
)


def compose(stage: str, overrides: Sequence[str] = (), config_dir: Path = CONFIG_DIR) -> DictConfig:
    """The fully resolved configuration of a stage; `config.verl` is complete, verl's defaults included.

    Args:
        stage: a name of models.STAGES, as in "rl".
        overrides: `recipe=dapo` chooses a preset of `config_dir`, `train.lr=2e-6` and `verl.trainer.save_freq=5` set
            keys.

    Raises UserError for what is wrong in an override or in a preset: unknown key or choice, wrong type, missing value.
    """
    plain, typed, verl_values = resolve(stage, overrides, config_dir)
    config = OmegaConf.create(plain)
    if stage in TRANSLATIONS:
        verl = TRANSLATIONS[stage](typed)
        for key, value in verl_values:
            ov.store(verl, key, value)
        with flag_override(config, "no_deepcopy_set_nodes", True):  # a third of the time otherwise
            config.verl = over_defaults(stage, keep_environment(verl))
        check_verl(OmegaConf.to_container(config.verl), plain.get("train", {}).get("loggers"))
    return config


def resolve(
    stage: str, overrides: Sequence[str] = (), config_dir: Path = CONFIG_DIR
) -> tuple[dict[str, Any], Stage, list[tuple[str, Any]]]:
    """Our own sections of a stage's configuration as nested dicts and as its typed class, and the overrides of verl's
    keys. Raises UserError as `compose` does."""
    if stage not in STAGES:
        raise UserError(f"there is no stage {stage}; the stages are: {', '.join(STAGES)}.")
    kind = STAGES[stage]
    words = with_benchmark(overrides) if stage == "eval" else overrides
    choices, values = ov.parse(words, Path(config_dir))
    tree = presets.tree_of(kind, choices, Path(config_dir))
    ours = [value for value in values if value.key != "verl" and not value.key.startswith("verl.")]
    asked = [value.key for value in ours]
    ov.apply(tree, ours, _reference(tree), FREE)
    if stage == "eval":
        if tree["model"]["name"] == "folder" and "name" not in asked:
            tree["name"] = "eval-" + re.sub(r"[^\w.+-]+", "-", Path(str(tree["model"]["path"])).name)
        trained.take_over(tree, asked, choices)
    verl_values = [value for value in values if value not in ours]
    if verl_values and stage not in TRANSLATIONS:
        raise ov.Unknown(f"{verl_values[0].key}: the stage {stage} has no verl section.", verl_values[0].key)
    checked = [pair for value in verl_values for pair in check_override(stage, value)]
    if missing := [key for key, value in ov.leaves(tree) if value == REQUIRED]:
        raise UserError(f"no value for {', '.join(missing)}: give it as an override, KEY=VALUE.")
    known = Values(tree)
    plain = known.of(tree, "")
    return plain, validate(kind, plain, first=asked), [(key, known.of(value, f"verl.{key}")) for key, value in checked]


def check(stage: str, plain: Mapping[str, Any]) -> None:
    """Refuse a resolved configuration that holds a value outside its range; keys may be missing, as in the stored one
    of an older run. Raises UserError."""
    validate(STAGES[stage], plain, partial=True)
    if "verl" in plain:
        check_verl(plain["verl"], plain.get("train", {}).get("loggers"))


def config_hash(config: DictConfig) -> str:
    """sha256 (hex) of the resolved configuration, independent of the order of keys and of the place of our modules."""
    return hashlib.sha256(OmegaConf.to_yaml(config, sort_keys=True).encode()).hexdigest()


def keep_environment(value: Any) -> Any:
    """`value` (plain) with every `${oc.env:NAME}` escaped: resolving it once leaves them as they were."""
    return json.loads(json.dumps(value).replace("${oc.env:", r"\\${oc.env:"))


def _reference(tree: Mapping[str, Any]) -> DictConfig:
    """The tree's values before any override, with which an override's type is compared; null where a value cannot be
    worked out, which an override may mend."""
    known = Values(tree)

    def of(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            return {name: of(entry, f"{key}.{name}".lstrip(".")) for name, entry in value.items()}
        if isinstance(value, Default) or (isinstance(value, str) and "${" in value):
            try:
                return known.of(value, key)
            except UserError:
                return None
        return value

    return OmegaConf.create(of(tree, ""))
