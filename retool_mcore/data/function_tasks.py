"""Generated function-calling data sets in xLAM's columns, so that such recipes run in minutes without a download.

`data=functions`: a row lists two of five functions and asks for one or two calls. It is written as a file and read back
by xLAM's own loader.

`data=calls`: 400 functions; evaluation and training share none. A row asks for one to three calls and
lists three functions too many, mostly with a word of the right ones. A request words its values differently from a
call (reserve for book, 3 pm for 15), values in any order, and some of the optional ones are not asked for.

A cold-start trace thinks of a function and calls it, with arguments that are right in about `right_share` of the
traces: what RL has left to learn is the calls.
"""

import functools
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retool_mcore.data.function_calls import xlam_problem
from retool_mcore.data.records import CallProblem, Segment, Trace, draw_distinct

SPLITS = {"train": range(300), "held_back": range(300, 350), "test": range(350, 400)}  # of the functions of `calls`
DISTRACTORS = 3
_LEFT_OUT = 0.4  # of the optional arguments
_DRAWS_PER_ROW = 20


@dataclass(frozen=True)
class _Parameter:
    type: str  # xLAM's
    values: tuple[tuple[Any, Any], ...]  # (as the request says it, as the call passes it)
    phrases: Sequence[str]  # the request's value in braces
    left_out: float = 0.0  # the share of requests without it

    def optional(self) -> "_Parameter":
        return replace(self, type=f"{self.type}, optional", left_out=_LEFT_OUT)


@dataclass(frozen=True, eq=False)
class Function:
    """`asks`: how a request for it begins."""

    name: str
    asks: tuple[str, ...]
    parameters: dict[str, _Parameter]
    any_order: bool = False  # in which a request says the arguments

    @property
    def described(self) -> dict:
        """Return the function as xLAM lists it."""
        phrases = [self.asks[0], *(p.phrases[0].format(name) for name, p in self.parameters.items())]
        listed = {name: {"description": name, "type": p.type} for name, p in self.parameters.items()}
        return {"name": self.name, "description": " ".join(phrases), "parameters": listed}

    def request(self, rng: random.Random) -> tuple[str, dict]:
        """(what is asked, the arguments of the call that it asks for)."""
        parts, arguments, order = [_one(self.asks, rng)], {}, list(self.parameters)
        if self.any_order:
            rng.shuffle(order)
        for name in order:
            parameter = self.parameters[name]
            if not parameter.left_out or rng.random() >= parameter.left_out:
                value, arguments[name] = rng.choice(parameter.values)
                parts.append(_one(parameter.phrases, rng).format(value))
        return " ".join(parts), {name: arguments[name] for name in self.parameters if name in arguments}

    def other(self, name: str, value: Any, rng: random.Random) -> Any:
        """A wrong value of the same type."""
        if type(value) is int:
            return value + rng.randint(1, 9)
        return rng.choice([other for _, other in self.parameters[name].values if other != value])


def _one(options: Sequence[str], rng: random.Random) -> str:
    return rng.choice(options) if len(options) > 1 else options[0]


def _parameter(kind: str, values: Mapping | Sequence, *phrases: str) -> _Parameter:
    """Return a parameter of xLAM's type `kind`; a mapping of values is {value in the request: value in the call}."""
    pairs = values.items() if isinstance(values, Mapping) else zip(values, values, strict=True)
    return _Parameter(kind, tuple(pairs), phrases)


_CITIES = ["Rome", "Oslo", "Lima", "Cairo", "Delhi", "Kyoto", "Quito", "Turin"]
FUNCTIONS = (
    Function(
        "add", ("add",), {"a": _parameter("int", range(2, 100), "{}"), "b": _parameter("int", range(2, 100), "and {}")}
    ),
    Function(
        "area",
        ("area",),
        {"w": _parameter("int", range(2, 100), "of {}"), "h": _parameter("int", range(2, 100), "by {}")},
    ),
    Function("timer", ("timer",), {"min": _parameter("int", range(2, 100), "for {}")}),
    Function("weather", ("weather",), {"city": _parameter("str", _CITIES, "in {}")}),
    Function(
        "trip",
        ("trip",),
        {"to": _parameter("str", _CITIES, "to {}"), "days": _parameter("int, optional", range(2, 10), "for {}")},
    ),
)

