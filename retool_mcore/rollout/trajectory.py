"""The record of one episode: token ids, response mask, log-probabilities, spans and calls, and its JSON form."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from retool_mcore.data.blocks import prose


@dataclass
class Span:
    """Tokens `start` to `end` (exclusive) of the response, of one `kind`: "policy" or "observation"."""

    kind: str
    start: int
    end: int


@dataclass
class Version:
    """The weights that wrote what the policy sampled of tokens `start` to `end` (exclusive): the update they are of."""

    version: int
    start: int
    end: int


@dataclass
class Call:
    """One call that was run (or, when `malformed`, answered with an error) and what came of it.

    `status` is the sandbox's Status, or "malformed"; then `stderr` holds the error that the policy reads. `turn`
    counts policy turns from 0; `start` is the offset in the response of the token in which the call's block begins;
    `truncated` says that the policy read a shortened observation. `code` is the program of a call of the code
    interpreter; for other calls `arguments` is what the policy called `tool` with, as JSON text, also in a malformed
    call as far as they could be read; None where not.
    """

    code: str | None
    malformed: bool
    status: str
    stdout: str
    stderr: str
    value: str | None
    duration_s: float
    turn: int
    start: int
    truncated: bool
    tool: str | None = None
    arguments: str | None = None


@dataclass
class Turn:
    """One policy turn, as it was read when it was sampled.

    `programs` counts complete calls, run or not; `boxed` says that the turn's prose holds a boxed answer; `fakes` are
    the offsets in the response of the tokens in which the policy opens a block that only the interpreter may write.
    `generate_s` and `tool_s` are the seconds that it waited for the engine and then for the sandbox.
    """

    programs: int
    boxed: bool
    fakes: list[int]
    generate_s: float
    tool_s: float = 0.0


@dataclass
class Trajectory:
    """One episode. `response_ids`, `response_mask` and `logprobs` are aligned token by token.

    `response_mask` is 1 exactly on tokens that the policy sampled. `logprobs` are the engine's log-probabilities of
    the sampled tokens and 0.0 on observation tokens; empty when the engine returned none. `spans` partition the
    response; every policy turn and every turn's observations are one span. `turns` counts policy turns. `finish` is
    one of

    - "answer": the policy ended its turn without a call;
    - "length": the response budget (or the engine's context) is spent; a call in the last turn is not run;
    - "turn_length": a turn reached its own limit with no call in it;
    - "overflow": the observations of the last turn left no room for another token: they are dropped whole, their calls
      stay;
    - "max_turns": the policy called again after its last allowed call, or after a reply that none is left
      (`Limits.after_last_call`); that turn's calls are not run, nor noted;
    - "tool": a tool ended the episode, as where function-calling data asks for the call alone;
    - "sandbox_error": the sandbox itself failed in a call, so what the policy would have read is not known.

    `generate_s` and `tool_s` are seconds spent waiting for the engine and for the sandbox; `started` is when the
    episode began, in seconds since 1970. `turn_notes` has one entry a policy turn.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    logprobs: list[float]
    spans: list[Span]
    calls: list[Call]
    turns: int
    finish: str
    generate_s: float
    tool_s: float
    started: float = 0.0
    turn_notes: list[Turn] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    taken_over: bool = False

    def to_record(self) -> dict:
        """Plain dicts and lists, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping) -> "Trajectory":
        """Return the trajectory of a record, which may hold further columns."""
        values = {field.name: record[field.name] for field in fields(cls) if field.name in record}
        for name, kind in (("spans", Span), ("calls", Call), ("turn_notes", Turn), ("versions", Version)):
            values[name] = [kind(**part) for part in record.get(name) or []]
        return cls(**values)


def answer_text(trajectory: Trajectory, tokenizer) -> str:
    """Return the policy's own prose: no observation, no code block, no special token.

    A blank line stands where a call was, since a call separates two answers. Blocks that imitate an interpreter's
    output are left out as well: nothing inside them counts as the answer.
    """
    turns = []
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    for span in trajectory.spans:
        if span.kind == "policy":
            ids = trajectory.response_ids[span.start : span.end]
            text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            text = prose(text)
            for token in special:
                text = text.replace(token, "")
            turns.append(text)
    return "\n\n".join(turns)
