"""Conversations that a server has sampled, found again by their messages: a client that sends the history of an answer
back gets the tokens that the policy sampled, not another spelling of their text.

What is not found, or was changed by the client, is rendered by the chat template.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retool_mcore.data.formats import TOOL, Format
from retool_mcore.data.prompts import in_template
from retool_mcore.errors import UserError
from retool_mcore.gateway.names import conversation_names
from retool_mcore.gateway.refusal import WireError
from retool_mcore.gateway.tree import Session, TreeError
from retool_mcore.rollout.episode import Limits

MAX_TOKENS = 16 * 2**20  # 64 MiB


@dataclass(frozen=True)
class _Known:
    """ids: of the conversation. thought: of its last answer. errors: of that answer's calls that were malformed, None
    for the others, in order; empty where no call waits for its reply."""

    ids: array
    thought: str
    errors: tuple[str | None, ...]


class Memory:
    """The prompts of requests, by way of the answers that were given before. At most `most` tokens are kept; what was
    not asked for longest goes first. Threads may share it.

    template: of the user's messages (data/prompts.py), None: none.
    """

    def __init__(self, fmt: Format, limits: Limits, context: int, template: str | None, most: int = MAX_TOKENS):
        self.fmt, self.limits, self.context, self.template, self.most = fmt, limits, context, template, most
        self.known: OrderedDict[str, _Known] = OrderedDict()
        self.tokens = self.hits = self.misses = 0
        self._lock = threading.Lock()

    def prompt_ids(self, messages: Sequence[Mapping], tools: Sequence[dict] | None) -> list[int]:
        """Return the ids to sample after. tools: those that the prompt lists. Raises WireError."""
        session = Session(self.fmt, self.fmt.tokenizer, self.limits, self.context)
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if answers:
            if (ids := self._continued(session, messages, tools, answers[-1])) is not None:
                self.hits += 1
                return ids
            self.misses += 1
        try:
            return session.prompt_for(self._in_template(messages), tools).ids
        except TreeError as error:
            raise WireError(400, error.code, str(error), "messages") from None

    def note(
        self, messages: Sequence[Mapping], tools: Sequence[dict] | None, reply: Mapping, ids: Sequence[int],
        errors: Sequence[str | None] = (),
    ) -> None:  # fmt: skip
        """Keep `ids`, all tokens of a conversation that ends with the message `reply`. errors: see `_Known`."""
        name = conversation_names([*messages, reply], tools)[-1]
        known = _Known(array("i", ids), (reply.get("reasoning_content") or "").strip(), tuple(errors))
        with self._lock:
            self._forget(name)
            self.known[name] = known
            self.tokens += len(ids)
            while self.tokens > self.most:
                self._forget(next(iter(self.known)))

    def _forget(self, name: str) -> None:
        if name in self.known:
            self.tokens -= len(self.known.pop(name).ids)

    def _continued(
        self, session: Session, messages: Sequence[Mapping], tools: Sequence[dict] | None, place: int
    ) -> list[int] | None:
        """The ids of the conversation up to the answer at `place` and of what follows it; None: it is not known."""
        name = conversation_names(messages[: place + 1], tools)[-1]
        with self._lock:
            known, echo, rest = self.known.get(name), messages[place], messages[place + 1 :]
            if known is not None:
                self.known.move_to_end(name)
        if known is None or echo.get("reasoning_content", known.thought).strip() != known.thought:
            return None
        texts = {message["tool_call_id"]: message["content"] for message in rest if message["role"] == "tool"}
        given = iter([texts[call["id"]] for call in echo.get("tool_calls", ())])
        observations = [
            session.answered(number, error or next(given)).text for number, error in enumerate(known.errors)
        ]
        later = [message for message in rest if message["role"] != "tool"]
        if any(message["role"] == "system" for message in later):
            return None
        following = [message for message in self._in_template(later) if message["role"] != "system"]
        try:
            ended = known.ids[-1] == self.fmt.eos_id
            ids = [*known.ids, *self.fmt.continuation_ids(following, ended=ended, observations=observations)]
        except UserError:
            return None  # the template changes what was sampled
        return ids

    def _in_template(self, messages: Sequence[Mapping]) -> list[dict]:
        return in_template(self.template, messages) if self.template else [dict(message) for message in messages]


def listed_tools(fmt: Format, schemas: Sequence[dict] | None) -> list[dict] | None:
    """Return the tools that a prompt lists for a toolbox's `schemas`, of which None is the format's own."""
    if fmt.name == "none":
        return None
    return [TOOL] if schemas is None else list(schemas)
