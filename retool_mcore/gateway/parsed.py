"""A sampled turn in the parts of OpenAI's assistant message: thought, prose and calls."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from retool_mcore.data.formats import Format, ToolCall

_THOUGHT_END = "</think>"


@dataclass(frozen=True)
class Reply:
    """content: the prose before the first call. reasoning: the thought before it, None where the turn has none. calls:
    the well-formed ones, in order. finish_reason: stop, tool_calls or length."""

    content: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    finish_reason: str

    def message(self, node: int) -> dict:
        """Return OpenAI's assistant message of the node's reply."""
        message: dict = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{node}_{place}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for place, call in enumerate(self.calls)
            ]
        return message


def reply_of(
    fmt: Format, ids: Sequence[int], calls: Sequence[ToolCall], *, opened: str = "", cut: bool = False,
    stop: Sequence[str] = (),
) -> Reply:  # fmt: skip
    """Return the parts of the turn `ids`, in which `calls` were read.

    opened: the thought that the prompt opens (`Format.prefill`). cut: the turn met a limit of tokens. stop: texts of
    the client at the first of which the content ends.
    """
    good = tuple(call for call in calls if call.error is None)
    text = fmt.decode(ids)
    first = good[0].start if good else len(text)
    reasoning, begins = None, 0
    if (end := text.find(_THOUGHT_END, 0, first)) >= 0:
        begins = end + len(_THOUGHT_END)
        reasoning = text[:end].lstrip().removeprefix("<think>")
    elif text.lstrip().startswith("<think>") or ("<think>" in opened and _THOUGHT_END not in opened):
        begins, reasoning = first, text[:first].lstrip().removeprefix("<think>")
    content = fmt.shown(text[begins:first])
    for string in stop:
        content = content.partition(string)[0]
    reason = "tool_calls" if good else "length" if cut else "stop"
    return Reply(content, None if reasoning is None else fmt.shown(reasoning), good, reason)
