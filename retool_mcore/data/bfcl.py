"""The Berkeley function-calling leaderboard (BFCL): its files, its single-turn rows, and what is left out of it.

The package bfcl-eval ships the data. It is found and never imported: importing it takes the libraries of every model
that the leaderboard serves.
"""

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retool_mcore.data.accepted_calls import accepted_calls
from retool_mcore.data.function_calls import conversation_problem
from retool_mcore.data.function_schema import tool_schemas
from retool_mcore.data.readers import text_rows
from retool_mcore.data.records import CallProblem, MalformedRow, field, text_field
from retool_mcore.errors import UserError

PACKAGE, VERSION = "bfcl-eval", "2026.3.23"
NAME = "bfcl"  # data sources are bfcl/CATEGORY
ANSWERS = "possible_answer"  # the folder next to the questions that holds the right answers
ANY_CALL = '{"calls": "any"}'  # rewards/call_truth.py::ANY

_FILE = re.compile(r"BFCL_v\d+_(?P<category>\w+)\.jsonl?")
_CATEGORY = re.compile(
    r"(?:live_)?(?:simple|multiple|parallel|parallel_multiple|irrelevance|relevance)|simple_(?:python|java|javascript)"
    r"|java|javascript"
)
_UNUSED = "unused_datasets"
_REASONS = {
    r"multi_turn_\w+": "several turns, judged by the state that executed calls leave",
    r"memory": "needs the memory of earlier conversations",
    r"web_search": "searches the live web",
    r"format_sensitivity": "other prompts for rows that are read",
    r"exec_\w+|rest": "judged by executing calls",
}
_OTHER = "not a category of single turns"


def package_folder(location: str) -> Path | None:
    """Return the data folder of the installed package where `location` is its name, else None.

    Raises UserError where the package is not installed.
    """
    if location != PACKAGE or Path(location).exists():
        return None
    spec = importlib.util.find_spec("bfcl_eval")
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        raise UserError(
            f"the package {PACKAGE}, which ships the leaderboard's data, is not installed: "
            f"run `pip install --no-deps {PACKAGE}=={VERSION}`."
        )
    folder = Path(folders[0]) / "data"
    if not folder.is_dir():
        raise UserError(f"{folder} is not there: run `pip install --no-deps {PACKAGE}=={VERSION}` again.")
    return folder


def is_leaderboard(files: Sequence[Path]) -> bool:
    """Return whether any of `files` has a name that the leaderboard gives its data."""
    return any(_FILE.fullmatch(file.name) for file in files)


