"""Composes the configuration of one stage: our YAML files, the user's overrides, and verl's packaged defaults.

The files under configs/ hold our own sections at the top level and, for the stages that run on verl's trainers, a
section `verl` with only the values that differ from verl's defaults. verl's YAML is read from its installed folder
without importing the package (that takes seconds), merged under our values, and every key of ours must exist there.
"""

import functools
import hashlib
import importlib.util
import json
import os
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from retool_mcore.config import overrides as ov
from retool_mcore.config import trained
from retool_mcore.config.trained import STAGE_POLICIES
from retool_mcore.errors import UserError

# At the top of a checkout; an installed wheel has them inside the package (setup.py).
CONFIG_DIR = Path(__file__).parents[2] / "configs"
if not (CONFIG_DIR / "base.yaml").is_file():
    CONFIG_DIR = Path(__file__).parents[1] / "configs"

_CHECKPOINT = re.compile(r"global_step_\d+")
# verl's packaged configuration of each stage: file and group choices (verl/trainer/{sft_trainer,main_ppo}.py).
VERL_BASE = {
    "sft": ("sft_trainer_engine", ["engine=megatron", "optim=megatron"]),
    "export": ("sft_trainer_engine", ["engine=megatron", "optim=megatron"]),
    "rl": ("ppo_trainer", ["model_engine=megatron"]),
}
# Sections in which any key may stand: one that becomes verl's engine section, whose keys are checked there, arguments
# of templates and rewards, and bounds that are one number or two (recipes/correction.py).
FREE = (
    "parallel.megatron",
    "model.apply_chat_template_kwargs",
    "data.toolmath.mix",
    "recipe.reward.args",
    "recipe.group_reward.args",
    "correction.rollout_is_threshold",
    "correction.rollout_rs_threshold",
)
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


def compose(stage: str, overrides: Sequence[str] = (), config_dir: Path = CONFIG_DIR) -> DictConfig:
    """The fully resolved configuration of a stage; `config.verl` is complete, verl's defaults included.

    Args:
        stage: name of a file in `config_dir`, as in "rl".
        overrides: Hydra style: `data.train_batch_size=8`, `recipe=dapo`, `verl.trainer.save_freq=5`.

    Raises UserError for what is wrong in an override or in the files: unknown key or choice, wrong type, missing value.
    """
    config_dir = Path(config_dir).resolve()
    if not (config_dir / f"{stage}.yaml").is_file():
        raise UserError(f"no configuration {stage}.yaml in {config_dir}: reinstall, or run from a whole checkout.")
    register_resolvers()
    choices, values = ov.parse(overrides, config_dir)
    config = _compose_files(stage, choices, config_dir)
    ours = [value for value in values if value.key != "verl" and not value.key.startswith("verl.")]
    ov.apply(config, ours, FREE)
    if stage == "eval":
        trained.take_over(config, [value.key for value in ours], choices)
    verl_values = [value for value in values if value not in ours]
    if verl_values and "verl" not in config:
        raise ov.Unknown(f"{verl_values[0].key}: the stage {stage} has no verl section.", verl_values[0].key)
    _apply_verl(config, stage, verl_values)
    files = OmegaConf.to_container(config)
    if missing := [key for key, value in ov.leaves(files) if value == "???" and not key.startswith("verl.")]:
        raise UserError(f"no value for {', '.join(missing)}: give it as an override, KEY=VALUE.")
    # What is in the environment stays there: the stage reads it itself, and no file or print holds it.
    for key, value in ov.leaves(files):
        if "${oc.env:" in str(value):
            OmegaConf.update(config, key, keep_environment(value))
    _resolve(config)
    plain = OmegaConf.to_container(config)
    from retool_mcore.config.schema import check  # pydantic takes a tenth of a second: not for --help

    check(plain)  # without verl's defaults, which take longer than the rest
    if "verl" in config:
        with flag_override(config, "no_deepcopy_set_nodes", True):  # a third of the time otherwise
            config.verl = _with_verl_defaults(stage, keep_environment(plain["verl"]))
        check(plain | {"verl": OmegaConf.to_container(config.verl)})
    return config


def config_hash(config: DictConfig) -> str:
    """sha256 (hex) of the resolved configuration, independent of the order of keys and of where our modules lie."""
    return hashlib.sha256(OmegaConf.to_yaml(config, sort_keys=True).encode()).hexdigest()


