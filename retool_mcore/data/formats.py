"""How a policy writes a tool call and reads the observation: the only place where tags, fences and headers are spelt.

The rollout and SFT both go through here, so that the tokens that SFT teaches are the tokens that RL meets. A response
is a list of pieces that are encoded one by one (policy turn, observation, policy turn, ...), never as one string: the
rollout cannot re-encode what the policy sampled, so SFT must not merge tokens over such a border either.

- `text`: ReTool's tags (arXiv 2504.11536), one assistant turn: `<code>...</code><interpreter>...</interpreter>`.
- `hermes`: `<tool_call>{"name": "code_interpreter", "arguments": {"code": ...}}</tool_call>`, then the role `tool`.
  Any tools may be listed in its prompt; a call of one that is not listed, or whose arguments do not fit the tool's
  JSON schema, is malformed.
- `none`: text only, the baseline without an interpreter.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retool_mcore.data.blocks import call_blocks, code_block, open_program, unfenced
from retool_mcore.data.call_forms import block_values, call_parts
from retool_mcore.data.function_schema import argument_error, function_schema
from retool_mcore.data.special_tokens import POLICY_TAGS, SpecialTokens
from retool_mcore.errors import UserError

TOOL_NAME = "code_interpreter"
_PROGRAM = {"code": {"type": "string", "description": "The Python program."}}
TOOL = function_schema(
    TOOL_NAME,
    "Runs a Python program and returns what it prints.",
    {"type": "object", "properties": _PROGRAM, "required": ["code"]},
)

_REPLY = "REPLY-0"
_THINK = "<think>"
_MAX_LISTED = 200  # characters of an error that names the tools


@dataclass(frozen=True)
class ToolCall:
    """One call in a policy turn, or, when it is malformed, the `error` that the policy reads instead.

    `code` is the program of a well-formed call of the code interpreter, None for every other. `name` and `arguments`
    are the call's, also of a malformed one as far as they could be read. `start` is the character offset in the turn's
    text at which the call's block begins.
    """

    code: str | None
    error: str | None
    start: int
    name: str | None = TOOL_NAME
    arguments: dict | None = None


def rendered(tokenizer, messages: Sequence[Mapping], tools: list[dict] | None, **arguments) -> str:
    """The text that the tokenizer's chat template makes of a conversation. Raises UserError when the template raises.

    A template may refuse a role, an order of roles or a missing field by an exception of its own, and its expressions
    raise what Python raises.
    """
    try:
        return tokenizer.apply_chat_template(list(messages), tools=tools, tokenize=False, **arguments)
    except Exception as error:
        roles = ", ".join(str(message.get("role")) for message in messages) + (" with tools" if tools else "")
        words = " ".join(str(error).split()) or "no reason given"
        raise UserError(
            f"The chat template refused a conversation of {roles} ({type(error).__name__}: {words}). Take another one "
            "(model.chat_template=NAME, docs/models.md), or rollout.format=text if it is the tools that it refuses."
        ) from error


class Format:
    """Format `none`, and what all formats share: the prompt, the end of a turn, and neutralised observations.

    Raises UserError when the chat template does not extend a conversation by appending text to it, since then no token
    of an earlier turn would be safe, or when no single token ends an assistant turn.
    """

    name = "none"
    stop: tuple[str, ...] = ()
    tools: list[dict] | None = None
    # The token that closes a policy turn before an observation; None when observations stand inside the turn.
    turn_end: int | None = None
    # The text that opens an observation, by which a policy that imitates one is known; "" without observations.
    observation_open: str = ""

    def __init__(self, tokenizer, template_kwargs: Mapping | None = None):
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        question = {"role": "user", "content": "QUESTION-0"}
        self._turns = [question, {"role": "assistant", "content": _REPLY}]
        self._base = self._render(self._turns)
        opened = self._render([question], add_generation_prompt=True) + _REPLY
        if not self._base.startswith(opened):
            raise UserError(
                "The chat template writes an assistant turn that does not begin with its own generation prompt, so a "
                f"sampled turn would not be a turn of the template: it wrote {self._base!r}, expected {opened!r} first."
            )
        tail = self._base[len(opened) :]
        # Not tokenizer.eos_token, which differs from the template's end of turn in base models.
        self.eos_id: int = (self.encode(tail) or [-1])[0]
        self.eos_text: str = self.decode([self.eos_id]) if tail else ""
        added = tokenizer.added_tokens_decoder.values()
        self._special = sorted(t.content for t in added if t.special)
        if self.eos_text not in self._special:
            raise UserError(
                "The chat template must end an assistant turn with a special token such as <|im_end|>, "
                f"but it ends with {tail!r}."
            )
        # R1-Distill's <｜User｜> is no special token, and an observation that holds it would begin a turn all the same.
        bare = self._render(self._turns, add_generation_prompt=True, tools=[])
        self._special += [t.content for t in added if not t.special and not t.content.isalpha() and t.content in bare]
        self._in_observation = SpecialTokens(self._special)
        self._in_text = SpecialTokens(token for token in self._special if token not in POLICY_TAGS)
        generation = self._render([question], add_generation_prompt=True)
        self._prefill = generation[generation.rfind(_THINK) :] if _THINK in generation else ""
        self._after_eos = tail.removeprefix(self.eos_text)
        # Engines also stop at the end tokens of a generation config; Qwen2.5's has its pad token <|endoftext|> in it.
        self.eos_ids = frozenset({self.eos_id, tokenizer.eos_token_id, tokenizer.pad_token_id} - {None})

    def _render(
        self, messages: Sequence[Mapping], add_generation_prompt: bool = False, tools: list[dict] | None = None
    ) -> str:
        return rendered(
            self.tokenizer,
            messages,
            (self.tools if tools is None else tools) or None,
            add_generation_prompt=add_generation_prompt,
            **self.template_kwargs,
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with no begin-of-sequence token added."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included: what the engine matches its stop strings against."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def prompt_text(self, messages: Sequence[Mapping], tools: list[dict] | None = None) -> str:
        """Return the conversation `messages` and the generation prompt, with the schemas of the tools if any.

        `tools` are OpenAI function schemas in place of the format's own; only format `hermes` can list them.
        """
        if tools and self.tools is None:
            raise UserError(f"format {self.name} cannot list tools in a prompt: set rollout.format=hermes.")
        messages, tools = self.neutral(list(messages)), self.neutral(tools)
        return self._render(messages, add_generation_prompt=True, tools=tools)

    def prompt_ids(self, messages: Sequence[Mapping], tools: list[dict] | None = None) -> list[int]:
        """Return the token ids of `prompt_text`."""
        return self.encode(self.prompt_text(messages, tools))

    def continuation_ids(
        self, messages: Sequence[Mapping], *, ended: bool, observations: Sequence[str] = ()
    ) -> list[int]:
        """Return the token ids that append `messages` and the generation prompt to a sampled assistant turn.

        ended: whether the turn has its end token; of one that was cut off the template's own is written first.
        observations: what answers the turn's calls, before the messages. Raises UserError for a chat template that
        changes earlier turns then.
        """
        if not observations:
            ids = self._following(self.neutral(list(messages)))
            return ids if ended else [self.eos_id, *ids]
        ids = self._answered_ids(observations, self.neutral(list(messages)))
        return ids if ended or self.turn_end is None else [self.turn_end, *ids]

    def _answered_ids(self, observations: Sequence[str], messages: Sequence[Mapping]) -> list[int]:
        raise NotImplementedError("format none never calls the interpreter, so it has no observations")

    def _following(self, messages: Sequence[Mapping]) -> list[int]:
        whole = self._render([*self._turns, *messages], add_generation_prompt=True)
        if not whole.startswith(self._base):
            raise UserError("The chat template changes earlier turns when others follow: take another one.")
        return self.encode(self._after_eos + whole[len(self._base) :])

    def neutral(self, value: Any) -> Any:
        """Return a text, or messages or schemas with all of their texts, with a space inside every token that makes a
        turn: what a data set holds must not add a turn to the template's. The tags that a policy writes stay."""
        if isinstance(value, str):
            return self._in_text.broken_up(value)
        if isinstance(value, Mapping):
            return {self.neutral(key): self.neutral(part) for key, part in value.items()}
        return [self.neutral(part) for part in value] if isinstance(value, list | tuple) else value

    def prefill(self, prompt_ids: Sequence[int]) -> str:
        """Return the thought that the template opens, or closes again, at the end of a prompt; "" where it does not.

        A reward that looks for `<think>` must read it in front of what the policy wrote.
        """
        ends = self._prefill and self.decode(prompt_ids[-len(self._prefill) :]).endswith(self._prefill)
        return self._prefill if ends else ""

    def plain(self, observation: str) -> str:
        """`observation` without trailing white space and with a space inside every token that makes a turn.

        A program that prints `<|im_end|>` must not be able to end the turn for the policy.
        """
        return self._in_observation.broken_up(observation).rstrip()

    def shown(self, sampled: str) -> str:
        """Return what a reader sees of a sampled text: no token that makes a turn. The tags that a policy writes
        stay."""
        return self._in_text.removed(sampled)

    def parse(self, turn_text: str, tools: list[dict] | None = None) -> list[ToolCall]:
        """The calls in one sampled turn's text, in order; empty when the turn is a final answer.

        `tools` are the schemas that the prompt listed in place of the format's own.
        """
        return []

    def goes_on(self, turn_text: str) -> bool:
        """Return whether a stop string that ended `turn_text` only stands in a program's string or comment."""
        return False

    def turn_text(self, text: str, code: str | None) -> str:
        """The text of a policy turn that says `text` and then calls the interpreter with `code` (None: no call)."""
        return text

    def user_ids(self, text: str) -> list[int]:
        """Token ids that follow a turn's end token: the user's next turn `text`, and what lets the policy go on.

        Raises UserError for a chat template that changes earlier turns then."""
        turns = [*self._turns, {"role": "user", "content": self.plain(text)}]
        whole = self._render(turns, add_generation_prompt=True)
        if not whole.startswith(self._base):
            raise UserError(
                "The chat template changes earlier turns when the user's next one follows, so an environment that "
                f"answers texts needs another template (it wrote {whole!r} after {self._base!r})."
            )
        return self.encode(self._after_eos + whole[len(self._base) :])

    def observation_ids(self, observations: Sequence[str]) -> list[int]:
        """Token ids that follow a turn with calls: its observations in order, and whatever lets the policy go on."""
        return self._answered_ids(observations, [])


