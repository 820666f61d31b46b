"""Which weights a stage began with, where its next attempts read them again: a KL reference, and the base of adapters.

`init_from` is often a link, as RUN/sft/policy, which names other weights once SFT has run again. A resumed policy has
its weights from the checkpoint; its reference would be another one in silence. So the first attempt writes a digest of
the weights into the stage's folder, and a later one whose `init_from` holds others is refused.

Imported on login nodes: no torch here.
"""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

FILE = "initial_weights.json"  # in the stage's folder
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
THREADS = 8  # hashing lets go of Python's lock
CHUNK = 1 << 24


class Piece(NamedTuple):
    """A tensor, or a whole file: its name, its type and shape ("" of a file), and the place of its bytes."""

    name: str
    kind: str
    file: Path
    start: int
    end: int


def check(stage_dir: Path, folder: Path, what: str) -> None:
    """Raises UserError where `folder` holds other weights than the stage began with. what is named in the error."""
    known = _read(stage_dir)
    if known is not None and known["files"] != _listed(folder) and known["digest"] != digest(folder):
        raise other_weights(what, folder, known["path"])


def pin(stage_dir: Path, folder: Path, resumed: bool) -> None:
    """Write down which weights `folder` holds: those of a stage that begins, or that has not written them yet, or the
    same in other files."""
    files, known = _listed(folder), _read(stage_dir) if resumed else None
    if known is None or known["files"] != files:
        record = {"digest": digest(folder), "path": str(folder.resolve()), "files": files}
        write_atomically(stage_dir / FILE, json.dumps(record, indent=1) + "\n")


def other_weights(what: str, folder: Path | str, began: Path | str) -> UserError:
    """The refusal of weights that `what` is not based on. began: the folder that held the right ones."""
    return UserError(
        f"{what} is based on other weights than {folder} holds: give init_from the folder that the run began with "
        f"({began} then), or take another name."
    )


def digest(folder: Path) -> str:
    """sha256 (hex) of all weights in a Hugging Face folder: every tensor's name, type, shape and bytes, in however many
    files they lie. A file that is not in the safetensors format counts as a whole, with its name."""
    pieces = sorted(piece for file in _files(folder) for piece in _pieces(file))
    with ThreadPoolExecutor(THREADS) as threads:
        hashes = [
            [piece.name, piece.kind, value] for piece, value in zip(pieces, threads.map(_hash, pieces), strict=True)
        ]
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def _read(stage_dir: Path) -> dict | None:
    path = stage_dir / FILE
    return json.loads(path.read_text()) if path.is_file() else None


def _files(folder: Path) -> list[Path]:
    return sorted(file.resolve() for pattern in WEIGHTS for file in folder.glob(pattern))


def _listed(folder: Path) -> list[list]:
    """Return values that change with a file's content: weights that stay are not read at every start."""
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in _files(folder)]


def _pieces(file: Path) -> list[Piece]:
    whole = [Piece(file.name, "", file, 0, file.stat().st_size)]
    if file.suffix != ".safetensors":
        return whole
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(length, CHUNK * 8)))
        header.pop("__metadata__", None)
        return [
            Piece(
                name,
                json.dumps([entry["dtype"], entry["shape"]]),
                file,
                *(8 + length + at for at in entry["data_offsets"]),
            )
            for name, entry in header.items()
        ]
    except (ValueError, LookupError, TypeError, AttributeError):  # not one: reading it is refused elsewhere
        return whole


def _hash(piece: Piece) -> str:
    sha, left = hashlib.sha256(), piece.end - piece.start
    with piece.file.open("rb") as file:
        file.seek(piece.start)
        while left > 0 and (part := file.read(min(CHUNK, left))):
            sha.update(part)
            left -= len(part)
    return sha.hexdigest()
