"""Trajectories on disk, one JSONL file a step: a run can be read, replayed and scored again without engines."""

import json
import os
import re
from pathlib import Path

from retool_mcore.errors import UserError

_STEP_FILE = re.compile(r"step_([0-9]+)\.jsonl")


def write_step(folder: Path | str, step: int, records: list[dict], keep_bytes: int | None = None) -> Path:
    """Write `folder/step_000012.jsonl`, one record a line, and return its path; the file is there whole or not at all.

    A step that is run again after a resume replaces its file. keep_bytes: afterwards the files of the lowest steps are
    removed until all files together are no larger; the one just written always stays. One writer a folder. NaN and
    infinities are written as Python's json does (a broken log-prob is what one wants to find here); other parsers may
    refuse them.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:06d}.jsonl"
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    os.replace(unfinished, path)
    if keep_bytes is not None:
        _remove_oldest(folder, keep_bytes, path)
    return path


def step_files(folder: Path | str) -> dict[int, Path]:
    """The step files of `folder` by step, ascending; empty when there are none."""
    matches = ((_STEP_FILE.fullmatch(path.name), path) for path in Path(folder).glob("step_*.jsonl"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def read_step(path: Path | str) -> list[dict]:
    """The records of one step file, in order. Raises UserError naming the line that is not a JSON object."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except FileNotFoundError:
        raise UserError(f"There is no trajectory file {path}.") from None
    return [_parse(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def _parse(line: bytes, where: str) -> dict:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error}). Remove or mend the file.") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object, got {type(record).__name__}. Remove or mend the file.")
    return record


def _remove_oldest(folder: Path, keep_bytes: int, newest: Path) -> None:
    files = list(step_files(folder).values())
    total = sum(path.stat().st_size for path in files)
    for path in files:
        if total <= keep_bytes:
            return
        if path != newest:
            total -= path.stat().st_size
            path.unlink()