def chosen_files(files: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files whose rows are read, and one line for each kind of those that are left out, with its count.

    Files without any name of the leaderboard's are all read. Raises UserError where none is left.
    """
    if not is_leaderboard(files):
        return list(files), []
    read, left = [], Counter[tuple[str, str]]()
    for file in files:
        named = _FILE.fullmatch(file.name)
        category = named["category"] if named else ""
        if _UNUSED in file.parts:
            left[_UNUSED, "which the leaderboard no longer scores"] += 1
        elif not named:
            left[file.parent.name, "no questions of a category"] += 1
        elif _CATEGORY.fullmatch(category):
            read.append(file)
        else:
            left[category, _reason(category)] += _row_count(file)
    lines = _left_out(left)
    if not read:
        raise UserError(f"{files[0].parent} holds no category that is read: {'; '.join(lines)}.")
    return read, lines


def _reason(category: str) -> str:
    return next((reason for pattern, reason in _REASONS.items() if re.fullmatch(pattern, category)), _OTHER)


def _left_out(counts: Counter[tuple[str, str]]) -> list[str]:
    lines = []
    for reason in dict.fromkeys(reason for _, reason in counts):
        names = [name for name, other in counts if other == reason]
        total = sum(counts[name, reason] for name in names)
        unit = "rows" if reason in (*_REASONS.values(), _OTHER) else "files"
        lines.append(f"left out {total} {unit} ({', '.join(names)}): {reason}")
    return lines


def _row_count(file: Path) -> int:
    """Return the lines of a file that hold a row, or of one JSON object of lists the items in them."""
    with file.open("rb") as stream:
        lines = sum(bool(line.strip()) for line in stream)
    try:
        whole = json.loads(file.read_bytes()) if lines > 1 else None
    except ValueError:
        whole = None
    return sum(len(items) for items in whole.values()) if isinstance(whole, dict) else lines


def with_answers(rows: Iterator[Any], file: Path) -> Iterator[Any]:
    """Yield the rows with the `ground_truth` that the leaderboard keeps next to the questions, by id.

    Rows that have one already, and those of a category without answers, stay as they are. Raises UserError when a row
    needs one and there is no such file.
    """
    answers: dict[str, Any] | None = None
    for row in rows:
        if isinstance(row, dict) and "ground_truth" not in row and not category_of(row).endswith("relevance"):
            if answers is None:
                answers = _answers(file.parent / ANSWERS / file.name, file)
            if row.get("id") in answers:
                row = row | {"ground_truth": answers[row["id"]]}
        yield row


def _answers(path: Path, questions: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(
            f"{questions} has no ground_truth, and there is no {path.parent.name}/{path.name} next to it: "
            f"copy the folder {path.parent.name} as well."
        )
    rows = list(text_rows(path))
    if not all(isinstance(row, dict) and {"id", "ground_truth"} <= row.keys() for row in rows):
        raise UserError(f"{path} must hold one JSON object a line with id and ground_truth.")
    return {row["id"]: row["ground_truth"] for row in rows}


def category_of(row: dict) -> str:
    """Return the category that a row's id names, as `live_multiple` of `live_multiple_3-2-0`; "" without one."""
    identity = row.get("id")
    return identity.rpartition("_")[0] if isinstance(identity, str) else ""


def bfcl_problem(row: dict, data_source: str, index: int) -> CallProblem:
    """Return a row of the single-turn categories: `id`, `question`, `function`, `ground_truth`.

    The truth keeps every accepted value (rewards/call_truth.py). The row carries, as texts, its `bfcl_id`, its
    `category`, and its `function` and `possible_answer` as JSON, for the official checker. Raises MalformedRow.
    """
    turns = field(row, "question", "row")
    turns = [turns] if isinstance(turns, list) and turns and isinstance(turns[0], dict) else turns
    if not isinstance(turns, list) or len(turns) != 1 or not isinstance(turns[0], list):
        raise MalformedRow("question is not one turn, a list of {role, content}")
    messages = [_message(message) for message in turns[0]]
    functions = field(row, "function", "row")
    functions = functions if isinstance(functions, list) else [functions]
    category, answers, truth = category_of(row), row.get("ground_truth"), []
    language = next((name for name in ("javascript", "java") if category.endswith(name)), "")
    needs_no_call = category.endswith("irrelevance")
    schemas = tool_schemas(_in_literals(functions, language), "function", may_be_empty=needs_no_call)
    if not category.endswith("relevance") or answers is not None:
        answers = field(row, "ground_truth", "row")
        truth = accepted_calls(answers, functions, "ground_truth", language) if answers != [] else []
    problem = conversation_problem(
        f"{data_source}/{category}" if category else data_source, index, messages, schemas, truth
    )
    if answers is None and not needs_no_call:
        problem = replace(problem, answer=ANY_CALL)
    shown = {"function": functions, "possible_answer": answers if answers is not None else []}
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in shown.items()}
    identity = str(row.get("id", ""))  # the leaderboard counts a row that it has twice twice
    return replace(problem, identity=identity, extra={"bfcl_id": identity, "category": category} | texts)


def _message(message: Any) -> tuple[str, str]:
    role, content = (text_field(field(message, key, "a message"), "a message") for key in ("role", "content"))
    return role, content.strip()


def _in_literals(functions: list, language: str) -> list:
    """Return the functions with every parameter as a text, the literal of its type in Java or JavaScript."""
    if not language:
        return functions
    name = {"java": "Java", "javascript": "JavaScript"}[language]
    described = []
    for function in functions:
        parameters = field(function, "parameters", "a function")
        properties = {key: _literal(part, name) for key, part in (parameters.get("properties") or {}).items()}
        description = f"{function.get('description') or ''} The function is {name} code.".strip()
        described.append(
            {**function, "description": description, "parameters": {**parameters, "properties": properties}},
        )
    return described


def _literal(described: dict, language: str) -> dict:
    kind = described.get("type")
    description = f"{described.get('description') or ''} Write {language} code for a value"
    description += "." if kind == "any" else f" of the type {kind}."
    if isinstance(items := described.get("items"), dict) and "type" in items:
        description += f" Its items are of the type {items['type']}."
    if isinstance(described.get("properties"), dict):
        description += f" Its entries: {json.dumps(described['properties'])}"
    return {"type": "string", "description": description.strip()}
