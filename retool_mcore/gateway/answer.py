"""One choice of a chat request: an episode of the rollout whose text is sent as it comes.

Where the front runs the tools, the episode is one of training: same format, limits, tools and sandbox. Where the client
runs them, it ends with its first turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from retool_mcore.data.blocks import prose
from retool_mcore.data.formats import Format
from retool_mcore.gateway.parsed import reply_of
from retool_mcore.gateway.refusal import WireError
from retool_mcore.gateway.replies import Choice, token_logprob
from retool_mcore.gateway.visible import BLOCKS, Visible, parted, unread_tokens
from retool_mcore.gateway.wire import ChatRequest, Sampling
from retool_mcore.rollout.episode import Generation, Limits, run_episode
from retool_mcore.rollout.sampling import turn_params
from retool_mcore.rollout.seeds import request_seed
from retool_mcore.sandbox.base import Status
from retool_mcore.tools.base import Reply
from retool_mcore.tools.toolbox import HeardTools, Toolbox

REASONS = {"answer": "stop", "stop": "stop", "tool": "stop"}  # by the trajectory's `finish`; the others: length


@dataclass(frozen=True)
class Piece:
    """Tokens as an engine sampled them, their log-probabilities, and of each the likeliest tokens with theirs."""

    ids: list[int]
    logprobs: list[float]
    likeliest: list[list[tuple[int, float]]] = field(default_factory=list)


@dataclass(frozen=True)
class Read:
    """The prompt as an engine read it: tokens from its cache, and the log-probabilities where they were asked for (the
    first token has none)."""

    cached: int = 0
    piece: Piece | None = None


class Engine(Protocol):
    """Samples after `ids` by `params`, names and values of vLLM's SamplingParams. `grown` gets each piece as it comes;
    true ends the turn."""

    async def __call__(self, ids: list[int], params: dict[str, Any], grown: Callable[[Piece], bool]) -> Read: ...


@dataclass(frozen=True)
class Policy:
    """A policy that answers, with all that it was trained with.

    tools: run here; None: the client runs its own. timeout_s: of a program. context: tokens of prompt and response.
    sampling: temperature and top_p where a request names none. prompt: template of the user's messages, None: none.
    """

    fmt: Format
    engine: Engine
    tools: Toolbox | None
    limits: Limits
    timeout_s: float
    context: int
    sampling: Mapping[str, float]
    prompt: str | None = None


def drawn(policy: Policy, sampling: Sampling, alternatives: int) -> dict[str, Any]:
    """Return vLLM's parameters for how a request wants tokens drawn, without a seed."""
    names = [name for name in Sampling.__dataclass_fields__ if name != "seed"]
    asked = {name: value for name in names if (value := getattr(sampling, name)) is not None}
    return {**policy.sampling, **asked, "logprobs": alternatives, "detokenize": bool(policy.fmt.stop)}


class _Stopped(Exception):
    """A stop string of the client's ended the answer."""


