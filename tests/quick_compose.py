"""Composing a configuration, done once a process: the tests compose hundreds of times.

Every caller gets a copy of its own. The stages that tests start as processes compose without this.
"""

import functools
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import omegaconf.base

from retool_mcore import config
from retool_mcore.config import load

_compose = load.compose


@functools.cache
def _pickled(stage: str, overrides: tuple[str, ...], folder: str, home: str | None) -> bytes:
    return pickle.dumps(_compose(stage, overrides))


@functools.wraps(_compose)
def _compose_once(stage: str, overrides: Sequence[str] = (), config_dir: Path = load.CONFIG_DIR) -> Any:
    overrides = tuple(overrides)
    # A path may lead to a file that is read, and changes.
    if config_dir != load.CONFIG_DIR or not all(isinstance(text, str) and "/" not in text for text in overrides):
        return _compose(stage, overrides, config_dir)
    return pickle.loads(_pickled(stage, overrides, os.getcwd(), os.environ.get("HOME")))


def remember() -> None:
    """From now on a whole configuration and the text of an interpolation of verl's cost once."""
    load.compose = config.compose = _compose_once
    omegaconf.base.parse = functools.cache(omegaconf.base.parse)