class TextFormat(Format):
    """Format `text`: program and output stand inside one assistant turn, between tags."""

    name = "text"
    stop = ("</code>",)
    observation_open = "<interpreter>"

    def parse(self, turn_text: str, tools: list[dict] | None = None) -> list[ToolCall]:
        block = code_block(turn_text)
        if block is None:
            return []
        if not block.closed:
            error = "Error: </code> without <code>. Write the program between <code> and </code>."
            return [ToolCall(None, error, block.start)]
        return [_call(unfenced(block.body), block.start)]

    def goes_on(self, turn_text: str) -> bool:
        return open_program(turn_text)

    def turn_text(self, text: str, code: str | None) -> str:
        return text if code is None else f"{text}<code>\n```python\n{code}\n```\n</code>"

    def _answered_ids(self, observations: Sequence[str], messages: Sequence[Mapping]) -> list[int]:
        ids = self.encode("".join(f"\n<interpreter>\n{self.plain(o)}\n</interpreter>\n" for o in observations))
        return [*ids, self.eos_id, *self._following(messages)] if messages else ids


class HermesFormat(Format):
    """Format `hermes`: function calls in the assistant turn, outputs in the role `tool` as the template has them."""

    name = "hermes"
    tools = [TOOL]

    def __init__(self, tokenizer, template_kwargs: Mapping | None = None):
        super().__init__(tokenizer, template_kwargs)
        self.turn_end = self.eos_id
        for count in (1, 2):
            whole = self._render(self._turns + self._replies(["OUTPUT-0"] * count), add_generation_prompt=True)
            if not whole.startswith(self._base) or whole.count("OUTPUT-0") != count:
                raise UserError(
                    "The chat template changes earlier turns when tool replies follow, so sampled tokens could not be "
                    f"kept verbatim (it wrote {whole!r} after {self._base!r}): use format=text or another template."
                )
        whole = self._render(self._turns + self._replies(["OUTPUT-0"]), add_generation_prompt=True)
        self.observation_open = whole[len(self._base) : whole.index("OUTPUT-0")].rstrip().rpartition("\n")[2]

    def parse(self, turn_text: str, tools: list[dict] | None = None) -> list[ToolCall]:
        """Parse like `Format.parse`. With `tools`, a block may also hold several calls, as Tool-N1 (a JSON list) and
        ToolRL (one object a line) write them."""
        listed = self.tools if tools is None else tools
        parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in listed}
        calls = []
        for block in call_blocks(turn_text):
            if block.closed:
                calls += _read_block(block.body, block.start, parameters, several=tools is not None)
            elif block.end < len(turn_text) or block.body.rstrip().endswith(self.eos_text):
                calls.append(ToolCall(None, "Error: <tool_call> without </tool_call>.", block.start, None))
        return calls

    def turn_text(self, text: str, code: str | None) -> str:
        if code is None:
            return text
        call = json.dumps({"name": TOOL_NAME, "arguments": {"code": code}}, ensure_ascii=False)
        gap = "\n" if text and not text.endswith("\n") else ""
        return f"{text}{gap}<tool_call>\n{call}\n</tool_call>"

    def _replies(self, observations: Sequence[str]) -> list[dict]:
        return [{"role": "tool", "name": TOOL_NAME, "content": self.plain(o)} for o in observations]

    def _answered_ids(self, observations: Sequence[str], messages: Sequence[Mapping]) -> list[int]:
        return self._following([*self._replies(observations), *messages])


