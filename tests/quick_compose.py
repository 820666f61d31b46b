"""What composing a configuration does again and again, done once a process: the tests compose hundreds of times.

Every caller gets a copy of its own, and a file that changed is read again. `python tests/config/snapshots.py` and the
stages that tests start as processes compose without this.
"""

import functools
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import omegaconf.base
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins

from retool_mcore import config
from retool_mcore.config import resolve

Plugins.instance()  # registers Hydra's sources
Files: Any = SourcesRegistry.instance().resolve("file")
_hydra_compose = hydra.compose
_read, _compose_files, _compose = Files.load_config, resolve._compose_files, resolve.compose


@functools.cache
def _pickled_file(path: str, provider: str, config: str, stamp: tuple[int, int]) -> bytes:
    return pickle.dumps(_read(Files(provider, path), config))


def _read_once(self: Any, config_path: str) -> Any:
    file = Path(self.path, self._normalize_file_name(config_path))
    if not file.is_file():
        return _read(self, config_path)
    status = file.stat()
    return pickle.loads(_pickled_file(self.path, self.provider, config_path, (status.st_mtime_ns, status.st_size)))


def _without_hydras_own(stage: str, overrides: Sequence[str] = (), **more: Any) -> Any:
    """hydra.compose without the section `hydra`, which it leaves out of its result but composes: half of the time."""
    if more:
        return _hydra_compose(stage, [*overrides], **more)
    loader: Any = GlobalHydra.instance().config_loader()
    choices, files = loader._parse_overrides_and_create_caching_repo(stage, [*overrides])
    listed = create_defaults_list(files, stage, choices, prepend_hydra=False, skip_missing=False)
    return loader._compose_config_from_defaults_list(listed.defaults, files)


@functools.cache
def _pickled_choices(stage: str, choices: tuple[tuple[str, str], ...]) -> bytes:
    return pickle.dumps(_compose_files(stage, dict(choices), resolve.CONFIG_DIR))


def _compose_files_once(stage: str, choices: dict[str, str], config_dir: Path) -> Any:
    if config_dir != resolve.CONFIG_DIR:
        return _compose_files(stage, choices, config_dir)
    return pickle.loads(_pickled_choices(stage, tuple(choices.items())))


@functools.cache
def _pickled(stage: str, overrides: tuple[str, ...], folder: str, home: str | None) -> bytes:
    return pickle.dumps(_compose(stage, overrides))


@functools.wraps(_compose)
def _compose_once(stage: str, overrides: Sequence[str] = (), config_dir: Path = resolve.CONFIG_DIR) -> Any:
    overrides = tuple(overrides)
    # A path may lead to a file that is read, and changes.
    if config_dir != resolve.CONFIG_DIR or not all(isinstance(text, str) and "/" not in text for text in overrides):
        return _compose(stage, overrides, config_dir)
    return pickle.loads(_pickled(stage, overrides, os.getcwd(), os.environ.get("HOME")))


def remember() -> None:
    """From now on a YAML file, the text of an interpolation, a set of choices and a whole configuration cost once."""
    Files.load_config = _read_once
    hydra.compose = _without_hydras_own
    resolve._compose_files = _compose_files_once
    resolve.compose = config.compose = _compose_once
    omegaconf.base.parse = functools.cache(omegaconf.base.parse)
