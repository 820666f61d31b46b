"""The messages between the trainer's process, the server and a program, over Unix stream sockets.

A frame: lengths of a JSON header and of a body (2 x 4 bytes, network order), the header, the body. Requests carry the
contents of files in the body, replies the output too, so that no escaping can blow them up.

Request header: {code, stdin, timeout_s, memory_mb, session, fetch_files, files: [[path, bytes], ...]}, or
{end_session: id}. Reply header: {status, duration_s, exit_code, sizes: [stdout, stderr, value or -1],
files: [[path, bytes], ...], new_session: bool}. A program's process says, without a body, {failed: reason} or {begun:
true} before the program begins, and in a session {exit_code} after it.
"""

import json
import struct
from collections.abc import Mapping

from retool_mcore.sandbox.base import Result, Status

LENGTHS = struct.Struct("!II")


def frame(header: dict, body: bytes = b"") -> bytes:
    data = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((LENGTHS.pack(len(data), len(body)), data, body))


class Frames:
    """Takes bytes as they come in; `next()` gives the first whole frame as (header, body, raw bytes), or None.

    Raises ValueError when a header is not JSON or a frame is longer than `limit_bytes`.
    """

    def __init__(self, limit_bytes: int):
        self._data = bytearray()
        self._limit_bytes = limit_bytes

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> tuple[dict, bytes, bytes] | None:
        if len(self._data) < LENGTHS.size:
            return None
        header_size, body_size = LENGTHS.unpack_from(self._data)
        end = LENGTHS.size + header_size + body_size
        if end > self._limit_bytes:
            raise ValueError("a frame is too long")
        if len(self._data) < end:
            return None
        raw = bytes(self._data[:end])
        del self._data[:end]
        middle = LENGTHS.size + header_size
        header = json.loads(raw[LENGTHS.size : middle])
        if not isinstance(header, dict):
            raise ValueError("a header is not an object")
        return header, raw[middle:], raw


def pack_files(files: Mapping[str, bytes]) -> tuple[list, bytes]:
    return [[path, len(data)] for path, data in files.items()], b"".join(files.values())


def unpack_files(listed: list, body: bytes) -> dict[str, bytes]:
    files, start = {}, 0
    for path, size in listed:
        files[path] = body[start : start + size]
        start += size
    return files


def encode_reply(result: Result, new_session: bool) -> bytes:
    outputs = result.stdout, result.stderr, result.value
    texts = [None if text is None else text.encode("utf-8", "replace") for text in outputs]
    sizes = [-1 if text is None else len(text) for text in texts]
    listed, body = pack_files(result.files)
    header = {"status": result.status, "duration_s": result.duration_s, "exit_code": result.exit_code, "sizes": sizes}
    header |= {"files": listed, "new_session": new_session}
    return frame(header, b"".join([*filter(None, texts), body]))


def decode_reply(header: dict, body: bytes) -> tuple[Result, bool]:
    """(result, whether a session began with this run)"""
    texts, start = [], 0
    for size in header["sizes"]:
        texts.append(None if size < 0 else body[start : start + size].decode())
        start += max(size, 0)
    files = unpack_files(header["files"], body[start:])
    stdout, stderr, value = texts
    result = Result(Status(header["status"]), stdout, stderr, value, header["duration_s"], header["exit_code"], files)
    return result, header["new_session"]
