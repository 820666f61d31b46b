"""The messages and tools of a chat request in one canonical form, whichever client wrote them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from retool_mcore.data.function_schema import check_schema, function_schema
from retool_mcore.data.untrusted import json_or_none
from retool_mcore.errors import UserError
from retool_mcore.gateway.refusal import WireError

MAX_MESSAGES = 10_000
MAX_TOOLS = 256
_NO_PARAMETERS = {"type": "object", "properties": {}}


class _Function(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: str


class _Call(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    id: Annotated[str, Field(min_length=1, max_length=200)]
    type: Literal["function"] = "function"
    function: _Function


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


def canonical_messages(messages: Sequence[Message]) -> list[dict]:
    """Return the messages in canonical form. Raises WireError for a call without a reply, or a reply without a call."""
    found: list[dict] = []
    open_calls: dict[str, str] = {}
    for place, message in enumerate(messages):
        where = f"messages.{place}"
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                text = "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
                raise WireError(400, "missing_tool_reply", f"Invalid parameter: {text}.", f"{where}.role")
            del open_calls[message.tool_call_id]
        else:
            _all_answered(open_calls)
        role = "system" if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": _text(message.content, f"{where}.content")}
        one |= {"name": message.name} if message.name else {}
        if message.tool_call_id and role == "tool":
            one["tool_call_id"] = message.tool_call_id
        if message.reasoning_content and role == "assistant":
            one["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            if role != "assistant":
                raise WireError(400, "invalid_request", "Only an assistant's message has tool_calls.", where)
            one["tool_calls"] = [_checked_call(call, where) for call in message.tool_calls]
            open_calls = {call.id: where for call in message.tool_calls}
            if len(open_calls) < len(message.tool_calls):
                raise WireError(400, "invalid_request", "Two calls have the same id.", f"{where}.tool_calls")
        found.append(one)
    _all_answered(open_calls)
    if found[-1]["role"] == "assistant":
        reason = "The last message is the assistant's: end with one of the user, the system or a tool."
        raise WireError(400, "invalid_request", reason, "messages")
    return found


def _all_answered(open_calls: Mapping[str, str]) -> None:
    if open_calls:
        message = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
        )
        raise WireError(400, "missing_tool_reply", message, next(iter(open_calls.values())))


def _checked_call(call: _Call, where: str) -> dict:
    arguments = call.function.arguments or "{}"
    if not isinstance(json_or_none(arguments), dict):
        message = f"The arguments of the call {call.id} are not the text of a JSON object."
        raise WireError(400, "invalid_request", message, f"{where}.tool_calls")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _text(content: str | list[dict] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    for part in content:
        kind = part.get("type")
        if isinstance(kind, str) and kind.startswith(("image", "input_image")):
            raise WireError(400, "image_not_supported", "This policy reads text, no images.", where)
        if kind != "text" or not isinstance(part.get("text"), str):
            raise WireError(400, "invalid_request", "A part of a content is {type: text, text: TEXT} here.", where)
    return "".join(part["text"] for part in content)


def canonical_tools(tools: Sequence[Mapping]) -> list[dict]:
    """Return the function schemas of a request's `tools`, each with a name, a description and parameters. Raises
    WireError."""
    schemas: list[dict] = []
    for tool in tools:
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise WireError(400, "invalid_request", "A tool is {type: function, function: {name, ...}}.", "tools")
        description = function.get("description") or ""
        if not isinstance(description, str):
            raise WireError(400, "invalid_request", "A tool's description is a text.", "tools")
        schema = function_schema(function.get("name"), description, function.get("parameters") or _NO_PARAMETERS)
        try:
            check_schema(schema)
        except UserError as error:
            raise WireError(400, "invalid_request", str(error), "tools") from None
        schemas.append(schema)
    if len({schema["function"]["name"] for schema in schemas}) < len(schemas):
        raise WireError(400, "invalid_request", "Two tools have the same name.", "tools")
    return schemas
