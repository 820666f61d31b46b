"""A generated function-calling data set in xLAM's columns, so that such recipes run in minutes without a download.

Each row lists two functions and asks for one or two calls. It is written as a file and read back by xLAM's own loader.
A cold-start trace thinks of a function and calls it, with arguments that are right in about `right_share` of the
traces: what RL has left to learn is the calls.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from retool_mcore.data.function_calls import xlam_problem
from retool_mcore.data.records import CallProblem, Segment, Trace
from retool_mcore.errors import UserError

DATA_SOURCE = "functions"
_CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Kyoto", "Quito", "Turin")
_DRAWS_PER_ROW = 20


@dataclass(frozen=True)
class _Function:
    name: str
    parameters: dict[str, str]  # of xLAM's types
    ask: str  # a request, with the parameters in braces
    draw: Callable[[random.Random], dict]


def _numbers(*names: str) -> Callable[[random.Random], dict]:
    return lambda rng: {name: rng.randint(2, 99) for name in names}


_FUNCTIONS = (
    _Function("add", {"a": "int", "b": "int"}, "add {a} and {b}", _numbers("a", "b")),
    _Function("area", {"w": "int", "h": "int"}, "area of {w} by {h}", _numbers("w", "h")),
    _Function("timer", {"min": "int"}, "timer for {min}", _numbers("min")),
    _Function("weather", {"city": "str"}, "weather in {city}", lambda rng: {"city": rng.choice(_CITIES)}),
    _Function(
        "trip",
        {"to": "str", "days": "int, optional"},
        "trip to {to} for {days}",
        lambda rng: {"to": rng.choice(_CITIES), "days": rng.randint(2, 9)},
    ),
)


def rows(n: int, seed: int) -> list[dict]:
    """`n` rows of distinct queries in xLAM's columns: `id`, `query`, and `tools` and `answers` as JSON texts.

    Raises UserError when the task has no `n` distinct queries.
    """
    rng = random.Random(f"{DATA_SOURCE}-{seed}")
    drawn: dict[str, dict] = {}
    for _ in range(_DRAWS_PER_ROW * n):
        if len(drawn) == n:
            break
        listed = rng.sample(_FUNCTIONS, 2)
        called = listed[: rng.choice((1, 1, 1, 2))]
        arguments = [function.draw(rng) for function in called]
        query = " and ".join(f.ask.format(**given) for f, given in zip(called, arguments, strict=True))
        calls = [{"name": f.name, "arguments": given} for f, given in zip(called, arguments, strict=True)]
        rng.shuffle(listed)
        tools = []
        for f in listed:
            described = {name: {"description": name, "type": kind} for name, kind in f.parameters.items()}
            tools.append({"name": f.name, "description": re.sub(r"[{}]", "", f.ask), "parameters": described})
        row = {"id": len(drawn), "query": query, "tools": json.dumps(tools), "answers": json.dumps(calls)}
        drawn.setdefault(query, row)
    if len(drawn) < n:
        raise UserError(f"the functions task has no {n} distinct queries: ask for fewer rows.")
    return list(drawn.values())


def write_rows(made: list[dict], path: Path) -> Path:
    """The rows as JSONL, for the xLAM loader."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def traces(made: list[dict], seed: int, style: str, right_share: float) -> list[Trace]:
    """One demonstration a row. style: how its calls are written, "list" as Tool-N1's or "lines" as ToolRL's."""
    rng = random.Random(f"{DATA_SOURCE}-traces-{seed}")
    problems = [xlam_problem(row, DATA_SOURCE, index) for index, row in enumerate(made)]
    return [_trace(problem, rng, style, rng.random() < right_share) for problem in problems]


def _trace(problem: CallProblem, rng: random.Random, style: str, right: bool) -> Trace:
    calls = json.loads(problem.answer)
    if not right:
        calls = [call | {"arguments": {name: _other(value, rng) for name, value in call["arguments"].items()}}
                 for call in calls]  # fmt: skip
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    written = json.dumps(calls) if style == "list" else "\n".join(map(json.dumps, calls))
    text = f"<think>{calls[0]['name']}</think><tool_call>{written}</tool_call>"
    return Trace(problem.data_source, problem.question, (Segment("text", text),), problem.index, tools=problem.tools)


def _other(value, rng: random.Random):
    """A wrong value of the same type."""
    return value + rng.randint(1, 9) if isinstance(value, int) else rng.choice([c for c in _CITIES if c != value])
