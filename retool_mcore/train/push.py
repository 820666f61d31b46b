"""An exported policy to the Hugging Face hub, with a model card. Its token is huggingface_hub's, in no file of ours."""

import json
import os
import re
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from retool_mcore.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_KEYS = ("recipe.name", "recipe.paper", "data.name", "rollout.format", "seed")
_ROWS = dict(zip(("recipe", "paper", "data", "calls", "seed"), _KEYS, strict=True))
_CARD = Path(__file__).with_name("card.md").read_text()


def check_push(repository: str) -> None:
    """Raises UserError unless the hub takes the token, whose owner is the org of `repository` ("org/name") or in it."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import get_token

    if not isinstance(repository, str) or not _NAME.fullmatch(repository):
        raise UserError(f"push={repository}: expected org/name, the model's repository on the hub.")
    if not get_token():
        raise UserError(f"push={repository} needs a token of the hub: run `hf auth login`, or set HF_TOKEN.")
    try:
        who = HfApi().whoami()
    except Exception as error:  # of the network and of the hub: several libraries' own
        raise UserError(f"push={repository}: the hub did not take the token ({_first_line(error)}).") from error
    names = [who["name"], *(org["name"] for org in who.get("orgs", []))]
    if repository.partition("/")[0] not in names:
        raise UserError(f"push={repository}: the token of {names[0]} may write to {', '.join(names)} alone.")


def push(folder: Path, repository: str, private: bool) -> str:
    """Upload all files of `folder` as one commit to the model `repository`, made where it is not there; its address.

    Raises UserError with what to do then: the export itself stays.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)
        step = json.loads((folder / "export.json").read_text())["step"]
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"Step {step}")
    except Exception as error:  # of the network and of the hub: several libraries' own
        raise UserError(
            f"the policy is exported to {folder}, and was not pushed to {repository} ({_first_line(error)}): run it "
            f"again, or `hf upload {repository} {folder}`."
        ) from error
    return str(made)


def write_card(folder: Path, config: DictConfig) -> None:
    """Write README.md: where the exported policy of `folder` comes from, and how it was evaluated. No path is in it."""
    report = json.loads((folder / "export.json").read_text())
    stage = str(config.policy).removesuffix("-best")
    trained = Path(config.run_dir) / stage / "config.yaml"
    run = OmegaConf.load(trained) if trained.is_file() else config
    table = {key: OmegaConf.select(run, path) for key, path in _ROWS.items()}
    for path in sorted(Path(config.run_dir).glob("eval/*/metrics.json")):
        evaluation = json.loads(path.read_text())
        # Two policies of one step, as after a run that began anew, differ in their files.
        same = all(evaluation.get(name) == report.get(name) for name in ("step", "policy_files"))
        if path.parent.name.startswith(stage) and same:
            for source, values in evaluation["accuracy"].items():
                table |= {f"{source}, {metric}": f"{value:.3f}" for metric, value in values.items()}
    rows = "\n".join(f"| {key} | {value} |" for key, value in table.items() if value is not None)
    name, model = os.path.basename(str(config.run_dir)), os.path.basename(str(config.model.path))
    (folder / "README.md").write_text(_CARD.format(name=name, stage=stage, model=model, rows=rows, **report))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
