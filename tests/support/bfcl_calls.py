"""Calls for every row of the Berkeley leaderboard's data, right and wrong, judged by its checker and by our reward.

Calls are made from the accepted values: right ones (the shortest, with every argument, with the last accepted values,
restyled texts) and wrong ones (a wrong value, a value of a wrong type, a missing, an extra argument, another function,
one call too many or too few). Each is judged by the official checker and by `rewards/tool_calls.py::judge` on the row
as `data=bfcl` prepares it. The calls are ours, so the checker runs in this process.
"""

import copy
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

from retool_mcore.data.bfcl import PACKAGE
from retool_mcore.data.records import CallProblem
from retool_mcore.data.sources import get_source, load
from retool_mcore.rewards.tool_calls import judge

MODEL = "any"


def official_checker() -> tuple[Callable, Any]:
    """Return the package's checker and its languages, without the libraries of the models that it serves."""
    models = ModuleType("bfcl_eval.constants.model_config")
    # The checker asks one thing of a model: whether its function names have no dots.
    models.MODEL_CONFIG_MAPPING = {MODEL: SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
    sys.modules["bfcl_eval.constants.model_config"] = models
    from bfcl_eval.constants.enums import Language  # type: ignore[import-not-found]
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # type: ignore[import-not-found]

    return ast_checker, Language


def official(checker: Callable, languages: Any, problem: CallProblem, calls: list[dict]) -> bool:
    """Return the official verdict; a checker that raises accepts nothing."""
    category = problem.extra["category"]
    if category.endswith("relevance"):
        return bool(calls) != category.endswith("irrelevance")
    kind = "java" if category.endswith("java") else "javascript" if category.endswith("javascript") else "python"
    made = [{call["name"]: copy.deepcopy(call["arguments"])} for call in calls]
    answers, functions = (json.loads(problem.extra[name]) for name in ("possible_answer", "function"))
    try:
        return bool(checker(functions, made, answers, languages(kind), category, MODEL)["valid"])
    except Exception:
        return False


def ours(problem: CallProblem, calls: list[dict]) -> bool:
    text = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls) or "None of them fits."
    return judge(text, problem.answer)["acc"] == 1.0


# --- right calls


def right_calls(problem: CallProblem, every: bool = False, which: int = 0) -> list[dict]:
    """Calls of accepted values: `every` optional argument or none, of each the first value (`which` 0) or the last."""
    answers, functions = (json.loads(problem.extra[name]) for name in ("possible_answer", "function"))
    described = {function["name"]: function["parameters"] for function in functions}
    category = problem.extra["category"]
    language = next((name for name in ("javascript", "java") if category.endswith(name)), "")
    calls = []
    for answer in answers:
        ((name, values),) = answer.items()
        properties, required = described[name]["properties"], described[name].get("required", [])
        arguments = {}
        for parameter, options in values.items():
            given = [option for option in options if option != ""]
            if given and (every or "" not in options or parameter in required):
                value = plain(given[which])
                arguments[parameter] = literal(value, properties.get(parameter, {}), language) if language else value
        calls.append({"name": name, "arguments": arguments})
    return calls


def plain(value: Any) -> Any:
    """Return an accepted value with the first of the values that its objects list."""
    if isinstance(value, dict) and all(isinstance(options, list) and options for options in value.values()):
        given = {key: [option for option in options if option != ""] for key, options in value.items()}
        return {key: options[0] for key, options in given.items() if options}
    return [plain(item) for item in value] if isinstance(value, list) else value


