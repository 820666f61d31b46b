"""The conversation tree behind an endpoint: which sampled tokens a request continues, and what is trained in the end.

A request whose messages extend a conversation that this session sampled gets the sampled ids plus the ids of the new
messages. Every other request opens a segment: its messages are rendered anew, and what they say is context. Each
sampled token is trained in exactly one segment. No HTTP and no engine here.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retool_mcore.data.formats import TOOL, TOOL_NAME, Format, ToolCall
from retool_mcore.data.function_schema import function_schema
from retool_mcore.data.untrusted import canonical_json
from retool_mcore.errors import UserError
from retool_mcore.gateway.names import arguments_of, chains_of, digest, said
from retool_mcore.gateway.parsed import Reply
from retool_mcore.rollout.episode import Generation, Limits, cut_observation

_NOTHING = {"type": "object", "properties": {}}


class TreeError(Exception):
    """A request that no prompt can be made of; `code` is a code of OpenAI's error object."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class EpisodeOver(Exception):
    """A limit of the episode is reached; `finish` names it."""

    def __init__(self, finish: str):
        super().__init__(f"The episode is over ({finish}): end the agent.")
        self.finish = finish


@dataclass(frozen=True)
class Answered:
    """What answers a call of a turn: `text` as the policy reads it, `whole` as it came; `place` of the call in the
    turn's list."""

    place: int
    text: str
    whole: str
    truncated: bool


@dataclass
class Piece:
    """One sampled turn of a node, made by `draws` requests to the engine, with the calls that were read in it.
    `answers` and `observation_ids` follow it where the gateway answered it inside the request."""

    turn: Generation
    calls: list[ToolCall]
    generate_s: float
    draws: int
    answers: list[Answered] = field(default_factory=list)
    observation_ids: list[int] = field(default_factory=list)


@dataclass
class Prompt:
    """What one request samples after.

    ids: the whole prompt. base: the node that it continues, None where a segment begins. delta: the ids behind the
    base's own, or all. answers: to the base's last calls. room: tokens that the segment still holds. start: length of
    the segment's first prompt. calls, draws: calls answered and requests to the engine on the path so far. branch:
    tells siblings apart, "" on a path without any. chain: names the conversation up to here. tools: as the prompt lists
    them, None for the format's own.
    """

    ids: list[int]
    base: "Node | None"
    delta: list[int]
    answers: list[Answered]
    reason: str
    room: int
    start: int
    calls: int
    draws: int
    branch: str
    chain: str
    tools: list[dict] | None
    began: float = field(default_factory=time.time)

    @property
    def opens(self) -> bool:
        """Whether a segment of its own begins: nothing is continued, or what another request continues, too."""
        return self.base is None or self.reason == "sibling"

    @property
    def key(self) -> tuple:
        return (None if self.base is None else self.base.index, tuple(self.delta))


@dataclass
class Node:
    """One reply. `reason`: why it does not simply continue the tree ("" where it does). `finish`: why its last turn
    ended, in the words of `Trajectory.finish`; "" where calls of it wait for their replies. `delivered` counts the
    session's delivered replies, 0 for one that never arrived."""

    index: int
    prompt: Prompt
    pieces: list[Piece]
    reply: Reply
    finish: str
    ended: float = field(default_factory=time.time)
    delivered: int = 0

    @property
    def reason(self) -> str:
        return self.prompt.reason

    @property
    def base(self) -> "Node | None":
        return self.prompt.base

    @property
    def sampled(self) -> int:
        """Tokens that the policy sampled."""
        return sum(len(piece.turn.ids) for piece in self.pieces)

    @property
    def own_ids(self) -> list[int]:
        """The ids behind the prompt, what the gateway answered included."""
        return [token for piece in self.pieces for token in (*piece.turn.ids, *piece.observation_ids)]

    @property
    def ids(self) -> list[int]:
        """All ids up to the node's end, the prompt included."""
        return self.prompt.ids + self.own_ids


