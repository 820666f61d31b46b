"""The one place that speaks to a model: the official client, against any OpenAI-compatible endpoint.

Finished calls are kept on disk by their request: none is lost to a stop, and none is made twice.
"""

import asyncio
import json
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import openai

from retool_mcore.coldstart.config import Model
from retool_mcore.coldstart.rows import Drop, content_key
from retool_mcore.errors import UserError
from retool_mcore.files import shown

_CHECK_TIMEOUT_S = 10.0
# About one request (its length, its content), which no waiting mends; any other status is about the endpoint.
_REFUSED = (400, 413, 422)
# A proxy in front of the server may answer in its place.
_READABLE_ATTEMPTS = 3
_TABLE = """CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY, purpose TEXT, text TEXT, finish TEXT,
    retries INTEGER, tokens_in INTEGER, tokens_out INTEGER, cost REAL)"""


class CallCache:
    """Replies by request key. A reply is on the disk when `put` returns."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(_TABLE)

    def get(self, key: str) -> tuple[str, str] | None:
        """(text, finish reason), None for a request that has no reply."""
        row = self._db.execute("SELECT text, finish FROM calls WHERE key = ?", (key,)).fetchone()
        return None if row is None else (json.loads(row[0]), row[1])

    def put(self, key: str, purpose: str, text: str, finish: str, *figures: float) -> None:
        """`figures`: retries, tokens in, tokens out, cost."""
        row = (key, purpose, json.dumps(text), finish, *figures)
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def totals(self) -> dict[str, dict]:
        """{purpose: {calls, retries, tokens_in, tokens_out, cost}} of every call ever paid for."""
        sums = ("retries", "tokens_in", "tokens_out", "cost")
        query = f"SELECT purpose, COUNT(*), {', '.join(f'SUM({name})' for name in sums)} FROM calls GROUP BY purpose"
        return {
            purpose: dict(zip(("calls", *sums), values, strict=True)) for purpose, *values in self._db.execute(query)
        }

    def close(self) -> None:
        self._db.close()


@dataclass(frozen=True)
class Reply:
    """`finish` is the server's finish reason: "length" when `text` was cut at max_tokens."""

    text: str
    finish: str
    cached: bool


class Client:
    """Calls one model for one `purpose`, at most `concurrency` at a time.

    The official client repeats a call that failed for the network, the load or the server, with exponential back-off;
    when its retries are spent the run stops with a UserError, and a later start goes on from the cache. `cached` counts
    the replies that came from there.
    """

    def __init__(self, model: Model, purpose: str, cache: CallCache):
        self.model, self.purpose, self.cache = model, purpose, cache
        self.cached = 0
        self._structured = model.structured == "auto"
        self._limit = asyncio.Semaphore(model.concurrency)
        self._api = openai.AsyncOpenAI(
            base_url=model.url, api_key=self._key() or "none", max_retries=model.retries, timeout=model.timeout_s
        )

    def _key(self) -> str | None:
        return os.environ.get(self.model.api_key_env) if self.model.api_key_env else None

    def _masked(self, text: str) -> str:
        """`text` without the key that a server may have echoed."""
        return text.replace(self._key() or "\0", "***")

    async def check(self) -> None:
        """Raises UserError, in one sentence, unless the endpoint answers and has the model."""
        try:
            listed = await self._api.with_options(max_retries=0, timeout=_CHECK_TIMEOUT_S).models.list()
        except openai.OpenAIError as error:
            raise self._down(error) from error
        names = [entry.id for entry in listed.data]
        if self.model.name not in names:
            raise UserError(
                f"{shown(self.model.url)} has no model {self.model.name!r}: it has {', '.join(names[:10]) or 'none'}. "
                f"Correct {self.purpose}.model.name."
            )

    async def ask(self, messages: list[dict], *, sample: int = 0, schema: dict | None = None) -> Reply:
        """The reply to `messages`; another `sample` is another reply. `schema`: the JSON schema that the reply should
        follow, kept to where the server can be made to. Raises Drop for a request that the server refuses."""
        settings = self.model.model_dump(include={"temperature", "top_p", "max_tokens"})
        request = {"model": self.model.name, "messages": messages, **settings, "seed": self.model.seed + sample}
        key = content_key(self.purpose, request, schema)
        if (cached := self.cache.get(key)) is not None:
            self.cached += 1
            return Reply(*cached, cached=True)
        async with self._limit:
            body, retries = await self._readable(request, schema)
        choice, usage = body["choices"][0], body.get("usage") or {}
        tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        cost = (tokens[0] * self.model.price_in + tokens[1] * self.model.price_out) / 1e6
        text, finish = choice["message"]["content"] or "", choice.get("finish_reason") or ""
        self.cache.put(key, self.purpose, text, finish, retries, *tokens, cost)
        return Reply(text, finish, cached=False)

    async def _readable(self, request: dict, schema: dict | None) -> tuple[dict, int]:
        """(chat completion, retries). Raises Drop when what comes is none, however often it is asked for."""
        retries, problem = 0, ""
        for attempt in range(_READABLE_ATTEMPTS):
            raw = await self._call(request, schema)
            retries += raw.retries_taken + (attempt > 0)
            try:
                # The client's own parsing lets any JSON pass, and a whole model of the reply refuses good endpoints.
                body = json.loads(raw.content)
                if isinstance(body["choices"][0]["message"]["content"], str | None):
                    return body, retries
                problem = "content is no text"
            except (ValueError, KeyError, IndexError, TypeError) as error:
                problem = f"{type(error).__name__} {error}"
        raise Drop("the endpoint's reply is malformed", self._masked(f"{problem}: {raw.content[:200]!r}"))

    async def _call(self, request: dict, schema: dict | None):
        create = self._api.chat.completions.with_raw_response.create
        try:
            if schema and self._structured:
                answer = {"name": "answer", "schema": schema, "strict": True}
                try:
                    return await create(**request, response_format={"type": "json_schema", "json_schema": answer})
                except openai.APIStatusError as error:
                    if error.status_code not in _REFUSED:
                        raise
                    reply = await create(**request)
                    # The same request passed without it: this server does not offer it.
                    self._structured = False
                    return reply
            return await create(**request)
        except openai.OpenAIError as error:
            if getattr(error, "status_code", None) in _REFUSED:
                raise Drop("the server refused the request", self._masked(str(error))) from error
            raise self._down(error) from error

    def _down(self, error: Exception) -> UserError:
        reason = self._masked((str(error).splitlines() or [type(error).__name__])[0])[:200]
        where = f"the endpoint {shown(self.model.url)} of {self.purpose}.model"
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            variable = self.model.api_key_env
            if variable is None:
                setting = f"{self.purpose}.model.api_key_env"
                return UserError(f"{where} wants a key ({reason}): name its variable in {setting}.")
            origin = "that it got from" if self._key() else "because none is in"
            return UserError(f"{where} refuses the key {origin} ${variable} ({reason}): set it, and start again.")
        return UserError(
            f"{where} does not answer ({reason}): start it (see `retool coldstart serve`) or correct the address, "
            "http://HOST:PORT/v1, and start again; finished calls are kept."
        )

    async def close(self) -> None:
        await self._api.close()
