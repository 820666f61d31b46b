"""OpenAI's replies: whole objects, and the events of a stream. No HTTP and no engine here."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from retool_mcore.gateway.refusal import WireError

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n"  # one newline: two would end an empty event, which breaks clients


@dataclass(frozen=True)
class Usage:
    """Tokens of a request: of its prompt, of all its choices as they were sampled, and of the prompt from the cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def to_dict(self) -> dict:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass
class Choice:
    """One choice of a chat reply.

    message: {role, content, tool_calls, reasoning_content}. finish_reason: stop, length or tool_calls. logprobs: one
    entry of `token_logprob` a sampled token, None: not asked for. extra: further keys of the choice.
    """

    message: dict
    finish_reason: str
    logprobs: list[dict] | None = None
    extra: dict = field(default_factory=dict)

    def to_dict(self, index: int) -> dict:
        logprobs = None if self.logprobs is None else {"content": self.logprobs, "refusal": None}
        whole = {"index": index, "message": self.message, "logprobs": logprobs, "finish_reason": self.finish_reason}
        return whole | self.extra


def token_logprob(text: str, logprob: float, alternatives: Sequence[tuple[str, float]] = ()) -> dict:
    """Return a token's entry in OpenAI's `logprobs`. alternatives: (text, log-probability), the likeliest first."""
    top = [{"token": other, "logprob": value, "bytes": list(other.encode())} for other, value in alternatives]
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": top}


def chat_reply(node: str, model: str, choices: Sequence[Choice], usage: Usage) -> dict:
    """Return the object that answers a chat request; node: its name, which no other reply has."""
    return {
        "id": f"chatcmpl-{node}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice.to_dict(index) for index, choice in enumerate(choices)],
        "usage": usage.to_dict(),
    }


def event(content: dict) -> bytes:
    """Return one event of a stream."""
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def error_event(error: WireError) -> bytes:
    """Return the event that ends a stream which failed after its headers were sent."""
    return event(error.body())


class ChatChunks:
    """The events of a chat reply that is streamed, choice by choice as they come."""

    def __init__(self, node: str, model: str, include_usage: bool):
        self.include_usage = include_usage
        self.head: dict[str, Any] = {"id": f"chatcmpl-{node}", "object": "chat.completion.chunk"}
        self.head |= {"created": int(time.time()), "model": model}

    def _chunk(
        self, index: int, delta: dict, reason: str | None = None, further: Mapping = MappingProxyType({})
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason, **further}
        usage = {"usage": None} if self.include_usage else {}
        return event({**self.head, "choices": [choice], **usage})

    def role(self, index: int) -> bytes:
        return self._chunk(index, {"role": "assistant", "content": ""})

    def text(self, index: int, text: str, reasoning: bool = False, logprobs: list[dict] | None = None) -> bytes:
        found: dict[str, Any] = {} if logprobs is None else {"logprobs": {"content": logprobs, "refusal": None}}
        return self._chunk(index, {"reasoning_content" if reasoning else "content": text}, further=found)

    def calls(self, index: int, calls: Sequence[dict]) -> bytes:
        return self._chunk(index, {"tool_calls": [{"index": place} | call for place, call in enumerate(calls)]})

    def extra(self, index: int, **delta: Any) -> bytes:
        """Return a chunk of further keys, which OpenAI's clients ignore."""
        return self._chunk(index, delta)

    def finish(self, index: int, reason: str, **extra: Any) -> bytes:
        return self._chunk(index, {}, reason, extra)

    def usage(self, usage: Usage) -> bytes:
        """Return the last chunk: the usage where the client asked for it, else nothing."""
        return event({**self.head, "choices": [], "usage": usage.to_dict()}) if self.include_usage else b""


def chat_events(reply: dict, include_usage: bool) -> Iterator[bytes]:
    """Yield a whole chat reply as the events of a stream, for a front that samples a turn before it sends it."""
    node = reply["id"].removeprefix("chatcmpl-")
    chunks = ChatChunks(node, reply["model"], include_usage)
    for choice in reply["choices"]:
        index, message = choice["index"], choice["message"]
        yield chunks.role(index)
        if reasoning := message.get("reasoning_content"):
            yield chunks.text(index, reasoning, reasoning=True)
        logprobs = (choice.get("logprobs") or {}).get("content")
        if message.get("content") or logprobs:
            yield chunks.text(index, message.get("content") or "", logprobs=logprobs)
        if message.get("tool_calls"):
            yield chunks.calls(index, message["tool_calls"])
        yield chunks.finish(index, choice["finish_reason"])
    if include_usage:
        whole = reply["usage"]
        cached = whole["prompt_tokens_details"]["cached_tokens"]
        yield chunks.usage(Usage(whole["prompt_tokens"], whole["completion_tokens"], cached))
    yield DONE


def completion_reply(node: str, model: str, choices: Sequence[dict], usage: Usage | None) -> dict:
    """Return the object that answers a completion request, or one event of its stream (`usage` None)."""
    whole = {"id": f"cmpl-{node}", "object": "text_completion", "created": int(time.time()), "model": model}
    return whole | {"choices": list(choices), "usage": usage and usage.to_dict()}


def completion_choice(index: int, text: str, reason: str | None, logprobs: dict | None = None) -> dict:
    """Return one choice of a completion. logprobs: {tokens, token_logprobs, top_logprobs, text_offset}."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def models_reply(model: str, max_model_len: int) -> dict:
    """Return the list of models, which has one."""
    one = {"id": model, "object": "model", "created": 0, "owned_by": "retool", "max_model_len": max_model_len}
    return {"object": "list", "data": [one]}
