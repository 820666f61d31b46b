"""What one cluster wants: configs/site/NAME.yaml, chosen by --site or RETOOL_SITE.

slurm/site.sh reads the same files with awk, because nothing of Python is there before it has run: hence the plain
YAML (one value or item a line), and hence the refusal here of what awk would read differently.
"""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from retool_mcore.config import CONFIG_DIR
from retool_mcore.errors import UserError

DEFAULT = "default"
CONTAINERS = ("none", "pyxis", "apptainer")
TEXTS = ("partition", "account", "qos", "time", "venv", "scratch", "sandbox_image", "sandbox_command")
NUMBERS = {"nodes": 1, "gpus_per_node": 0, "max_attempts": 1}  # key: the least it may be
NULL = ("", "null", "~")


@dataclass(frozen=True)
class Container:
    kind: str = "none"
    image: str | None = None
    mounts: tuple[str, ...] = ()  # FOLDER or FOLDER:INSIDE


@dataclass(frozen=True)
class Site:
    """One site file. None: as the batch script or the cluster has it."""

    name: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None  # Slurm's notation, as in 2-00:00:00
    nodes: int | None = None
    gpus_per_node: int | None = None
    venv: str | None = None  # relative: to the repository
    container: Container = Container()
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    max_attempts: int = 10
    scratch: str | None = None  # a folder on each node's own disk
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
    path = folder / f"{name}.yaml"
    if name not in site_names(folder):
        raise UserError(f"no site {name!r} in {folder}; choose one of: {', '.join(site_names(folder)) or 'none'}.")
    try:
        tree = yaml.compose(path.read_text(), Loader=yaml.BaseLoader)
        values = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    if values in (None, ""):
        return Site(name)
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `key: value` lines.")
    _refuse_what_bash_misreads(tree, path)
    known = [*TEXTS, *NUMBERS, "container", "modules", "env"]
    _refuse_unknown(values, known, path)
    fields: dict[str, Any] = {}
    for key in TEXTS:
        fields[key] = _text(values.get(key, ""), key, path)
    for key, least in NUMBERS.items():
        text = _text(values.get(key, ""), key, path)
        if text is not None and not (text.isdecimal() and int(text) >= least):
            raise UserError(f"{path}: {key} must be a whole number, {least} or more, not {text!r}.")
        if text is not None:
            fields[key] = int(text)
    fields["container"] = _container(values.get("container", ""), path)
    fields["modules"] = _list(values.get("modules", ""), "modules", path)
    fields["env"] = _env(values.get("env", ""), path)
    if fields["venv"] is None and fields["container"].kind == "none":
        raise UserError(f"{path}: without a container, venv must name the environment, as in `venv: .venv`.")
    return Site(name, **fields)


def step_command(site: Site, srun_flags: Sequence[str], command: Sequence[str]) -> list[str]:
    """The srun command line that runs `command` in the site's container, or as it stands where there is none."""
    container = site.container
    if container.kind == "pyxis":
        mounts = [f"--container-mounts={','.join(container.mounts)}"] if container.mounts else []
        return ["srun", *srun_flags, f"--container-image={container.image}", *mounts, *command]
    if container.kind == "apptainer":
        binds = [f"--bind={mount}" for mount in container.mounts]
        return ["srun", *srun_flags, "apptainer", "exec", "--nv", *binds, str(container.image), *command]
    return ["srun", *srun_flags, *command]


def _refuse_unknown(values: Mapping, known: Sequence[str], path: Path, prefix: str = "") -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            raise UserError(f"{path}: unknown key {prefix}{key}; the nearest valid key is {prefix}{near}.")


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


def _text(value: Any, key: str, path: Path) -> str | None:
    if not isinstance(value, str):
        raise UserError(f"{path}: {key} must be one value.")
    return None if value in NULL else value


def _list(value: Any, key: str, path: Path) -> tuple[str, ...]:
    if isinstance(value, str) and value in NULL:
        return ()
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise UserError(f"{path}: {key} must be a list, one `- item` a line.")
    return tuple(value)


def _env(value: Any, path: Path) -> dict[str, str]:
    if isinstance(value, str) and value in NULL:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise UserError(f"{path}: env must hold `NAME: value` lines.")
    for name in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"{path}: env.{name} is not a name that a shell can export.")
    return {name: text for name, text in value.items() if text not in NULL}


def _container(value: Any, path: Path) -> Container:
    if isinstance(value, str) and value in NULL:
        return Container()
    if not isinstance(value, dict):
        raise UserError(f"{path}: container is a section with kind, image and mounts.")
    _refuse_unknown(value, ("kind", "image", "mounts"), path, "container.")
    kind = _text(value.get("kind", ""), "container.kind", path) or "none"
    image = _text(value.get("image", ""), "container.image", path)
    if kind not in CONTAINERS:
        raise UserError(f"{path}: container.kind must be one of {', '.join(CONTAINERS)}, not {kind!r}.")
    if kind != "none" and image is None:
        raise UserError(f"{path}: container.kind={kind} needs container.image.")
    return Container(kind, image, _list(value.get("mounts", ""), "container.mounts", path))
