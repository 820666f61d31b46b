"""Digests that tell whether two things are the same: settings, rows, the files of a policy. No torch here."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf


def digest(*parts: Any) -> str:
    """Return the sha256 (hex) of plain values and sections of a configuration, independent of the order of keys."""
    text = json.dumps(parts, sort_keys=True, default=lambda own: OmegaConf.to_container(own, resolve=True))
    return hashlib.sha256(text.encode()).hexdigest()


def stamps(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return (name, bytes, mtime in ns) of each file, a link's target in its place.

    A file cannot change without one of these, and to read the weights would take minutes.
    """
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def policy_files(folder: Path) -> str:
    """Return the digest of a Hugging Face folder's files: weights, configuration, tokenizer, chat template."""
    return digest(stamps(path for path in sorted(folder.glob("*.*")) if path.is_file()))
