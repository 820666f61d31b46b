"""Read a GGUF file: metadata, and tensors as float32. Only the types that SmolLM2's Q4_1 file holds, and float16.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Quantised types store blocks of 32 values.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from retool_mcore.errors import UserError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
BLOCK = 32  # values of a quantised block
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    """(n, 34) uint8: a float16 scale and 32 int8 -> (n, 32) float32."""
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return scale * blocks[:, 2:].view(np.int8)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    """(n, 20) uint8: a float16 scale, a float16 minimum and 32 nibbles -> (n, 32) float32.

    The low nibbles are the first 16 values, the high ones the last 16.
    """
    scale, minimum = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return scale * nibbles + minimum


@dataclass(frozen=True)
class Encoding:
    """How a tensor type stores its values: bytes of a block, values of a block, block bytes -> float32."""

    block_bytes: int
    values: int
    decode: Callable[[np.ndarray], np.ndarray]


ENCODINGS = {
    0: Encoding(4, 1, lambda blocks: blocks.view(np.float32)),
    1: Encoding(2, 1, lambda blocks: blocks.view(np.float16).astype(np.float32)),
    3: Encoding(20, BLOCK, _q4_1),
    8: Encoding(34, BLOCK, _q8_0),
}


@dataclass(frozen=True)
class GGUF:
    """An opened file. `shapes` are in numpy's order: (rows, columns), the reverse of the file's."""

    path: Path
    metadata: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    _places: dict[str, tuple[int, int]]  # tensor -> its type and its first byte

    def tensor(self, name: str) -> np.ndarray:
        """Return the tensor of that name, de-quantised to float32."""
        kind, start = self._places[name]
        if kind not in ENCODINGS:
            raise UserError(f"{self.path}: {name} has the GGML type {kind}; this reader knows {sorted(ENCODINGS)}.")
        encoding, shape = ENCODINGS[kind], self.shapes[name]
        blocks = int(np.prod(shape)) // encoding.values
        data = np.fromfile(self.path, np.uint8, blocks * encoding.block_bytes, offset=start)
        if len(data) < blocks * encoding.block_bytes:
            raise UserError(f"{self.path} ends in the middle of {name}: fetch the file again.")
        return encoding.decode(data.reshape(blocks, encoding.block_bytes)).reshape(shape)


def read(path: Path) -> GGUF:
    """Read the header of a GGUF file; raises UserError where it is none, or is cut."""
    with open(path, "rb") as file:
        try:
            return _header(path, file)
        except (struct.error, EOFError):
            raise UserError(f"{path} ends in the middle of its header: fetch the file again.") from None


def _header(path: Path, file: BinaryIO) -> GGUF:
    magic, version = file.read(4), _number(file, "I")
    if magic != MAGIC or version not in VERSIONS:
        raise UserError(f"{path} is no GGUF file of version {' or '.join(map(str, VERSIONS))}.")
    tensors, entries = _number(file, "Q"), _number(file, "Q")
    metadata = {_text(file): _value(file, _number(file, "I")) for _ in range(entries)}
    shapes, relative = {}, {}
    for _ in range(tensors):
        name = _text(file)
        dimensions = [_number(file, "Q") for _ in range(_number(file, "I"))]
        shapes[name] = tuple(reversed(dimensions))
        relative[name] = _number(file, "I"), _number(file, "Q")
    alignment = metadata.get("general.alignment", 32)
    start = -(-file.tell() // alignment) * alignment
    return GGUF(path, metadata, shapes, {name: (kind, start + at) for name, (kind, at) in relative.items()})


def _number(file: BinaryIO, kind: str) -> Any:
    return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]


def _text(file: BinaryIO) -> str:
    length = _number(file, "Q")
    data = file.read(length)
    if len(data) < length:
        raise EOFError
    return data.decode()


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind == _ARRAY:
        element, count = _number(file, "I"), _number(file, "Q")
        return [_value(file, element) for _ in range(count)]
    return _number(file, _NUMBERS[kind])
