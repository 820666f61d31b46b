"""The settings of one cluster: configs/site/NAME.yaml, chosen by --site or RETOOL_SITE.

slurm/site.sh reads the same files with awk, because Python is not available before it has run. Hence the plain YAML
(one value or item a line), and hence the refusal here of what awk would read differently.
"""

# Without its packages mypy does not know pydantic's dataclasses.
# mypy: disable-error-code="call-arg"

import os
import re
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from retool_mcore.cluster.slurm import program
from retool_mcore.config import CONFIG_DIR
from retool_mcore.errors import UserError, refused_value

DEFAULT = "default"
NULL = ("", "null", "~")
Shell = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]  # a name that a shell can export
_CHECKED: Any = {"extra": "forbid"}


@dataclass(frozen=True, config=_CHECKED)
class Container:
    kind: Literal["none", "pyxis", "apptainer"] = "none"
    image: str | None = None
    mounts: list[str] = field(default_factory=list)  # FOLDER or FOLDER:INSIDE


@dataclass(frozen=True, config=_CHECKED)
class Site:
    """One site file. None: as the batch script or the cluster has it."""

    name: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None  # Slurm's notation, as in 2-00:00:00
    nodes: Annotated[int, Field(ge=1)] | None = None
    gpus_per_node: Annotated[int, Field(ge=0)] | None = None
    gpu_gres: bool = True  # whether Slurm counts GPUs there; if not, a job has all of its nodes
    flags: list[Annotated[str, Field(pattern=r"^--")]] = field(default_factory=list)  # further ones for sbatch
    venv: str | None = None  # relative: to the repository
    container: Container = Container()
    modules: list[str] = field(default_factory=list)
    env: dict[Shell, str] = field(default_factory=dict)  # with those of `network` that it does not set itself
    network: str | None = None  # a file of network/, for NCCL
    max_attempts: Annotated[int, Field(ge=1)] = 10
    scratch: str | None = None  # a folder on each node's own disk, TMPDIR there
    sandbox_image: str | None = None
    sandbox_command: str | None = None


def site_names(folder: Path = CONFIG_DIR / "site") -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_site(name: str | None = None, folder: Path = CONFIG_DIR / "site") -> Site:
    """The site `name`; None: the one that RETOOL_SITE names, else the default.

    Raises:
        UserError: no such file, an unknown key, a wrong value, or YAML that slurm/site.sh cannot read.
    """
    name = name or os.environ.get("RETOOL_SITE") or DEFAULT
    values, path = _read(name, folder), folder / f"{name}.yaml"
    own = values.get("env") or {}
    if values.get("network") not in (None, *NULL) and isinstance(own, dict):
        values["env"] = _read(values["network"], folder / "network", "network")["env"] | own
    try:
        site = Site(name, **_given(values))
    except ValidationError as error:
        raise UserError(f"{path}: {refused_value(error)}: see {folder / DEFAULT}.yaml.") from error
    if site.container.kind != "none" and site.container.image is None:
        raise UserError(f"{path}: container.kind={site.container.kind} needs container.image.")
    if site.venv is None and site.container.kind == "none":
        raise UserError(f"{path}: without a container, venv must name the environment, as in `venv: .venv`.")
    return site


def _read(name: str, folder: Path, what: str = "site") -> dict[str, Any]:
    path = folder / f"{name}.yaml"
    if name not in site_names(folder):
        known = ", ".join(site_names(folder)) or "none"
        raise UserError(f"no {what} {name!r} in {folder}; choose one of: {known}.")
    try:
        tree = yaml.compose(path.read_text(), Loader=yaml.BaseLoader)
        values = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    if values in (None, ""):
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `key: value` lines.")
    _refuse_what_bash_misreads(tree, path)
    return values


def _given(value: Any) -> Any:
    """Without what is null: that has its default."""
    return {k: _given(v) for k, v in value.items() if v not in NULL} if isinstance(value, dict) else value


def step_command(site: Site, srun_flags: Sequence[str], command: Sequence[str]) -> list[str]:
    """The srun command line that runs `command` in the site's container, or as it stands where there is none.

    The host runs it (slurm/host_slurm.py), whose folder only this node has: so only a step that asks Slurm something,
    on this node, has it mounted.
    """
    container, words = site.container, [program("srun"), *srun_flags]
    if container.kind == "none":
        return [*words, *command]
    folder, here = os.environ.get("RETOOL_HOST_SLURM"), f"--nodelist={os.environ.get('SLURMD_NODENAME')}"
    mounts = [*container.mounts, *([f"{folder}:{folder}"] if folder and here in srun_flags else [])]
    # The image's own values would win.
    ours = ("PYTHONPATH", "PYTHONSAFEPATH", *site.env)
    env = ["env", *(f"{name}={os.environ[name]}" for name in ours if name in os.environ)]
    if container.kind == "pyxis":
        name = f"--container-name=retool-{os.environ.get('SLURM_JOB_ID')}"
        words += [f"--container-image={container.image}", name, f"--container-workdir={os.getcwd()}"]
        return [*words, *([f"--container-mounts={','.join(mounts)}"] if mounts else []), *env, *command]
    binds = [f"--bind={mount}" for mount in mounts]
    return [*words, "apptainer", "exec", "--nv", *binds, str(container.image), *env, *command]


def _refuse_what_bash_misreads(node: yaml.Node, path: Path) -> None:
    where = f"{path}, line {node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        if node.style in ("|", ">") or "\n" in node.value or node.start_mark.line != node.end_mark.line:
            raise UserError(f"{where}: a value must stand on one line.")
        if re.search(r"\s#|^#|[\t\"'\\]", node.value):
            raise UserError(f"{where}: a value must be free of quotes, backslashes, tabs and ' #'.")
        return
    if node.flow_style:
        raise UserError(f"{where}: write one item a line, not [..] or {{..}}.")
    children = node.value if isinstance(node, yaml.SequenceNode) else [child for pair in node.value for child in pair]
    for child in children:
        _refuse_what_bash_misreads(child, path)