def register_resolvers() -> None:
    """Registers what our files use: `${add:}`, `${policy_path:}`, `${or:}` (the second where the first is null) and
    others; may be called again."""
    for name, function in (
        ("add", lambda *terms: sum(terms)),
        ("multiply", lambda a, b: a * b),
        ("least", min),
        ("or", lambda first, second: second if first is None else first),
        ("divide", _divide),
        ("when_positive", lambda value, then: then if value > 0 else None),
        ("positive", lambda value: value > 0),
        ("policy_path", policy_path),
        ("loss_aggregation", _loss_aggregation),
        ("chat_template", chat_template),
        ("verl_lora", verl_lora),
        ("and_file", lambda loggers: OmegaConf.create([*loggers, "file"])),
        ("own_files", _own_parquets),
        ("own_label", _own_label),
        ("when_folder", lambda model, then, other: then if model == "folder" else other),
        ("eval_name", _eval_name),
        ("abspath", lambda path: os.path.abspath(os.path.expanduser(str(path)))),
    ):
        OmegaConf.register_new_resolver(name, function, replace=True)


def policy_path(policy: str, init: str, run_dir: str) -> str:
    """The Hugging Face folder of a policy: `init` is the model before SFT, STAGE_POLICIES are what the stages made.

    A stage links its last whole checkpoint there, and its best (state/checkpoints.py). Any other is a path itself.
    """
    return ({"init": init} | {word: f"{run_dir}/{link}" for word, link in STAGE_POLICIES.items()}).get(policy, policy)


def chat_template(name: str | None) -> str | None:
    """The text of a file of configs/model/templates/ by its name, or of the user's own by its path; of None, None."""
    if name is None:
        return None
    folder = CONFIG_DIR / "model" / "templates"
    for file in (folder / f"{name}.jinja", Path(name).expanduser()):
        if file.is_file():
            return file.read_text(encoding="utf-8")
    known = ", ".join(sorted(file.stem for file in folder.glob("*.jinja")))
    raise UserError(f"model.chat_template={name} is no file: give the path of a Jinja template, or one of {known}")


def verl_lora(lora: DictConfig) -> DictConfig:
    """verl's section of model.lora: base and adapters go to the engine, and into checkpoints, as one ("merge")."""
    names = {"rank": lora.rank, "alpha": lora.alpha, "target_modules": lora.targets, "merge": True}
    return OmegaConf.create(names if lora.rank else {})


def _own_parquets(role: str, value: Any, folder: str, file: str) -> ListConfig:
    """The parquet files that `retool prepare data=file` makes of data.file.ROLE; without any of its own the evaluation
    has what was taken from the training problems."""
    from retool_mcore.config.schema import own_files

    value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    files = [f"{folder}/{role}/{entry.name}/{file}" for entry in own_files(role, value)]
    return OmegaConf.create(files or [f"{folder}/{file}"] * (role == "eval"))


def _loss_aggregation(loss: str) -> str:
    from retool_mcore.config.schema import LOSS_AGGREGATIONS

    return LOSS_AGGREGATIONS.get(loss, "token-mean")


def _eval_name(model: str, *, _root_: DictConfig) -> str:
    """model.path is read only where it is a folder's: elsewhere it lies in the run's folder, which follows the name."""
    return "eval-" + re.sub(r"[^\w.+-]+", "-", Path(str(_root_.model.path)).name) if model == "folder" else "default"


def default_label(policy: str, files: Sequence[str] = ()) -> str:
    """Name of an evaluation's result folder: its policy and, of problems that it reads itself, their files' names.

    A policy of the run is its word, which no folder takes: of a folder it is the name, of one in a checkpoint the stage
    and the step.
    """
    name = str(policy)
    if name != "init" and name not in STAGE_POLICIES:
        path = Path(os.path.abspath(os.path.expanduser(name)))
        step = next((part for part in path.parents if _CHECKPOINT.fullmatch(part.name)), None)
        name = f"{step.parent.parent.name}-{step.name.removeprefix('global_')}" if step else path.name
        name = f"folder-{name}" if name in ("", "init", *STAGE_POLICIES) else name
    return "-".join([name, *(["+".join(files).replace("/", "-")] if files else [])])