class Answer:
    """One choice as it is made.

    Args:
        prompt_ids: the conversation.
        seed: of this choice.
        send: gets what a client may read, in order: ("thought" | "text", text, log-probabilities), ("calls", calls),
            ("step", call).
        name: of the reply, for the ids of calls.
    """

    def __init__(
        self, policy: Policy, request: ChatRequest, prompt_ids: list[int], *, seed: int, name: str,
        send: Callable[..., None] = lambda kind, content, logprobs=None: None,
    ):  # fmt: skip
        self.policy, self.request, self.prompt_ids = policy, request, prompt_ids
        self.seed, self.name, self.send = seed, name, send
        self.fmt = policy.fmt
        self.unread = unread_tokens(self.fmt)
        self.text = {"thought": "", "text": ""}
        self.logprobs: list[dict] = []
        self._taken = 0  # entries of `logprobs` that were sent
        self._begun: set[str] = set()  # kinds of text that the turn has had
        self.steps: list[dict] = []
        self.errors: list[str | None] = []  # of the turn's calls, None for those that the client gets
        self.calls: list[dict] = []
        self.turns = self.sampled = self.cached = 0
        self.turn_ids: list[int] = []
        self.ids: list[int] = []  # of the whole conversation; empty where a stop string ended it
        self._expected = -1  # tokens of a request that goes on with the same turn
        self.visible: Visible | None = None

    async def run(self) -> Choice:
        """Make the choice. Raises WireError where the sandbox fails."""
        room = self.policy.context - len(self.prompt_ids)
        limits, asked = self.policy.limits, self.request.max_tokens
        if self.policy.tools is None:
            most = min(asked or limits.max_turn_tokens, room)
            limits = replace(limits, max_turns=0, max_turn_tokens=most, max_response_tokens=most, after_last_call="end")
            tools = Toolbox([])
        else:
            most = min(asked or room, limits.max_response_tokens, room)
            limits = replace(limits, max_response_tokens=most)
            tools = HeardTools(self.policy.tools, self._heard)
        try:
            trajectory = await run_episode(
                self.prompt_ids, generate=self._turn, sandbox=None, fmt=self.fmt, tokenizer=self.fmt.tokenizer,
                limits=limits, timeout_s=self.policy.timeout_s, tools=tools,
            )  # fmt: skip
            finish, self.ids = trajectory.finish, trajectory.prompt_ids + trajectory.response_ids
        except _Stopped:
            finish = "stop"
        if finish == Status.SANDBOX:
            raise WireError(503, "sandbox_error", "The sandbox failed, so this answer could not be finished.")
        self._end_turn()
        if self.visible is not None and self.visible.stopped:
            finish = "stop"
        elif self.policy.tools is None and finish == "max_turns":
            finish = "answer"  # the turn called, which its client may answer
        if self.request.logprobs and self._taken < len(self.logprobs):
            self.send("text", "", self._taken_logprobs())
        reason = "tool_calls" if self.calls else REASONS.get(finish, "length")
        return Choice(
            self._message(), reason, self.logprobs if self.request.logprobs else None, {"retool_finish": finish}
        )

    def _message(self) -> dict:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self.text["text"] or ("" if not self.calls else None),
        }
        message |= {"reasoning_content": self.text["thought"]} if self.text["thought"] else {}
        message |= {"tool_calls": self.calls} if self.calls else {}
        return message | ({"retool_calls": self.steps} if self.request.steps else {})

    async def _turn(self, ids: list[int], most: int) -> Generation:
        if len(ids) != self._expected:
            self._end_turn()
            if self.visible is not None and self.visible.stopped:
                raise _Stopped
            hidden = BLOCKS if self.policy.tools is not None or self.request.tools else ()
            prefill = self.fmt.prefill(self.prompt_ids) if not self.turns else ""
            opened = bool(prefill) and "</think>" not in prefill
            self.visible = Visible(self.fmt, self.unread, self.request.stop, hidden, opened)
            self.turn_ids, self._begun = [], set()
        logprobs: list[float] = []
        new: list[int] = []

        def grown(piece: Piece) -> bool:
            new.extend(piece.ids)
            logprobs.extend(piece.logprobs)
            self._note_logprobs(piece)
            self.visible.grow(piece.ids)
            self._send(*self.visible.new())
            return self.visible.stopped

        seed = request_seed(self.seed, 0, 0, 0, self.turns, len(self.turn_ids))
        sampling = drawn(self.policy, self.request.sampling, self.request.top_logprobs)
        params = turn_params(sampling, self.fmt, max_tokens=most, seed=seed)
        read = await self.policy.engine(ids, params, grown)
        self.cached = self.cached if self.turns else read.cached
        self.turns += 1
        self.sampled += len(new)
        self.turn_ids += new
        self._expected = len(ids) + len(new)
        if self.visible.stopped:
            raise _Stopped
        return Generation(new, logprobs)

    def _end_turn(self) -> None:
        """Send what was held back of a turn that has ended, and in the client's own case its calls."""
        if not self.turn_ids:
            return
        ids, self.turn_ids = self.turn_ids, []
        if self.visible.stopped or self.policy.tools is not None:
            whole = self.fmt.decode([token for token in ids if token not in self.unread])
            thought, content = parted(whole, self.visible.opened)
            self._send(*self.visible.rest(thought, content if self.visible.stopped else prose(content)))
            return
        listed = self.request.tools if self.fmt.tools is not None else None
        # The end of a turn closes a block, so it is read with its end token.
        calls = self.fmt.parse(self.fmt.decode(ids), listed) if self.request.tools else []
        reply = reply_of(self.fmt, ids, calls, opened="<think>" if self.visible.opened else "")
        self._send(*self.visible.rest(reply.reasoning or "", reply.content))
        if reply.calls and not self.visible.stopped:
            self.errors = [call.error for call in calls]
            message = reply.message(0)
            named = [f"call_{self.name}_{place}" for place in range(len(reply.calls))]
            self.calls = [{**call, "id": name} for call, name in zip(message["tool_calls"], named, strict=True)]
            self.send("calls", self.calls)

    def _send(self, thought: str, text: str) -> None:
        for kind, new in (("thought", thought), ("text", text)):
            if new:
                gap = "\n\n" if self.text[kind] and kind not in self._begun else ""
                self._begun.add(kind)
                self.text[kind] += gap + new
                self.send(kind, gap + new, self._taken_logprobs())

    def _heard(self, name: str, arguments: dict, reply: Reply) -> None:
        step = {"name": name, "arguments": arguments, "output": reply.text, "status": str(reply.status)}
        self.steps.append(step | {"seconds": round(reply.duration_s or 0.0, 3)})
        if self.request.steps:
            self.send("step", self.steps[-1])

    def _note_logprobs(self, piece: Piece) -> None:
        if not self.request.logprobs:
            return
        for place, (token, logprob) in enumerate(zip(piece.ids, piece.logprobs, strict=True)):
            likeliest = piece.likeliest[place][: self.request.top_logprobs]
            others = [(self.fmt.decode([other]), value) for other, value in likeliest]
            self.logprobs.append(token_logprob(self.fmt.decode([token]), logprob, others))

    def _taken_logprobs(self) -> list[dict] | None:
        """The entries that were not sent yet; None where none are asked for."""
        if not self.request.logprobs:
            return None
        taken, self._taken = self.logprobs[self._taken :], len(self.logprobs)
        return taken
