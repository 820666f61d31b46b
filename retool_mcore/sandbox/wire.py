"""The messages between the trainer's process and the process that supervises one run, over a Unix stream socket.

Request: 4 bytes of length, then JSON {code, stdin, timeout_s}. Reply: the same header with JSON {status, duration_s,
sizes}, then stdout, stderr and value as raw UTF-8 of these sizes in bytes (-1: no value), so that no escaping can
blow them up.
"""

import asyncio
import json
import socket
import struct

from retool_mcore.sandbox.base import Result, Status

_LENGTH = struct.Struct("!I")


def encode_request(code: str, stdin: str, timeout_s: float) -> bytes:
    body = json.dumps({"code": code, "stdin": stdin, "timeout_s": timeout_s}).encode()
    return _LENGTH.pack(len(body)) + body


def read_request(connection: socket.socket) -> dict | None:
    """None when the other side hung up before the whole request was here."""
    header = _read_exactly(connection, _LENGTH.size)
    body = header and _read_exactly(connection, _LENGTH.unpack(header)[0])
    return json.loads(body) if body else None


def _read_exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def encode_reply(result: Result) -> bytes:
    texts = [None if text is None else text.encode() for text in (result.stdout, result.stderr, result.value)]
    sizes = [-1 if text is None else len(text) for text in texts]
    header = json.dumps({"status": result.status, "duration_s": result.duration_s, "sizes": sizes}).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *filter(None, texts)])


async def read_reply(reader: asyncio.StreamReader) -> Result:
    """Raises asyncio.IncompleteReadError when the supervisor ended without a reply."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    header = json.loads(await reader.readexactly(length))
    stdout, stderr, value = [
        None if size < 0 else (await reader.readexactly(size)).decode() for size in header["sizes"]
    ]
    return Result(Status(header["status"]), stdout, stderr, value, header["duration_s"])
