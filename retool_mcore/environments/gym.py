"""Environments with `reset` and `step` (Gymnasium's, OpenEnv's or of that form) as tools of an episode.

The policy acts by calling the environment's tool. Each observation is the call's reply; each reward is recorded as the
call's `value`, from which `rewards/outcome.py::environment` takes the return. Several environments are several tools:
a row of the data lists the one that it belongs to (`write_rows`).
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retool_mcore.data import schema
from retool_mcore.data.function_schema import function_schema
from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode, Reply, Tool, load, result_of

ABILITY = schema.ENVIRONMENT
_ACTION = {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]}


class GymEnvironment(Tool):
    """One environment a trajectory, for `toolbox.use`.

    make: dotted path of a class or function that returns an environment, called with `args`. name, description: the
    tool's. parameters: JSON schema of a call's arguments, by default one text `action`. What `step` gets is the value
    of `action` where that is the only argument, else all arguments as a dict, made into `action_type` (a dotted path:
    OpenEnv's actions are classes) where there is one.

    `reset` is called with `seed`, the row's index, where it takes one. `step` returns Gymnasium's (observation, reward,
    terminated, truncated, info), Gym's four, or an object with `observation`, `reward` and `done`. Both may be
    coroutines; others run in a thread. Raises UserError for a path that cannot be loaded or has no `reset` and `step`.
    """

    parallel = False  # a step follows the one before

    def __init__(
        self,
        make: str,
        name: str,
        description: str = "Acts in the environment and returns what is seen then.",
        args: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        action_type: str | None = None,
    ):
        self.make, self.args = load(make, "environment"), dict(args or {})
        self.action_type = load(action_type, "environment") if action_type else None
        self.schema = function_schema(name, description, dict(parameters or _ACTION))
        if inspect.isclass(self.make) and (missing := [m for m in ("reset", "step") if not hasattr(self.make, m)]):
            raise UserError(f"the environment {make} has no {' and no '.join(missing)}: give one with reset and step.")

    async def begin(self, seed: int) -> tuple[Any, str]:
        """(an environment of its own, reset with this seed; its first observation as text)."""
        environment = await result_of(self.make, **self.args)
        takes_seed = "seed" in inspect.signature(environment.reset).parameters
        seen = await result_of(environment.reset, **({"seed": seed} if takes_seed else {}))
        seen = seen[0] if isinstance(seen, tuple) else getattr(seen, "observation", seen)
        return environment, _text(seen)

    async def open(self, episode: Episode) -> None:
        episode.state[self.name], _ = await self.begin(int(episode.row.get("index", 0)))

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        """An exception of `step` is an error that the policy reads, worth nothing; the environment stays as it is."""
        action = arguments["action"] if set(arguments) == {"action"} else arguments
        if self.action_type is not None:
            action = self.action_type(**arguments)
        outcome = await result_of(episode.state[self.name].step, action)
        if isinstance(outcome, tuple):
            seen, reward, *ends = outcome[:-1]
        else:
            seen, reward, ends = outcome.observation, outcome.reward, [outcome.done]
        return Reply(_text(seen), value=repr(float(reward or 0.0)), ends=any(map(bool, ends)))

    async def release(self, episode: Episode) -> None:
        await _close(episode.state.pop(self.name))

    def rows(
        self, seeds: Iterable[int], split: str, prompt: Callable[[str], list[dict]], beside: Sequence[Tool] = ()
    ) -> Iterator[dict]:
        """An RL row (data/schema.py) for each seed; `prompt` makes messages of the first observation. See `write_rows`.
        Not inside an event loop."""
        listed = json.dumps([tool.schema for tool in (self, *beside) if not tool.answers_texts])
        named = {"environment": self.name} if self.answers_texts else {}
        for seed in seeds:
            made, seen = asyncio.run(self.begin(seed))
            asyncio.run(_close(made))
            messages = prompt(seen)
            extra = {"index": seed, "split": split, "question": messages[-1]["content"]}
            extra |= {"tools": listed, "replies": "[]"} | named
            yield schema.rl_row(self.name, messages, ABILITY, ABILITY, **extra)


def write_rows(
    environment: GymEnvironment, path: Path | str, *, seeds: Iterable[int], instructions: str = "",
    split: str = "train", beside: Sequence[Tool] = (),
) -> None:  # fmt: skip
    """Write an RL parquet of `environment`: a row a seed, whose prompt is `instructions` and the first observation.

    The data source is the tool's name, and the row lists that tool and those `beside` it, no others of the run: files
    of several environments may be trained on together. An environment that answers texts is named in place of listed.
    Runs the environments; for a script, not inside an event loop.
    """

    def prompt(seen: str) -> list[dict]:
        return [{"role": "user", "content": "\n\n".join(filter(None, [instructions, seen]))}]

    schema.write_rows(environment.rows(seeds, split, prompt, beside), schema.RL_SCHEMA, Path(path))


async def _close(environment: Any) -> None:
    if hasattr(environment, "close"):
        await result_of(environment.close)


def _text(seen: Any) -> str:
    if isinstance(seen, str):
        return seen
    return json.dumps(seen, ensure_ascii=False, default=lambda value: getattr(value, "tolist", value.__str__)())