# `data=calls` has a function for each verb with each noun: called by the first word, asked for by either.
_VERBS = {
    "book": "reserve",
    "cancel": "annul",
    "find": "locate",
    "send": "ship",
    "buy": "purchase",
    "rent": "hire",
    "fix": "repair",
    "clean": "wash",
    "move": "shift",
    "check": "inspect",
    "lock": "secure",
    "hide": "conceal",
    "track": "follow",
    "print": "draw",
    "rate": "grade",
    "copy": "clone",
    "list": "name",
    "pack": "wrap",
    "swap": "trade",
    "share": "lend",
}
_NOUNS = {
    "hotel": "inn",
    "flight": "plane",
    "car": "auto",
    "parcel": "package",
    "photo": "picture",
    "song": "tune",
    "meal": "dish",
    "novel": "story",
    "ticket": "pass",
    "letter": "note",
    "room": "hall",
    "shirt": "top",
    "phone": "mobile",
    "bike": "cycle",
    "lamp": "light",
    "garden": "lawn",
    "file": "record",
    "clock": "watch",
    "tent": "shelter",
    "boat": "vessel",
}
_MORE_CITIES = "Paris Bern Accra Dakar Hanoi Seoul Sofia Tunis Vienna Warsaw Zagreb Malmo"
_PEOPLE = (
    "Anna Bruno Clara David Elena Felix Greta Hugo Irene Jonas Karla Liam Marta Nora Oscar Petra Quinn Rosa Simon Tilda"
)
_COLORS = "red blue green white black pink grey brown yellow orange"
_NUMBERS = "two three four five six seven eight nine ten eleven twelve"
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
# As a request says them, and as a call has them.
_COUNTS = dict(zip(_NUMBERS.split(), range(2, 13), strict=True))
_DAYS = {day: day[:3].lower() for day in _WEEKDAYS.split()}
_HOURS = {f"{n} am": n for n in range(7, 12)} | {"noon": 12} | {f"{n} pm": n + 12 for n in range(1, 9)}
_SIZES = {"tiny": "XS", "small": "S", "medium": "M", "large": "L", "huge": "XL"}
_URGENCY = {"at once": True, "right away": True, "without hurry": False, "some time": False}
_LANGUAGES = {
    "Spanish": "es",
    "French": "fr",
    "German": "de",
    "Italian": "it",
    "Dutch": "nl",
    "Polish": "pl",
    "Turkish": "tr",
    "Greek": "el",
}
# A kind of parameter: the names that functions have for it, and the parameter.
_KINDS = (
    (("city", "town", "place"), _parameter("str", _CITIES + _MORE_CITIES.split(), "in {}", "near {}")),
    (("owner", "person", "client"), _parameter("str", _PEOPLE.split(), "for {}", "on behalf of {}")),
    (("count", "amount", "number"), _parameter("int", _COUNTS, "{} times", "in {} rounds")),
    (("day", "date", "weekday"), _parameter("str", _DAYS, "on {}", "by {}")),
    (("hour", "time", "start"), _parameter("int", _HOURS, "at {}", "from {}")),
    (("price", "budget", "limit"), _parameter("int", range(10, 1000), "for at most {}", "below {}")),
    (("color", "paint", "shade"), _parameter("str", _COLORS.split(), "in {}", "coloured {}")),
    (("size", "scale", "format"), _parameter("str", _SIZES, "sized {}", "that is {}")),
    (("code", "id", "ref"), _parameter("int", range(1000, 10000), "numbered {}", "with code {}")),
    (("lang", "tongue", "locale"), _parameter("str", _LANGUAGES, "in {}", "put into {}")),
    (("urgent", "fast", "rush"), _parameter("bool", _URGENCY, "{}")),
    (("mass", "weight", "load"), _parameter("int", range(2, 100), "of {} kilos", "weighing {}")),
)


@functools.cache
def call_functions(signatures: str = "") -> tuple[Function, ...]:
    """The functions of `data=calls`, in an order that no seed changes and that tells nothing of them; with `signatures`
    the same names with other parameters."""
    made = []
    for (verb, other), (noun, alias) in itertools.product(_VERBS.items(), _NOUNS.items()):
        rng = random.Random(f"{signatures}{verb} {noun}")
        parameters = {}
        for place, (names, parameter) in enumerate(rng.sample(_KINDS, rng.choice((1, 2, 2, 3)))):
            name = rng.choice(names)
            optional = place > 0 and rng.random() < 0.5
            parameters[name] = parameter.optional() if optional else parameter
        asks = tuple(f"{v} the {n}" for v, n in itertools.product((verb, other), (noun, alias)))
        listed = dict(sorted(parameters.items()))  # as `xlam_problem` sorts the arguments
        made.append(Function(f"{verb}_{noun}", asks, listed, any_order=True))
    return tuple(sorted(made, key=lambda function: hashlib.sha256(function.name.encode()).digest()))


