"""The finished trajectories of a step that no checkpoint covers yet, on disk as they come: a restart takes them over.

    RUN/rl/unfinished/step_000005-POLICY/WRITER     one file a worker and attempt, to which it appends

POLICY names the policy and the settings it is sampled with (state/policy_identity.py): what another policy wrote is
in a folder that is not read. Every worker reads the files of all: an attempt may have another number of them.

A record is a frame of lengths and a checksum, the key, and a compressed JSON object. Records reach the kernel one by
one, so that a killed process loses none, but are not synced to the disk: a node that dies takes those of its last
seconds along, and they are generated again. A frame that was cut off ends its file; one with another checksum is as if
it were not there.
"""

import json
import re
import shutil
import struct
import threading
import uuid
import zlib
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

FOLDER = "unfinished"  # in the stage's folder
_HEAD = struct.Struct("<4sIII")  # magic, length of the key, length of the body, checksum of both
_MAGIC = b"TRJ1"
_STEP = re.compile(r"step_(\d+)-\w+")


def folder_of(stage_dir: Path, step: int, policy: str) -> Path:
    return stage_dir / FOLDER / f"step_{step:06d}-{policy}"


def remove_through(stage_dir: Path, step: int) -> None:
    """Remove the folders of the steps up to `step`, of whatever policy."""
    for path in (stage_dir / FOLDER).glob("step_*"):
        if (match := _STEP.fullmatch(path.name)) and int(match[1]) <= step:
            shutil.rmtree(path, ignore_errors=True)  # a rollout that nobody waits for may still write there


class Unfinished:
    """One folder, as one worker sees it: what was there when it was opened, by key, and a file of its own.

    Only the keys are read at first. To be used by any thread.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.found: dict[str, tuple[Path, int, int, int]] = {}  # file, offset and length of the body, checksum
        self.lock = threading.Lock()
        self.file: FileIO | None = None
        self.broken = False
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            self._index(path)

    def _index(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                magic, key_length, length, checksum = _HEAD.unpack(head)
                start = file.tell() + key_length
                if magic != _MAGIC or start + length > size:
                    return
                key = file.read(key_length).decode(errors="replace")
                self.found[key] = path, start, length, checksum
                file.seek(start + length)

    def take(self, key: str) -> dict | None:
        """The record that an earlier attempt appended under `key`; None where there is none, or a damaged one."""
        if key not in self.found:
            return None
        path, start, length, checksum = self.found[key]
        try:
            with path.open("rb") as file:
                file.seek(start)
                body = file.read(length)
        except FileNotFoundError:
            return None
        return json.loads(zlib.decompress(body)) if zlib.crc32(key.encode() + body) == checksum else None

    def append(self, key: str, record: Mapping) -> None:
        """Keep `record`, of JSON and NumPy's numbers, in this worker's file. A full disk ends that, with a line."""
        name = key.encode()
        body = zlib.compress(json.dumps(record, default=lambda value: value.tolist()).encode(), level=1)
        frame = _HEAD.pack(_MAGIC, len(name), len(body), zlib.crc32(name + body)) + name + body
        with self.lock:
            if self.broken:
                return
            try:
                if self.file is None:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self.file = open(self.folder / uuid.uuid4().hex, "xb", buffering=0)  # noqa: SIM115
                while frame:
                    frame = frame[self.file.write(frame) :]
            except OSError as error:
                self.broken = True  # what follows half a frame would never be found
                print(f"{self.folder}: no more trajectories are kept for a restart ({error}).")