def literal(value: Any, described: dict, language: str) -> Any:
    """Return the source text of a value of a declared type."""
    kind, items = described.get("type"), (described.get("items") or {}).get("type")
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        suffix = {("java", "float"): "f", ("java", "long"): "L", ("javascript", "Bigint"): "n"}.get(
            (language, kind), ""
        )
        return f"{value}{suffix}"
    if isinstance(value, str):
        return value
    if language == "javascript":
        if isinstance(value, dict):
            return json.dumps(value)
        parts = [json.dumps(item) if isinstance(item, list | str) else f"{item}" for item in value]
        return f"[{', '.join(parts)}]"
    if isinstance(value, dict):
        puts = " ".join(f"put({json.dumps(key)}, {json.dumps(item)});" for key, item in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    parts = [item if kind == "Array" and isinstance(item, str) else json.dumps(item) for item in value]
    parts = [f"{part}L" if items == "long" else part for part in parts]
    opened = ("new Object[]{", "}") if kind == "Array" else ("new ArrayList<Object>(Arrays.asList(", "))")
    return ", ".join(parts).join(opened)


def restyled(value: Any) -> Any:
    if isinstance(value, str):
        return value.upper().replace(" ", "-") + "."
    return [restyled(item) for item in value] if isinstance(value, list) else value


# --- perturbed calls


def with_arguments(calls: list[dict], change: Callable[[dict], dict | None]) -> list[dict] | None:
    """The calls with the arguments of the first of them changed that `change` can change; None when none is."""
    for place, call in enumerate(calls):
        changed = change(dict(call["arguments"]))
        if changed is not None:
            return [*calls[:place], call | {"arguments": changed}, *calls[place + 1 :]]
    return None


def each_value(change: Callable[[Any], Any]) -> Callable[[dict], dict | None]:
    """Change the first argument's value for which `change` returns another."""

    def changed(arguments: dict) -> dict | None:
        for name, value in arguments.items():
            other = change(value)
            if other is not None:
                return arguments | {name: other}
        return None

    return changed


def other_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    if isinstance(value, str):
        inside = re.sub(r"(?=[)\]}])", "q", value, count=1)  # of a list or an object in a language's own words
        return inside if inside != value else value + "q"
    if isinstance(value, list):
        return [*value, value[0]] if value else None
    if isinstance(value, dict) and value:
        key = next(iter(value))
        return value | {key: other_value(value[key])}
    return None


def other_type(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return float(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return [value]
    return json.dumps(value)


def floats_as_integers(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else None


def all_of_another_type(arguments: dict) -> dict:
    return {name: other_type(value) for name, value in arguments.items()}


def without_one(arguments: dict) -> dict | None:
    return {name: arguments[name] for name in list(arguments)[1:]} if arguments else None


def one_more(arguments: dict) -> dict:
    return arguments | {"further_argument": 1}


def kinds(problem: CallProblem, rng: random.Random) -> Iterator[tuple[str, list[dict] | None]]:
    """Yield (kind, calls) of one row; None where the row has nothing of the kind."""
    category = problem.extra["category"]
    listed = [tool["function"]["name"] for tool in json.loads(problem.tools)]
    if category.endswith("relevance"):
        call = {"name": rng.choice(listed or ["a_function"]), "arguments": {}}
        calls: list[list[dict]] = [[], [call]] if category.endswith("irrelevance") else [[call], []]
        yield from zip(("right: shortest", "wrong: a call or none"), calls, strict=True)
        return
    shortest = right_calls(problem)
    yield "right: shortest", shortest
    yield "right: every argument", right_calls(problem, every=True)
    yield "right: the last accepted values", right_calls(problem, every=True, which=-1)
    yield "right: an integer for a float", with_arguments(shortest, each_value(floats_as_integers))
    yield "restyled texts", [c | {"arguments": {k: restyled(v) for k, v in c["arguments"].items()}} for c in shortest]
    yield "wrong: value", with_arguments(shortest, each_value(other_value))
    yield "wrong: type", with_arguments(shortest, each_value(other_type))
    yield (
        "wrong: type",
        with_arguments(shortest, lambda given: {name: other_type(value) for name, value in given.items()}),
    )
    yield "wrong: missing argument", with_arguments(shortest, without_one)
    yield "wrong: extra argument", with_arguments(shortest, one_more)
    yield "wrong: function", [shortest[0] | {"name": shortest[0]["name"] + "_of"}, *shortest[1:]]
    others = [name for name in listed if name != shortest[0]["name"]]
    yield "wrong: function", [shortest[0] | {"name": others[0]}, *shortest[1:]] if others else None
    yield "wrong: one call more", [*shortest, shortest[0]]
    yield "wrong: one call less", shortest[1:]
    yield "order reversed", shortest[::-1] if len(shortest) > 1 else None


def problems() -> list[CallProblem]:
    """Return the rows that the installed package ships and `data=bfcl` reads."""
    return [p for p in load(replace(get_source("bfcl"), loose=True), PACKAGE) if isinstance(p, CallProblem)]
