"""The prompt of a chat request as the chat template writes it, in the spelling of the policy's format."""

import json
from collections.abc import Callable, Mapping, Sequence

from retool_mcore.data.formats import TOOL_NAME, Format
from retool_mcore.gateway.refusal import WireError
from retool_mcore.rollout.episode import cut_observation


def check_tools(fmt: Format, messages: Sequence[Mapping], tools: Sequence[dict] | None) -> None:
    """Raise WireError for tools that a policy of this format cannot call, listed or called before."""
    names = [tool["function"]["name"] for tool in tools or ()]
    names += [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]
    if fmt.tools is None and (other := [name for name in names if not fmt.stop or name != TOOL_NAME]):
        able = f"calls {TOOL_NAME} alone" if fmt.stop else "calls no tools"
        text = f"tools: this policy was trained in the format {fmt.name} and {able}, not {other[0][:80]!r}."
        raise WireError(400, "unsupported_parameter", text, "tools")


def plain_prompt(
    fmt: Format, messages: Sequence[Mapping], tools: Sequence[dict] | None, max_observation_tokens: int
) -> list[int]:
    """Return the token ids of a conversation and the generation prompt.

    messages: as gateway/messages.py returns them. The replies of tools are cut as those of an episode are. Raises
    WireError as `check_tools` does, UserError where the template refuses the conversation.
    """
    check_tools(fmt, messages, tools)

    def read(message: Mapping) -> str:
        return cut_observation(fmt, fmt.tokenizer, message["content"], max_observation_tokens)[0]

    if fmt.tools is not None:
        return fmt.prompt_ids(_native(messages, read), list(tools or ()))
    whole, tail = _inline(fmt, messages, read)
    return fmt.prompt_ids(whole) + [token for piece in tail for token in fmt.encode(piece)]


def _native(messages: Sequence[Mapping], read: Callable[[Mapping], str]) -> list[dict]:
    """Calls and replies as chat templates take them, the replies in the order of the calls."""
    found = []
    for place, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            functions = [call["function"] for call in calls]
            parts = [one | {"arguments": json.loads(one["arguments"])} for one in functions]
            found.append({**message, "tool_calls": [{"type": "function", "function": part} for part in parts]})
            for function, reply in zip(functions, _replies(messages, place), strict=True):
                found.append({"role": "tool", "name": function["name"], "content": read(reply)})
        elif message["role"] != "tool":
            found.append(dict(message))
    return found


def _inline(fmt: Format, messages: Sequence[Mapping], read: Callable[[Mapping], str]) -> tuple[list[dict], list[str]]:
    """Calls and replies inside of one assistant turn: the turns that have ended, and the pieces of one that goes on."""
    found: list[dict] = []
    pieces: list[str] = []
    for place, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            text = message["content"]
            for call, reply in zip(calls, _replies(messages, place), strict=True):
                code = json.loads(call["function"]["arguments"]).get("code", "")
                pieces += [fmt.turn_text(text, str(code)), fmt.decode(fmt.observation_ids([read(reply)]))]
                text = ""
        elif message["role"] != "tool":
            if message["role"] == "assistant":
                message = {"role": "assistant", "content": "".join(pieces) + message["content"]}
            elif pieces:
                found.append({"role": "assistant", "content": "".join(pieces)})
            found.append(dict(message))
            pieces = []
    return found, pieces


def _replies(messages: Sequence[Mapping], place: int) -> list[Mapping]:
    """The replies to the calls of the message at `place`, in the order of the calls."""
    calls = messages[place]["tool_calls"]
    behind = {message["tool_call_id"]: message for message in messages[place + 1 : place + 1 + len(calls)]}
    return [behind[call["id"]] for call in calls]