def rows(n: int, seed: int) -> list[dict]:
    """`n` rows of distinct queries in xLAM's columns: `id`, `query`, and `tools` and `answers` as JSON texts.

    Raises UserError when the task has no `n` distinct queries.
    """
    rng = random.Random(f"functions-{seed}")

    def draw() -> dict:
        listed = rng.sample(FUNCTIONS, 2)
        return _row(listed[: rng.choice((1, 1, 1, 2))], listed, rng)

    return _distinct(n, draw, "functions")


def call_rows(n: int, seed, split: str, mix: Mapping[str, float], near: float, signatures: str = "") -> list[dict]:
    """Draw rows of data=calls like `rows`. `mix`: weights of calls_1 to calls_3, rows that ask for so many calls;
    `near`: share of the distractors that have a word of a right function; `signatures`: passed to `call_functions`."""
    functions, rng = [call_functions(signatures)[p] for p in SPLITS[split]], random.Random(f"calls-{split}-{seed}")

    def draw() -> dict:
        called = rng.sample(functions, int(rng.choices(list(mix), list(mix.values()))[0].removeprefix("calls_")))
        words = {word for function in called for word in function.name.split("_")}
        listed = list(called)
        while len(listed) < len(called) + DISTRACTORS:
            left = [function for function in functions if function not in listed]
            alike = [function for function in left if not words.isdisjoint(function.name.split("_"))]
            listed.append(rng.choice(alike if alike and rng.random() < near else left))
        return _row(called, listed, rng)

    return _distinct(n, draw, "calls")


def _row(called: list[Function], listed: list[Function], rng: random.Random) -> dict:
    asked = [function.request(rng) for function in called]
    query = " and ".join(text for text, _ in asked)
    calls = [{"name": f.name, "arguments": arguments} for f, (_, arguments) in zip(called, asked, strict=True)]
    rng.shuffle(listed)
    return {"query": query, "tools": json.dumps([f.described for f in listed]), "answers": json.dumps(calls)}


def _distinct(n: int, draw: Callable[[], dict], task: str) -> list[dict]:
    refusal = f"the {task} task has no {n} distinct queries: ask for fewer rows."
    return draw_distinct(n, _DRAWS_PER_ROW, lambda index: {"id": index} | draw(), lambda row: row["query"], refusal)


def call_problem(row: dict, index: int) -> CallProblem:
    """The data source is calls_1 to calls_3, so that metrics tell the levels apart."""
    return xlam_problem(row, f"calls_{len(json.loads(row['answers']))}", index)


def is_literal(row: dict) -> bool:
    """True if every word of the calls' names and every value stands in the query as it is called with."""
    calls = json.loads(row["answers"])
    called = (word for call in calls for word in (*call["name"].split("_"), *map(str, call["arguments"].values())))
    return set(called) <= set(row["query"].split())


def traces(made: list[dict], seed: int, style: str, right_share: float, task: str = "functions") -> list[Trace]:
    """One demonstration a row. style: how its calls are written, "list" as Tool-N1's or "lines" as ToolRL's."""
    rng = random.Random(f"{task}-traces-{seed}")
    problems = [xlam_problem(row, task, index) for index, row in enumerate(made)]
    known = {function.name: function for function in (FUNCTIONS if task == "functions" else call_functions())}
    return [_trace(problem, rng, style, rng.random() < right_share, known) for problem in problems]


def _trace(problem: CallProblem, rng: random.Random, style: str, right: bool, known: Mapping[str, Function]) -> Trace:
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in json.loads(problem.answer)]
    for call in [] if right else calls:
        arguments, function = call["arguments"], known[call["name"]]
        call["arguments"] = {name: function.other(name, value, rng) for name, value in arguments.items()}
    written = json.dumps(calls) if style == "list" else "\n".join(map(json.dumps, calls))
    text = f"<think>{calls[0]['name']}</think><tool_call>{written}</tool_call>"
    return Trace(problem.data_source, problem.question, (Segment("text", text),), problem.index, tools=problem.tools)