class Session:
    """The tree of one episode, or of one client of a server.

    limits: of a segment. context: tokens of a segment's prompt and response together. Messages are dicts in OpenAI's
    form, checked by the caller: content is a text, arguments are JSON texts, every tool reply has its call.
    """

    def __init__(self, fmt: Format, tokenizer, limits: Limits, context: int):
        self.fmt, self.tokenizer, self.limits, self.context = fmt, tokenizer, limits, context
        self.nodes: list[Node] = []
        self.by_chain: dict[str, list[Node]] = {}
        self.known: dict[str, str] = {}  # prefix of a conversation without its tools -> with its tools
        self.begun: Counter = Counter()  # requests that sample after the same tokens
        self.delivered = 0

    # -- a request ----------------------------------------------------------------------------------------------------
    def prompt_for(self, messages: Sequence[Mapping], tools: Sequence[Mapping] | None) -> Prompt:
        """Return what to sample after. Raises TreeError, and EpisodeOver where the conversation may not go on."""
        listed = self._listed(tools)
        root = digest("tools", canonical_json(listed))
        chains = chains_of(root, messages)
        node, place = self._deepest(chains, messages)
        rest = messages[place + 1 :]
        prompt = None
        if node is not None and rest and not any(message["role"] == "assistant" for message in rest):
            if node.finish == "max_turns":
                raise EpisodeOver("max_turns")
            self.deliver(node)  # whoever goes on from it has it
            prompt = self._continued(node, messages[place], rest, listed, chains[-1])
        if prompt is None:
            reason = "template" if node is not None and rest else self._reason(chains, messages, listed)
            prompt = self._opened(messages, listed, chains[-1], reason)
        self._remember(root, chains, messages)
        count = self.begun[prompt.key]
        self.begun[prompt.key] += 1
        if count:
            prompt.reason, prompt.branch = "sibling", f"{prompt.branch}/{prompt.draws}.{count}"
        elif prompt.base is None and (roots := sum(node.base is None for node in self.nodes)):
            prompt.branch = f"/root{roots}"
        return prompt

    def abandon(self, prompt: Prompt) -> None:
        """Forget a prompt whose request failed: the next one of the same tokens draws what this one would have."""
        self.begun[prompt.key] -= 1

    def commit(self, prompt: Prompt, pieces: list[Piece], reply: Reply, finish: str) -> Node:
        """Add what was sampled after `prompt`."""
        node = Node(len(self.nodes), prompt, pieces, reply, finish)
        self.nodes.append(node)
        chain = digest(prompt.chain, said(reply.message(node.index)))
        self.by_chain.setdefault(chain, []).append(node)
        return node

    def deliver(self, node: Node) -> None:
        """Note that the client has the node's reply."""
        if not node.delivered:
            self.delivered += 1
            node.delivered = self.delivered

    def _listed(self, tools: Sequence[Mapping] | None) -> list[dict] | None:
        """The tools in the form that `Format.prompt_ids` and `Format.parse` take: None where they are the format's own.
        Raises TreeError for tools that the format cannot call."""
        if not tools:
            return []
        listed = [
            function_schema(
                tool["function"]["name"], tool["function"].get("description", ""),
                tool["function"].get("parameters") or _NOTHING,
            )
            for tool in tools
        ]  # fmt: skip
        own = len(listed) == 1 and listed[0]["function"]["name"] == TOOL_NAME
        if self.fmt.name == "none":
            raise TreeError("unsupported_parameter", "This policy calls no tools (rollout.format=none).")
        if self.fmt.name == "text":
            if not own:
                message = f"This policy calls one tool only, {TOOL_NAME} with the argument code (rollout.format=text)."
                raise TreeError("unsupported_parameter", message)
            return None
        return None if own and same_schema(listed[0]) else listed

    def _deepest(self, chains: Sequence[str], messages: Sequence[Mapping]) -> tuple[Node | None, int]:
        for place in range(len(messages) - 1, -1, -1):
            if messages[place]["role"] == "assistant" and chains[place + 1] in self.by_chain:
                nodes = self.by_chain[chains[place + 1]]
                agreeing = [node for node in nodes if _same_thought(node.reply, messages[place])]
                if not agreeing:
                    continue
                # Only replies with the same words are compared by the ids of their calls: a forged id chooses nothing.
                ids = {call.get("id") for call in messages[place].get("tool_calls") or ()}
                named = [node for node in agreeing if ids & {call["id"] for call in _calls_of(node)}]
                return (named or agreeing)[-1], place
        return None, -1

    def _reason(self, chains: Sequence[str], messages: Sequence[Mapping], listed: list[dict] | None) -> str:
        """Why a request opens a segment; "" for the first."""
        if not self.nodes:
            return ""
        shown = chains_of("", messages)
        known = 0
        while known < len(messages) and shown[known + 1] in self.known:
            known += 1
        if known == 0:
            return "other_root"
        if self.known[shown[known]] != chains[known]:
            return "tools"
        return "edited"

    def _remember(self, root: str, chains: Sequence[str], messages: Sequence[Mapping]) -> None:
        shown = chains_of("", messages)
        for place in range(1, len(chains)):
            self.known.setdefault(shown[place], chains[place])

    def _opened(self, messages: Sequence[Mapping], listed: list[dict] | None, chain: str, reason: str) -> Prompt:
        made = self._for_template(messages)
        # A reply inside the assistant's turn does not end it: the policy goes on in the same turn.
        inside = [made.pop()["content"]] if made and made[-1]["role"] == "assistant" != messages[-1]["role"] else []
        try:
            ids = self.fmt.prompt_ids(made, listed if self.fmt.tools else None)
            ids += [token for text in inside for token in self.fmt.encode(self.fmt.neutral(text))]
        except UserError as error:
            raise TreeError("invalid_request", str(error)) from error
        room = min(self.limits.max_response_tokens, self.context - len(ids))
        if room < 1:
            raise self._too_long(len(ids))
        return Prompt(ids, None, ids, [], reason, room, len(ids), 0, 0, "", chain, listed)

    def _continued(
        self, node: Node, echo: Mapping, rest: Sequence[Mapping], listed: list[dict] | None, chain: str
    ) -> Prompt | None:
        answers, later = self._answers(node, echo, rest)
        ended = node.pieces[-1].turn.ids[-1] == self.fmt.eos_id
        try:
            delta = self.fmt.continuation_ids(later, ended=ended, observations=[answer.text for answer in answers])
        except UserError:
            return None  # the template changes what was sampled: rendered anew, with a reason
        ids, start = node.ids, node.prompt.start
        room = min(self.limits.max_response_tokens, self.context - start) - (len(ids) - start) - len(delta)
        if room < 1:
            raise self._too_long(len(ids) + len(delta))
        calls = node.prompt.calls + len(answers) + sum(len(piece.answers) for piece in node.pieces)
        draws = node.prompt.draws + sum(piece.draws for piece in node.pieces)
        return Prompt(
            ids + delta, node, delta, answers, "", room, start, calls, draws, node.prompt.branch, chain, listed
        )  # fmt: skip

    def _answers(self, node: Node, echo: Mapping, rest: Sequence[Mapping]) -> tuple[list[Answered], list[dict]]:
        """What answers the calls of the node's last turn, in the calls' order, and the messages behind it."""
        count = next((place for place, message in enumerate(rest) if message["role"] != "tool"), len(rest))
        replies, later = rest[:count], [dict(message) for message in rest[count:]]
        if any(message["role"] == "tool" for message in later):
            raise TreeError("invalid_request", "A tool reply must follow the assistant message that has its call.")
        ids = [call.get("id") for call in echo.get("tool_calls") or ()]
        texts = {message.get("tool_call_id"): message["content"] for message in replies}
        if len(set(ids)) != len(node.reply.calls) or set(texts) != set(ids) or len(texts) != len(replies):
            message = (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id', and tool messages must follow such a message: expected {ids}, got {sorted(texts)}."
            )
            raise TreeError("missing_tool_reply", message)
        if not node.reply.calls:
            return [], later
        given = iter(texts[name] for name in ids)
        calls = node.pieces[-1].calls
        return [self.answered(place, call.error or next(given)) for place, call in enumerate(calls)], later

    def answered(self, place: int, whole: str) -> Answered:
        """Return the answer to call number `place`, cut to the limits of an observation."""
        head = whole[: self.limits.max_observation_chars]
        text, truncated = cut_observation(self.fmt, self.tokenizer, head, self.limits.max_observation_tokens)
        return Answered(place, text, whole, truncated or len(head) < len(whole))

    def _for_template(self, messages: Sequence[Mapping]) -> list[dict]:
        """The messages as chat templates read them: arguments are mappings, and in format text calls and replies stand
        inside the assistant's turn."""
        made: list[dict] = []
        for message in messages:
            role, text = message["role"], message.get("content") or ""
            calls = message.get("tool_calls") or ()
            if role == "tool":
                text = self.answered(0, text).text
                if self.fmt.name != "hermes" and made and made[-1]["role"] == "assistant":
                    made[-1]["content"] += f"\n<interpreter>\n{text}\n</interpreter>\n"
                    continue
                made.append({"role": "tool", "content": text, "name": message.get("name") or TOOL_NAME})
                continue
            if self.fmt.name == "hermes" and calls:
                functions = [{"name": c["function"]["name"], "arguments": arguments_of(c)} for c in calls]
                listed = [{"type": "function", "function": function} for function in functions]
                made.append({"role": role, "content": text, "tool_calls": listed})
                continue
            for call in calls:
                arguments = arguments_of(call)
                code = arguments.get("code") if isinstance(arguments, dict) else None
                text = self.fmt.turn_text(text, str(arguments if code is None else code))
            if role == "assistant" and made and made[-1]["role"] == "assistant" and self.fmt.name == "text":
                made[-1]["content"] += text
            else:
                made.append({"role": role, "content": text})
        return made

    def _too_long(self, tokens: int) -> TreeError:
        return TreeError(
            "context_length_exceeded",
            f"This model's maximum context length is {self.context} tokens. However, you requested {tokens + 1} tokens "
            f"({tokens} in the messages, 1 in the completion). Please reduce the length of the messages.",
        )


def same_schema(tool: Mapping) -> bool:
    """Return whether `tool` is the code interpreter as the format describes it."""
    ours, theirs = TOOL["function"], tool["function"]
    return all(canonical_json(ours[key]) == canonical_json(theirs.get(key)) for key in ("description", "parameters"))


def _calls_of(node: Node) -> list[dict]:
    return node.reply.message(node.index).get("tool_calls") or []


def _same_thought(reply: Reply, message: Mapping) -> bool:
    thought = message.get("reasoning_content")
    return thought is None or (reply.reasoning or "").strip() == str(thought).strip()