def _own_label(policy: str, prepare: bool, value: Any) -> str:
    from retool_mcore.config.schema import own_files

    value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return default_label(policy, [file.name for file in own_files("eval", value)] if prepare else [])


def _divide(a: int, b: int) -> int:
    if b == 0 or a % b:
        raise UserError(f"{a} is not a multiple of {b}")
    return a // b


@contextmanager
def _hydra(config_dir: Path) -> Iterator[None]:
    """Hydra over `config_dir`; whatever Hydra state the process had is back afterwards."""
    state = GlobalHydra.instance()
    outer, state.hydra = state.hydra, None
    try:
        with hydra.initialize_config_dir(str(config_dir), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def _compose_files(stage: str, choices: Mapping[str, str], config_dir: Path) -> DictConfig:
    try:
        with _hydra(config_dir):
            config = hydra.compose(stage, [f"{group}={choice}" for group, choice in choices.items()])
    except HydraException as error:
        if choices:
            with _hydra(config_dir):
                used = hydra.compose(stage, return_hydra_config=True).hydra.runtime.choices
            groups = sorted(group for group in used if "/" not in group)
            if unused := [group for group in choices if group not in groups]:
                known = ", ".join(groups) or "none"
                said = f"the stage {stage} has no group {unused[0]}; its groups are: {known}."
                raise ov.Unknown(said, unused[0]) from error
        raise UserError(f"{config_dir / stage}.yaml cannot be composed: {str(error).splitlines()[0]}.") from error
    OmegaConf.set_struct(config, False)
    if stage == "eval":
        trained.keep_episode_keys(config)
    if stage == "prepare":
        trained.keep_episode_keys(config, ("reward",))
    return config


def _apply_verl(config: DictConfig, stage: str, values: Sequence[ov.Value]) -> None:
    for item in values:
        key = item.key.removeprefix("verl").removeprefix(".")
        ov.refuse_forced(ov.Value(key, item.value, item.text, item.forced), VERL_FREE, "verl.")
        if not key and not isinstance(item.value, Mapping):
            raise UserError("verl is a section: set its keys one by one, as in verl.trainer.save_freq=5.")
        for leaf, value in ov.leaves(item.value, key):
            ov.check(leaf, value, _verl_defaults(stage), VERL_FREE, "verl.")
            ov.store(config, f"verl.{leaf}", value)


def keep_environment(value: Any) -> Any:
    """`value` (plain) with every `${oc.env:NAME}` escaped: resolving it once leaves them as they were."""
    return json.loads(json.dumps(value).replace("${oc.env:", r"\\${oc.env:"))


def _resolve(config: DictConfig) -> None:
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UserError):
            cause = cause.__cause__ or cause.__context__
        reason = (str(cause) if cause else str(error).splitlines()[0]).removesuffix(".")
        raise UserError(f"the value of {_broken_key(config)} cannot be worked out: {reason}.") from error


def _broken_key(config: DictConfig) -> str:
    """The first dotted key whose value cannot be resolved (OmegaConf's errors do not always name it)."""
    for key in config:
        try:
            value = None if OmegaConf.is_missing(config, key) else config[key]
        except OmegaConfBaseException:
            return str(key)
        if isinstance(value, DictConfig) and (inner := _broken_key(value)):
            return f"{key}.{inner}"
    return ""


def _with_verl_defaults(stage: str, ours: dict[str, Any]) -> DictConfig:
    for key, value in ov.leaves(ours):
        ov.check(key, value, _verl_defaults(stage), VERL_FREE, "verl.")
    # Merged before verl's interpolations are resolved: many of its values follow others.
    copied = pickle.loads(pickle.dumps(_verl_defaults(stage)))  # in a third of deepcopy's time
    merged = OmegaConf.unsafe_merge(copied, ours)
    _resolve(merged)
    return merged


@functools.cache
def _verl_defaults(stage: str) -> DictConfig:
    """verl's own configuration for the stage, its interpolations unresolved. Never change it in place."""
    spec = importlib.util.find_spec("verl")  # of a top-level name: finds the folder, imports nothing
    if spec is None or not spec.submodule_search_locations:
        raise UserError("verl is not installed in this environment: run ./launch/setup.sh.")
    name, groups = VERL_BASE[stage]
    with _hydra(Path(spec.submodule_search_locations[0]) / "trainer" / "config"):
        config = hydra.compose(name, groups)
    OmegaConf.set_struct(config, False)
    return config
