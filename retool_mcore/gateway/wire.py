"""OpenAI's requests, read within bounds, as they come to a front. No HTTP and no engine here; replies: replies.py.

A request is refused, not adapted: a key that changes the distribution of the tokens and that a front does not honour is
an error. Keys that change nothing are ignored and listed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retool_mcore.data.untrusted import read_json
from retool_mcore.errors import refused_value
from retool_mcore.gateway.messages import MAX_MESSAGES, MAX_TOOLS, Message, canonical_messages, canonical_tools
from retool_mcore.gateway.refusal import WireError

MAX_BODY_BYTES = 16 * 2**20
MAX_PROMPTS = 256
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_SEED = 2**63


@dataclass(frozen=True)
class Rules:
    """What a front accepts.

    model: the name that a request must give; None: any. max_n: most choices. sampling: temperature, top_p, top_k, seed,
    min_p, penalties and logit_bias are the client's; False: the first four are overridden, the others refused.
    max_logprobs: most alternatives of a token.
    """

    model: str | None
    max_n: int = 1
    sampling: bool = False
    max_logprobs: int = 1


@dataclass(frozen=True)
class Sampling:
    """How the client wants tokens drawn; None: as the front does."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What both kinds of requests have.

    max_tokens: None: as many as there is room for. top_logprobs: alternatives of each token. include_usage: a stream
    ends with a chunk of the usage. overridden: keys that the front does not honour; ignored: unknown ones.
    """

    model: str
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    top_logprobs: int
    n: int
    sampling: Sampling
    overridden: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ChatRequest(Request):
    """POST .../chat/completions, checked.

    messages: {role: system | user | assistant | tool, content: text} and, where given, name, reasoning_content,
    tool_calls [{id, type, function: {name, arguments: text of a JSON object}}], tool_call_id. Each call has one reply.
    tools: function schemas; None: none may be called. steps: the reply lists the calls that the front ran.
    """

    messages: list[dict]
    tools: list[dict] | None
    steps: bool = False


@dataclass(frozen=True, kw_only=True)
class CompletionRequest(Request):
    """POST .../completions, checked. prompts: texts or token ids. echo: the reply begins with the prompt."""

    prompts: list[str | list[int]]
    echo: bool


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    model: Annotated[str, Field(max_length=200)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    stop: str | list[str] = []
    stream: bool = False
    stream_options: dict = {}
    n: Annotated[int, Field(ge=1)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED, lt=MAX_SEED)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    # Accepted where they ask for nothing.
    response_format: dict | None = None
    best_of: int | None = None
    suffix: str | None = None
    user: Any = None
    metadata: Any = None


class _ChatBody(_Body):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[dict], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict = "auto"
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    retool_calls: bool = False
    parallel_tool_calls: bool = True
    functions: Any = None
    function_call: Any = None
    prefix: Any = None
    continue_final_message: bool = False


class _CompletionBody(_Body):
    prompt: str | list
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0)] | None = None


def read_body(data: bytes) -> dict:
    """Return the JSON object of a request's body. Raises WireError: no JSON, nested too deep, a key twice, NaN, half of
    a surrogate pair."""
    try:
        value = read_json(data.decode(), most=MAX_BODY_BYTES)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise WireError(400, "invalid_request", f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise WireError(400, "invalid_request", "The body must be a JSON object.")
    return value


def parse_chat(body: Mapping, rules: Rules) -> ChatRequest:
    """Return the chat request of a body. Raises WireError."""
    fields = _fields(_ChatBody, body)
    _refuse(fields.functions is not None or fields.function_call is not None, "functions", "is deprecated: use tools")
    _refuse(
        not fields.parallel_tool_calls,
        "parallel_tool_calls",
        "may be true here: a policy writes the calls that it writes",
    )
    _refuse(bool(fields.prefix) or fields.continue_final_message, "continue_final_message")
    messages = canonical_messages(fields.messages)
    tools = canonical_tools(fields.tools or [])
    if fields.tool_choice not in ("auto", "none"):
        _refuse(True, "tool_choice", "may be auto or none here: nothing forces a policy to call")
    top = fields.top_logprobs or 0
    if top and not fields.logprobs:
        raise WireError(400, "invalid_request", "top_logprobs needs logprobs=true.", "top_logprobs")
    return ChatRequest(
        messages=messages,
        tools=tools if tools and fields.tool_choice == "auto" else None,
        steps=fields.retool_calls,
        logprobs=fields.logprobs,
        top_logprobs=_top(top, rules, "top_logprobs"),
        **_shared(fields, body, rules, fields.max_completion_tokens or fields.max_tokens, least=1),
    )


def parse_completion(body: Mapping, rules: Rules) -> CompletionRequest:
    """Return the completion request of a body. Raises WireError."""
    fields = _fields(_CompletionBody, body)
    return CompletionRequest(
        prompts=_prompts(fields.prompt),
        echo=fields.echo,
        logprobs=fields.logprobs is not None,
        top_logprobs=_top(fields.logprobs or 0, rules, "logprobs"),
        # OpenAI's default of this old route; a reply of a whole context would surprise.
        **_shared(fields, body, rules, 16 if fields.max_tokens is None else fields.max_tokens, least=0),
    )


def _fields(kind: type[BaseModel], body: Mapping) -> Any:
    try:
        return kind.model_validate({key: value for key, value in body.items() if value is not None})
    except ValidationError as error:
        where = error.errors()[0]["loc"]
        param = str(where[0]) if where else None
        raise WireError(400, "invalid_request", f"{refused_value(error)}.", param) from None


def _refuse(wrong: bool, param: str, why: str = "is not supported here") -> None:
    if wrong:
        raise WireError(400, "unsupported_parameter", f"{param} {why}.", param)


def _shared(fields: Any, body: Mapping, rules: Rules, max_tokens: int | None, least: int) -> dict[str, Any]:
    if rules.model is not None and fields.model not in (None, rules.model):
        message = f"The model {fields.model!r} does not exist: this server has {rules.model!r}."
        raise WireError(404, "model_not_found", message, "model")
    form = (fields.response_format or {}).get("type", "text")
    _refuse(form != "text", "response_format", "may be text here: nothing forces a policy's tokens into a form")
    _refuse(fields.best_of not in (None, fields.n), "best_of")
    _refuse(bool(fields.suffix), "suffix")
    if fields.n > rules.max_n:
        raise WireError(400, "invalid_request", f"n is {fields.n}: at most {rules.max_n} here.", "n")
    if max_tokens is not None and max_tokens < least:
        raise WireError(400, "invalid_request", f"max_tokens is {max_tokens}: at least {least}.", "max_tokens")
    sampling, overridden = _sampling(fields, rules)
    return {
        "model": fields.model or rules.model or "policy",
        "max_tokens": max_tokens,
        "stop": _stops(fields.stop),
        "stream": fields.stream,
        "include_usage": fields.stream_options.get("include_usage") is True,
        "n": fields.n,
        "sampling": sampling,
        "overridden": overridden,
        "ignored": tuple(sorted(set(body) - set(type(fields).model_fields))),
    }


def _sampling(fields: Any, rules: Rules) -> tuple[Sampling, tuple[str, ...]]:
    given = {name: getattr(fields, name) for name in Sampling.__dataclass_fields__}
    neutral = {"min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "logit_bias": {}}
    if rules.sampling:
        bias = given.pop("logit_bias") or {}
        if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in bias):
            raise WireError(400, "invalid_request", "logit_bias has token ids as its keys.", "logit_bias")
        return Sampling(**given, logit_bias={int(key): value for key, value in bias.items()} or None), ()
    for name, value in neutral.items():
        _refuse(given[name] not in (None, value), name, "is not supported here: the trainer draws without it")
    return Sampling(), tuple(name for name, value in given.items() if value is not None and name not in neutral)


def _top(count: int, rules: Rules, param: str) -> int:
    if count > rules.max_logprobs:
        raise WireError(400, "invalid_request", f"{param} is {count}: at most {rules.max_logprobs} here.", param)
    return count


def _stops(stop: str | list[str]) -> tuple[str, ...]:
    stops = tuple(dict.fromkeys([stop] if isinstance(stop, str) else stop))
    if len(stops) > MAX_STOPS or not all(0 < len(one) <= MAX_STOP_CHARACTERS for one in stops):
        message = f"stop may hold {MAX_STOPS} texts of 1 to {MAX_STOP_CHARACTERS} characters."
        raise WireError(400, "invalid_request", message, "stop")
    return stops


def _prompts(prompt: str | list) -> list[str | list[int]]:
    """One prompt or several: a text, token ids, or a list of either."""
    several = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else [prompt]
    for one in several:
        ids = isinstance(one, list) and all(type(token) is int and token >= 0 for token in one)
        if not one or not (isinstance(one, str) or ids):
            message = "prompt must be a text, a list of token ids, or a list of such prompts, none of them empty."
            raise WireError(400, "invalid_request", message, "prompt")
    if len(several) > MAX_PROMPTS:
        raise WireError(
            400, "invalid_request", f"prompt holds {len(several)} prompts: at most {MAX_PROMPTS}.", "prompt"
        )
    return several
