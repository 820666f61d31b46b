"""verl's own configuration, read from its installed folder without importing the package, under our values."""

import functools
import importlib.util
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from retool_mcore.config import overrides as ov
from retool_mcore.config.defaults import MISSING, at
from retool_mcore.config.models.data import check_floor
from retool_mcore.config.models.section import validate
from retool_mcore.config.to_verl import FOLLOWING
from retool_mcore.errors import UserError

# verl's packaged configuration of each stage: file and group choices (verl/trainer/{sft_trainer,main_ppo}.py).
VERL_BASE = {
    "sft": ("sft_trainer_engine", ["engine=megatron", "optim=megatron"]),
    "export": ("sft_trainer_engine", ["engine=megatron", "optim=megatron"]),
    "rl": ("ppo_trainer", ["model_engine=megatron"]),
}
# Sections of verl's configuration that go to another library, or that verl reads with .get: any key may stand there.
VERL_FREE = (
    "*.override_transformer_config",
    "*.override_config",
    "*.override_ddp_config",
    "*.override_mcore_model_config",
    "*.override_optimizer_config",
    "*.mbridge_config",
    "*.engine_kwargs",
    "*.apply_chat_template_kwargs",
    "*.mm_processor_kwargs",
    "*.sampler_kwargs",
    "ray_kwargs.ray_init",
    "data.format",  # ours, read by our SFT data set
    "data.predict_observations",
    "critic.ppo_infer_max_token_len_per_gpu",  # a field of CriticConfig (workers/config/critic.py), read with .get
    "algorithm.rollout_correction.rollout_is_threshold",  # a number, or two as a word; verl's default is a number
    "*.rollout.enable_sleep_mode",  # a field of RolloutConfig (workers/config/rollout.py) that verl's YAML leaves out
)
# Values of verl that we depend on.
_FIXED: dict[str, Any] = {
    "actor_rollout_ref.rollout.name": Literal["vllm"],
    "actor_rollout_ref.actor.checkpoint.async_save": Literal[False],
    "critic.checkpoint.async_save": Literal[False],
}


@contextmanager
def _hydra(folder: Path) -> Iterator[None]:
    """Hydra over `folder`; whatever Hydra state the process had is back afterwards."""
    state = GlobalHydra.instance()
    outer, state.hydra = state.hydra, None
    try:
        with hydra.initialize_config_dir(str(folder), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


@functools.cache
def verl_defaults(stage: str) -> DictConfig:
    """verl's own configuration for the stage, its interpolations unresolved. Never change it in place."""
    spec = importlib.util.find_spec("verl")  # of a top-level name: finds the folder, imports nothing
    if spec is None or not spec.submodule_search_locations:
        raise UserError("verl is not installed in this environment: run ./launch/setup.sh.")
    name, groups = VERL_BASE[stage]
    with _hydra(Path(spec.submodule_search_locations[0]) / "trainer" / "config"):
        config = hydra.compose(name, groups)
    OmegaConf.set_struct(config, False)
    return config


def check_override(stage: str, item: ov.Value) -> list[tuple[str, Any]]:
    """(key below `verl`, value) of each leaf of an override `verl.KEY=VALUE`. Raises UserError for one that verl does
    not have, of another type, or in a section that is one of ours."""
    key = item.key.removeprefix("verl").removeprefix(".")
    ov.refuse_forced(ov.Value(key, item.value, item.text, item.forced), VERL_FREE, "verl.")
    if not key and not isinstance(item.value, Mapping):
        raise UserError("verl is a section: set its keys one by one, as in verl.trainer.save_freq=5.")
    leaves = list(ov.leaves(item.value, key))
    for leaf, value in leaves:
        ov.check(leaf, value, verl_defaults(stage), VERL_FREE, "verl.")
        for section, ours in FOLLOWING.items():
            if fnmatchcase(leaf, f"{section}.*"):
                raise UserError(f"verl.{leaf} lies in a section that follows ${{{ours}}}: set it there.")
    return leaves


def over_defaults(stage: str, ours: dict[str, Any]) -> DictConfig:
    """verl's complete configuration of a stage. Raises UserError for a key of ours that verl does not have."""
    for key, value in ov.leaves(ours):
        ov.check(key, value, verl_defaults(stage), VERL_FREE, "verl.")
    # Merged before verl's interpolations are resolved: many of its values follow others.
    copied = pickle.loads(pickle.dumps(verl_defaults(stage)))  # in a third of deepcopy's time
    merged = OmegaConf.unsafe_merge(copied, ours)
    try:
        OmegaConf.resolve(merged)
    except OmegaConfBaseException as error:
        raise UserError(f"verl's configuration cannot be worked out: {str(error).splitlines()[0]}") from error
    return merged


def check_verl(verl: Mapping[str, Any], loggers: list[str] | None) -> None:
    """Refuse values of verl (plain, complete) that cannot work. Raises UserError."""
    for key, kind in _FIXED.items():
        if (value := at(verl, key)) is not MISSING:  # no stage has all
            validate(kind, value, f"verl.{key}")
    logger = at(verl, "trainer.logger")
    if logger is not MISSING and loggers and logger != [*loggers, "file"]:
        raise UserError(f"verl.trainer.logger={logger} follows train.loggers: set that.")
    for place in ("optim", "actor_rollout_ref.actor.optim", "critic.optim"):
        if (optimizer := at(verl, place)) is not MISSING:
            _check_optimizer(f"verl.{place}", optimizer)


def _check_optimizer(place: str, optimizer: Mapping[str, Any]) -> None:
    """Check what Megatron's schedule of the learning rate asserts (core/optimizer_param_scheduler.py)."""
    if not {"lr_decay_style", "lr_wsd_decay_steps"} <= optimizer.keys():  # before verl's defaults are there
        return
    check_floor(place, optimizer["lr"], optimizer["min_lr"])
    if optimizer["lr_decay_style"] == "WSD" and not optimizer["lr_wsd_decay_steps"]:
        raise UserError(
            f"the schedule WSD needs the number of steps in which the rate falls: add {place}.lr_wsd_decay_steps=STEPS."
        )
