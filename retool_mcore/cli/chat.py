"""`retool chat`: a policy in the terminal, with its tools. Here is what it talks to; train/chat.py talks. No torch."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig, OmegaConf, open_dict

from retool_mcore.backends.env import stage_env
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.runner.inputs import settle_policy
from retool_mcore.state import checkpoints

FOLDER = "chat"  # in the run's
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "TQDM_DISABLE": "1"}  # unless the user's environment says otherwise


def run(target: Path, overrides: Sequence[str], *, system: str | None, raw: bool, context: int | None) -> None:
    """Become the process that talks to the policy of `target`, a run or a Hugging Face folder. Raises UserError."""
    config = chat_config(target, overrides)
    with open_dict(config):
        config.chat = {"system": system, "raw": raw, "context": context}
    from retool_mcore.preflight.run import check_chat

    check_chat(config)
    become("retool_mcore.train.chat", config, FOLDER)


def become(module: str, config: DictConfig, folder: str) -> NoReturn:
    """Replace this process by `module`, which gets the configuration as RUN/`folder`/config.yaml."""
    path = Path(config.run_dir) / folder / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, OmegaConf.to_yaml(config, resolve=True))
    env = stage_env(config) | {name: value for name, value in QUIET.items() if name not in os.environ}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module, str(path)], env)


def chat_config(target: Path, overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of an evaluation of the target's policy. Raises UserError.

    A run's newest policy gets the limits, format, tools, prompt and layout that it was trained with.
    """
    folder = target.expanduser().resolve()
    if not folder.is_dir():
        raise UserError(f"{target} is not there: give the folder of a run, or a model's folder.")
    if (folder / "config.json").is_file():
        config = compose("eval", ["model=folder", f"model.path={folder}", *overrides])
        settle_policy("eval", config)
        return config
    trained = [stage for stage in ("rl", "sft") if checkpoints.latest(folder / stage / "checkpoints")]
    begun = [stage for stage in ("rl", "sft") if (folder / stage / "config.yaml").is_file()]
    if not begun:
        raise UserError(f"{target} is neither a run whose SFT or RL has begun nor the folder of a model (config.json).")
    own = OmegaConf.load(folder / begun[0] / "config.yaml")
    words = [f"name={folder.name}", f"runs_dir={folder.parent}", f"model.path={own.model.path}"]
    words += [f"policy={trained[0] if trained else 'init'}"]
    config = compose("eval", [*words, *overrides])
    overridden = {word.partition("=")[0].partition(".")[0] for word in overrides}
    with open_dict(config):
        if "data" not in overridden:
            config.data.prompt = own.data.prompt
        if "parallel" not in overridden and own.parallel.nodes == 1 and own.parallel.device == config.parallel.device:
            config.parallel = own.parallel
        config.model.dtype = config.model.dtype if "model" in overridden else own.model.dtype
    settle_policy("eval", config)
    return config
