"""Names of conversations: equal where clients wrote the same messages in other forms."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from retool_mcore.data.untrusted import canonical_json, read_json


def arguments_of(call: Mapping) -> Any:
    """Return the arguments of a call in OpenAI's form: the value of their JSON text, or the text that is none."""
    text = call["function"]["arguments"]
    try:
        return read_json(text) if isinstance(text, str) else text
    except ValueError:
        return text


def digest(*parts: str) -> str:
    """Return a name for a sequence of texts."""
    return hashlib.sha256("\0".join(map(repr, parts)).encode("utf-8", "surrogatepass")).hexdigest()


def said(message: Mapping) -> str:
    """Return what a message says, whatever its client made of its form: white space at the ends, the order and the
    spacing of arguments, ids, names and unknown keys do not count."""
    calls = [[c["function"]["name"], canonical_json(arguments_of(c))] for c in message.get("tool_calls") or ()]
    return canonical_json([message["role"], (message.get("content") or "").strip(), calls])


def chains_of(root: str, messages: Sequence[Mapping]) -> list[str]:
    """Return the name of each prefix of a conversation, from the empty one (`root`) on. Replies to the calls of one
    message count in the order of the calls."""
    chains, base = [root], root
    places: dict[Any, int] = {}
    pending: list[tuple[int, str]] = []
    for message in messages:
        if message["role"] == "tool":
            place = places.get(message.get("tool_call_id"), len(places))
            pending.append((place, said(message)))
            chains.append(digest(base, *(f"{number} {said}" for number, said in sorted(pending))))
            continue
        pending = []
        base = digest(chains[-1], said(message))
        chains.append(base)
        if message["role"] == "assistant":
            places = {call.get("id"): place for place, call in enumerate(message.get("tool_calls") or ())}
    return chains


def conversation_names(messages: Sequence[Mapping], tools: Sequence[Mapping] | None) -> list[str]:
    """Return the name of each prefix of a conversation in which `tools` are listed, from the empty one on."""
    return chains_of(digest("tools", canonical_json(list(tools or ()))), messages)
