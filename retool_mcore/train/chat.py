"""A conversation with a policy in the terminal: its tokens as they come, its calls and what the tools answer.

Every answer is an episode of the rollout (rollout/episode.py): same format, limits, tools and sandbox as in training.
The next question is appended to the tokens of the answers before, which are never encoded again.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from retool_mcore.data.formats import Format
from retool_mcore.data.prompts import in_template
from retool_mcore.errors import UserError
from retool_mcore.rollout.episode import Generation, Limits, run_episode
from retool_mcore.rollout.trajectory import Trajectory
from retool_mcore.tools.toolbox import HeardTools, Toolbox
from retool_mcore.train.loaded import loaded

HELP = """\
/reset          begin a new conversation
/system TEXT    begin a new one under this system message; without a text, under none
/save [NAME]    write this conversation's answers to RUN/eval/NAME (chat), for `retool view RUN --eval NAME`
/help           this list
/exit           end (or Ctrl-D); Ctrl-C ends an answer"""
CUT = {  # by the trajectory's `finish`
    "length": "cut: no room was left for the answer (rollout.max_response_tokens)",
    "turn_length": "cut: a turn was too long (rollout.max_turn_tokens)",
    "overflow": "cut: the tools' output did not fit (rollout.max_response_tokens)",
    "max_turns": "cut: no calls were left (rollout.max_turns)",
    "sandbox_error": "cut: the sandbox failed",
}


class Conversation:
    """A conversation's questions and answers, as tokens.

    Args:
        generate: (token ids, most new tokens, `show`) -> one turn; `show(ids)` gets all of its ids so far.
        show: gets text as it comes, and its kind: "policy" or "tool".
        context: tokens of the engine.
    """

    def __init__(
        self,
        fmt: Format,
        generate: Callable[..., Awaitable[Generation]],
        tools: Toolbox | None,
        limits: Limits,
        *,
        timeout_s: float,
        context: int,
        prompt: str | None,
        system: str | None = None,
        show: Callable[[str, str], None] = lambda text, kind: None,
    ):
        self.fmt, self.generate, self.tools, self.limits = fmt, generate, tools, limits
        self.timeout_s, self.context, self.prompt, self.show = timeout_s, context, prompt, show
        self.reset(system)

    def reset(self, system: str | None) -> None:
        """Forget the whole conversation."""
        self.system, self.ids, self.answers = system, [], []

    async def ask(self, text: str) -> Trajectory:
        """The answer to `text`. Raises UserError where the conversation leaves no room for one."""
        ids = self._asked(text)
        room = self.context - len(ids) - self.limits.max_response_tokens
        if room < 0:
            raise UserError(
                f"the conversation has {len(ids)} tokens, an answer may have {self.limits.max_response_tokens}, "
                f"and this chat has {self.context}: /reset begins a new one, `retool chat --context N` gives more."
            )
        shown = Shown(self.fmt, self.show)
        trajectory = await run_episode(
            ids,
            generate=lambda so_far, most: self.generate(so_far, most, shown.turn),
            sandbox=None,
            fmt=self.fmt,
            tokenizer=self.fmt.tokenizer,
            limits=self.limits,
            timeout_s=self.timeout_s,
            tools=self.tools and HeardTools(self.tools, lambda name, arguments, reply: self.show(reply.text, "tool")),
        )
        self.ids = trajectory.prompt_ids + trajectory.response_ids
        self.answers.append((text, trajectory))
        return trajectory

    def _asked(self, text: str) -> list[int]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [*system, {"role": "user", "content": text}]
        messages = in_template(self.prompt, messages) if self.prompt else messages
        if self.ids:
            following = [message for message in messages if message["role"] != "system"]
            return self.ids + self.fmt.continuation_ids(following, ended=self.ids[-1] in self.fmt.eos_ids)
        return self.fmt.prompt_ids(messages, self.tools.schemas if self.tools else None)

    def records(self) -> list[dict]:
        """The answers as an evaluation keeps them (metrics/records.py); nothing is graded."""
        where = {"sample": 0, "data_source": "chat", "ground_truth": "", "acc": 0.0, "pred": ""}
        return [
            trajectory.to_record() | where | {"index": index, "question": question}
            for index, (question, trajectory) in enumerate(self.answers)
        ]


class Shown:
    """The text of a turn as it grows: only whole characters, and no token that ends a turn."""

    def __init__(self, fmt: Format, show: Callable[[str, str], None]):
        self.fmt, self.show = fmt, show
        self.count, self.text = 0, ""

    def turn(self, ids: Sequence[int]) -> None:
        """`ids`: all of the turn so far."""
        if len(ids) < self.count:
            self.text = ""  # another turn
        self.count = len(ids)
        whole = self.fmt.decode([token for token in ids if token not in self.fmt.eos_ids])
        text = whole.rstrip("\ufffd")
        if len(text) > len(self.text) and text.startswith(self.text):
            self.show(text[len(self.text) :], "policy")
            self.text = text


class Screen:
    """Text on a terminal: the policy's plain, the tools' dim and behind a bar."""

    def __init__(self, file: Any = sys.stdout):
        self.file, self.fresh = file, True
        self.dim = ("\033[2m", "\033[0m") if file.isatty() else ("", "")

    def line_end(self) -> str:
        """Return the text that is missing for a new line to begin."""
        return "" if self.fresh else "\n"

    def show(self, text: str, kind: str) -> None:
        if kind == "tool":
            dim, plain = self.dim
            lines = "\n".join(f"| {line}" for line in text.rstrip().splitlines() or ["(no output)"])
            text = f"{self.line_end()}{dim}{lines}{plain}\n"
        self.fresh = text.endswith("\n")
        self.file.write(text)
        self.file.flush()


def summary(trajectory: Trajectory) -> str:
    """Return one line on an answer: tokens, seconds, calls, and why it ended where it was cut."""
    seconds = trajectory.generate_s + trajectory.tool_s
    parts = [f"{sum(trajectory.response_mask)} tokens", f"{seconds:.1f} s"]
    if count := len(trajectory.calls):
        failed = sum(call.status != "success" for call in trajectory.calls)
        parts.append(f"{count} call{'s' * (count > 1)}")
        parts += [f"{failed} failed"] * bool(failed)
    if trajectory.finish in CUT:
        parts.append(CUT[trajectory.finish])
    return ", ".join(parts)


def talk(conversation: Conversation, run_dir: Path, read: Callable[[], str], screen: Screen, run: Callable) -> None:
    """Answer what `read` gives, until it raises EOFError. run: runs a coroutine to its end, as asyncio.Runner does."""
    while True:
        try:
            text = read().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            print("\n/exit or Ctrl-D ends", file=screen.file)
            continue
        word, _, rest = text.partition(" ")
        if word in ("/exit", "/quit"):
            return
        if word == "/reset":
            conversation.reset(conversation.system)
        elif word == "/system":
            conversation.reset(rest.strip() or None)
        elif word == "/save":
            print(save(conversation, run_dir, rest.strip() or "chat"), file=screen.file)
        elif word.startswith("/"):
            print(HELP, file=screen.file)
        elif text:
            answer(conversation, text, screen, run)


def answer(conversation: Conversation, text: str, screen: Screen, run: Callable) -> None:
    """Show the answer to `text`. After Ctrl-C the conversation stands as before the question."""
    try:
        ended = summary(run(conversation.ask(text)))
    except KeyboardInterrupt:
        ended = "stopped: the question and this answer are forgotten"
    except UserError as error:
        ended = str(error)
    dim, plain = screen.dim
    screen.show(f"{screen.line_end()}{dim}[{ended}]{plain}\n\n", "policy")


def save(conversation: Conversation, run_dir: Path, name: str) -> str:
    """Write the answers where `retool view` finds them; returns what to type."""
    if "/" in name or not conversation.answers:
        return (
            "nothing is written: there is no answer yet" if not conversation.answers else "/save NAME, without a slash"
        )
    folder = run_dir / "eval" / name
    if (folder / "metrics.json").exists():
        return f"nothing is written: {folder} is an evaluation; give another name"
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record) + "\n" for record in conversation.records())
    (folder / "trajectories.jsonl").write_text(lines)
    config = (run_dir / "chat" / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config)  # names the policy, whose tokenizer spells the tokens
    return f"{len(conversation.answers)} answers: retool view {run_dir} --eval {name}"


def chat(config) -> None:
    """Load the policy of an evaluation's configuration and answer what is typed. Raises UserError."""
    from retool_mcore.backends.vllm.engine import streamed  # vLLM takes seconds

    with suppress(ImportError):
        import readline  # noqa: F401  # the arrow keys of `input`
    screen = Screen()
    print(f"{config.policy_path}: loading", file=screen.file, flush=True)

    clock, stack = time.monotonic(), AsyncExitStack()
    with asyncio.Runner() as runner:
        ready = runner.run(stack.enter_async_context(loaded(config, config.chat.context)))
        try:
            conversation = Conversation(
                ready.fmt, streamed(ready.engine, config, ready.fmt), ready.tools, ready.limits,
                timeout_s=ready.timeout_s, context=ready.context, system=config.chat.system, show=screen.show,
                prompt=None if config.chat.raw else config.data.prompt,
            )  # fmt: skip
            seconds = time.monotonic() - clock
            print(f"ready after {seconds:.0f} s, {ready.context} tokens of context; /help lists the commands\n")
            talk(conversation, Path(config.run_dir), lambda: input("> "), screen, runner.run)
        finally:
            runner.run(stack.aclose())


def main(config_path: str) -> int:
    try:
        chat(OmegaConf.load(config_path))
    except UserError as error:
        print(f"retool: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
