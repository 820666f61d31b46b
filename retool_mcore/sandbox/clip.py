"""Bounded output: the head and the tail of a byte stream are kept, the middle is dropped and its size is named."""

import codecs


class Clip:
    """Collects a stream of bytes in at most about 1.5 times `limit_bytes` of memory."""

    def __init__(self, limit_bytes: int):
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self._head, self._tail = bytearray(), bytearray()
        self._head_limit = limit_bytes // 2
        self._tail_limit = limit_bytes - self._head_limit

    @property
    def was_cut(self) -> bool:
        return self.total_bytes > self.limit_bytes

    def feed(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        room = self._head_limit - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:][-self._tail_limit :]
        del self._tail[: -self._tail_limit]

    def text(self) -> str:
        """The kept bytes as text; a character that the cut would split goes whole, invalid bytes become U+FFFD."""
        if not self.was_cut:
            return (self._head + self._tail).decode("utf-8", "replace")
        # An incremental decoder holds an unfinished last character back, which is just what must go.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        head = decoder.decode(bytes(self._head))
        held_back = len(decoder.getstate()[0])
        tail = bytes(self._tail)
        start = 0
        while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
            start += 1
        cut_bytes = self.total_bytes - (len(self._head) - held_back) - (len(tail) - start)
        return f"{head}\n... [{cut_bytes} bytes of output cut] ...\n{tail[start:].decode('utf-8', 'replace')}"


def clip(text: str, limit_bytes: int) -> str:
    """`text` with its middle cut out if it is longer than `limit_bytes` in UTF-8."""
    collected = Clip(limit_bytes)
    collected.feed(text.encode("utf-8", "replace"))
    return collected.text()