FORMATS = {cls.name: cls for cls in (TextFormat, HermesFormat, Format)}


def get_format(name: str, tokenizer, template_kwargs: Mapping | None = None) -> Format:
    """The format called `name` ("text", "hermes" or "none") over `tokenizer`, a fast tokenizer with a chat template.

    `template_kwargs` go to the chat template (such as `enable_thinking`). Raises UserError for another name or an
    unfit template.
    """
    if name not in FORMATS:
        raise UserError(f"Unknown format {name!r}: expected one of {', '.join(FORMATS)}.")
    if not tokenizer.chat_template:
        raise UserError("The tokenizer has no chat template: use an instruct model's or set chat_template.")
    return FORMATS[name](tokenizer, template_kwargs)


def _call(code: str, start: int) -> ToolCall:
    empty = "Error: the program is empty. Write Python code that prints what you want to see."
    program, error = (code, None) if code.strip() else (None, empty)
    return ToolCall(program, error, start, TOOL_NAME, {"code": code})


def _read_block(body: str, start: int, parameters: Mapping[str, dict], several: bool) -> list[ToolCall]:
    try:
        values = block_values(body, lines=several)
    except ValueError as error:
        return [ToolCall(None, f"Error: the tool call is not valid JSON: {error}.", start, None)]
    if len(values) != 1 and not several:
        return [ToolCall(None, "Error: write one call, a JSON object, in each <tool_call>.", start, None)]
    return [_check_call(call, start, parameters) for call in values]


def _check_call(call: Any, start: int, parameters: Mapping[str, dict]) -> ToolCall:
    name, arguments, wrong = call_parts(call)

    def malformed(reason: str) -> ToolCall:
        # What is no text cannot be written to a record.
        named = name if isinstance(name, str) and _is_text(name) else None
        return ToolCall(None, f"Error: {reason}.", start, named, arguments)

    if not isinstance(name, str) or name not in parameters:
        listed = ", ".join(parameters)[:_MAX_LISTED]
        known = f"The only tool is {listed}" if len(parameters) == 1 else f"The tools are {listed or 'none'}"
        return malformed(f"unknown tool {str(name)[:60]!r}. {known}")
    if arguments is None:
        return malformed(f"the arguments of {name} must be a JSON object: {wrong}")
    if not _is_text(arguments):
        return malformed("the arguments hold half of a surrogate pair, which is not valid text")
    if reason := argument_error(parameters[name], arguments):
        return malformed(f"the arguments of {name} do not fit its schema: {reason}")
    if name == TOOL_NAME and parameters[name] == TOOL["function"]["parameters"]:
        return _call(arguments["code"], start)
    return ToolCall(None, None, start, name, arguments)


def _is_text(value) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
