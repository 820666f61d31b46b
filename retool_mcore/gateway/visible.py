"""The part of a turn that a client reads, as it grows: whole characters, and no text that may yet become a call."""

from collections.abc import Collection, Iterable, Sequence

from retool_mcore.data.formats import Format
from retool_mcore.data.special_tokens import POLICY_TAGS

BLOCKS = ("<code>", "<tool_call>", "<interpreter>", "<tool_response>")  # a call or its output begins with one
_THINK, _THINK_END = "<think>", "</think>"


def unread_tokens(fmt: Format) -> frozenset[int]:
    """Return the tokens that no client reads: those that end a turn, and special ones that are no tag of a policy."""
    added = fmt.tokenizer.added_tokens_decoder.items()
    return fmt.eos_ids | {token for token, entry in added if entry.special and entry.content not in POLICY_TAGS}


def parted(text: str, opened: bool) -> tuple[str, str]:
    """Return a turn's thought and the text behind it. opened: the prompt ends inside of a thought."""
    body = text.lstrip()
    if not opened and not body.startswith(_THINK):
        return "", text
    thought, _, rest = body.removeprefix(_THINK).partition(_THINK_END)
    return thought, rest


def tidy(text: str) -> str:
    """Return `text` without the line breaks in front of it and the white space behind it."""
    return text.lstrip("\n").rstrip()


class Growing:
    """The text of tokens as they come: whole characters, up to the first of the client's stop strings.

    Args:
        unread: tokens to leave out (`unread_tokens`).
        stops: `stopped` is true as soon as the text holds one; the text then ends in front of it.
        marks: further texts whose beginning is held back until it is clear whether they follow.
    """

    def __init__(self, fmt: Format, unread: Collection[int], stops: Sequence[str], marks: Sequence[str] = ()):
        self.fmt, self.unread, self.stops, self.marks = fmt, unread, stops, (*marks, *stops)
        self.ids: list[int] = []
        self.text, self.stopped = "", False
        self._start = self._read = 0  # of the tokens: those in front of `_read` are in `text`

    def grow(self, ids: Iterable[int]) -> None:
        """Append tokens. Only a few are decoded each time: those since the last but one whole character."""
        self.ids += [token for token in ids if token not in self.unread]
        known, whole = self.fmt.decode(self.ids[self._start : self._read]), self.fmt.decode(self.ids[self._start :])
        if len(whole) > len(known) and not whole.endswith("\ufffd"):
            self.text += whole[len(known) :]
            self._start, self._read = self._read, len(self.ids)

    def certain(self, text: str) -> str:
        """Return `text` up to a stop string, or without an end that may be the beginning of one or of a mark."""
        text = self.ended(text)
        most = 0 if self.stopped else max(map(len, self.marks), default=0)
        for place in range(max(0, len(text) - most + 1), len(text) if most else 0):
            if any(mark.startswith(text[place:]) for mark in self.marks):
                return text[:place]
        return text

    def ended(self, text: str) -> str:
        """Return `text` up to the first stop string in it."""
        ends = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        self.stopped |= bool(ends)
        return text[: min(ends, default=len(text))]


class Visible(Growing):
    """One turn of a chat as it grows; `new` and `rest` return (thought, text) that were not returned before.

    Args:
        blocks: opening tags from which on nothing is returned before the turn has ended.
        opened: the prompt ends inside of a thought.
    """

    def __init__(self, fmt: Format, unread: Collection[int], stops: Sequence[str], blocks: Sequence[str], opened: bool):
        super().__init__(fmt, unread, stops, (*blocks, _THINK, _THINK_END))
        self.blocks, self.opened = blocks, opened
        self._thought = self._content = ""  # returned so far

    def new(self) -> tuple[str, str]:
        thought, content = parted(self.text, self.opened)
        starts = [place for tag in self.blocks if (place := content.find(tag)) >= 0]
        content = self.certain(content[: min(starts, default=len(content))])
        return self._unsent(thought if content else self._whole(thought), content)

    def rest(self, thought: str, content: str) -> tuple[str, str]:
        """thought, content: of the whole turn as they are to be read, once it has ended."""
        return self._unsent(thought, self.ended(content))

    def _whole(self, thought: str) -> str:
        """`thought` without the beginning of its closing tag."""
        for place in range(max(0, len(thought) - len(_THINK_END) + 1), len(thought)):
            if _THINK_END.startswith(thought[place:]):
                return thought[:place]
        return thought

    def _unsent(self, thought: str, content: str) -> tuple[str, str]:
        thought, content = tidy(thought), tidy(content)
        new = ["", ""]
        if thought.startswith(self._thought):
            new[0], self._thought = thought[len(self._thought) :], thought
        if content.startswith(self._content):
            new[1], self._content = content[len(self._content) :], content
        return new[0], new[1]
