"""Every reader of what a policy wrote, and texts that are made to hurt it.

`READERS` are the entry points, `TEXTS` the texts: random ones, and those that cost quadratic time or raised once.
`measured` says which text is slowest for a reader, and for how long one keeps all other threads waiting.
"""

import contextlib
import json
import os
import random
import threading
import time

from retool_mcore.config import compose
from retool_mcore.data.boxed import last_boxed
from retool_mcore.data.formats import get_format
from retool_mcore.data.function_calls import read_calls
from retool_mcore.data.function_schema import argument_error, function_schema
from retool_mcore.data.records import MalformedRow
from retool_mcore.data.untrusted import read_json
from retool_mcore.environments import files
from retool_mcore.metrics.repetition import repeated_share
from retool_mcore.metrics.text import markdown
from retool_mcore.recipes.outcome import compute_score
from retool_mcore.rewards.answer import extract
from retool_mcore.rollout.episode import cut_observation
from retool_mcore.rollout.trajectory import Span, Trajectory, Turn, prose
from retool_mcore.rollout.wire import to_wire
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.display import strip_fences
from retool_mcore.sandbox.fusion import with_marked_value
from tests.chatml_tokenizer import make_tokenizer
from tests.recipe_samples import call

HOLD_S = 0.05  # no reader may keep all other threads waiting for longer
AGAIN = 4
TOKENIZER = make_tokenizer()
HERMES, TEXT = (get_format(name, TOKENIZER) for name in ("hermes", "text"))
TRUTH = json.dumps([{"name": "f", "arguments": {"a": 1}}])
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "pattern": "^(a|aa)+$"},
        "list": {"type": "array", "uniqueItems": True},
        "tree": {"$ref": "#/$defs/node"},
    },
    "patternProperties": {"^(x|xx)+$": {}},
    "additionalProperties": False,
    "$defs": {"node": {"anyOf": [{"type": "integer"}, *[{"type": "array", "items": {"$ref": "#/$defs/node"}}] * 2]}},
}
TOOLS = [function_schema("f", "", SCHEMA)]


def repeated(piece: str, before: str = "", after: str = ""):
    return lambda size: before + piece * ((size - len(before) - len(after)) // len(piece)) + after


def drawn(pieces: list[str]):
    def make(size: int) -> str:
        rng = random.Random(size)
        return "".join(rng.choices(pieces, k=2 * size // len("".join(pieces)) * len(pieces)))[:size]

    return make


MARKS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "</answer>", "<code>", "</code>", "\\boxed{", "{",
    "}", "[", "]", "\n", " ", "5", ",", "or ", "\\text{", "```", '"', "\\", "wait", "-", "a",
]  # fmt: skip
TEXTS = {
    "random characters": drawn([chr(code) for code in range(9, 127)]),
    "random marks": drawn(MARKS),
    "spaces behind a box": repeated(" ", "\\boxed{5}"),
    "dots behind a box": repeated(". $*,", "\\boxed{5}", "or"),
    "or maybe maybe": repeated("maybe ", "\\boxed{5} or "),
    "boxes": repeated("\\boxed{5} "),
    "boxes that differ": lambda size: " ".join(f"\\boxed{{{n}}}" for n in range(size // 14)),
    "boxes spelt otherwise": lambda size: " ".join(f"\\boxed{{5{'.' * (n % 900)}}}" for n in range(size // 464)),
    "boxes open": repeated("\\boxed{"),
    "boxes nested": lambda size: "\\boxed{" * (size // 8) + "}" * (size // 8),
    "one long box": repeated("a", "\\boxed{5 ", "!}"),
    "words as a unit": lambda size: "\\boxed{5 " + "a" * min(size, 4000) + "!}",
    "answers open": repeated("<answer>"),
    "thoughts open": repeated("<think>"),
    "thoughts and calls": repeated("</think><tool_call>", "<think>"),
    "calls": repeated('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "<think></think>"),
    "calls open": repeated("<tool_call>"),
    "calls empty": repeated("<tool_call></tool_call>"),
    "calls in lines": repeated('{"name": "f", "arguments": {"a": 1}}\n', "<think></think><tool_call>", "</tool_call>"),
    "call with spaces": repeated(" ", "<think></think><tool_call>", "</tool_call>"),
    "code open": repeated("<code>"),
    "fence with spaces": repeated(" ", "```python\nx\n", "```x"),
    "lists open": repeated("["),
    "lists nested": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "call nested": lambda size: _called('{"a": ' + "[" * 900 + "]" * 900 + "}"),
    "objects nested": lambda size: '{"a":' * (size // 6) + "1" + "}" * (size // 6),
    "digits": repeated("1"),
    "minus": repeated("-", "[f(a=", "1)]"),
    "python calls": repeated("f(), ", "[", "f()]"),
    "python name": repeated("a ", "[", "]"),
    "sums": repeated("1+", "", "1"),
    "strings": repeated('"'),
    "backslashes": repeated("\\"),
    "lines": repeated("\n"),
    "pattern": lambda size: _called(json.dumps({"text": "a" * 40 + "!"})),
    "long pattern": lambda size: _called(json.dumps({"text": "a" * size + "!"})),
    "pattern of a name": lambda size: _called(json.dumps({"x" * 40 + "!": 1})),
    "names": lambda size: _called(json.dumps({f"y{n}": 1 for n in range(size // 12)})),
    "unsortable list": lambda size: _called(json.dumps({"list": [n if n % 2 else str(n) for n in range(size // 8)]})),
    "tree": lambda size: _called('{"tree": ' + "[" * 60 + '"x"' + "]" * 60 + "}"),
}


def _called(arguments: str) -> str:
    return '<think></think><tool_call>{"name": "f", "arguments": ' + arguments + "}</tool_call>"


def _scored(recipe: str, *overrides: str):
    chosen = compose("rl", [f"recipe={recipe}", *overrides]).recipe
    record = Trajectory([1], [1], [1], [], [Span("policy", 0, 1)], [call("success")], 1, "answer", 0.0, 0.0)
    record.turn_notes = [Turn(programs=1, boxed=True, fakes=[], generate_s=0.0)]
    packed = to_wire(record.to_record())

    def score(text: str):
        extra = {"trajectory": packed, "policy_text": text, "response_length": 1, "training_step": 1}
        truth = TRUTH if overrides else "42"
        found = compute_score("x", text, truth, extra, recipe=chosen, max_response_tokens=100)
        assert found["graded_by"] != "crashed", "scoring raised"

    return score


def _arguments(text: str):
    try:
        found = read_json(text.partition('"arguments": ')[2].removesuffix("}</tool_call>") or text)
    except ValueError:
        found = {"text": text}
    argument_error(SCHEMA, found if isinstance(found, dict) else {"list": found})


def _rows(text: str):
    with contextlib.suppress(MalformedRow):
        read_calls(text)


def _json(text: str):
    with contextlib.suppress(ValueError):
        read_json(text)


def _edits(text: str):
    repository = {"a.py": text}
    files.list_files(repository), files.view(repository, "a.py"), files.search(repository, text[: len(text) // 2])
    for edit in (lambda: files.replace(repository, "a.py", text[:9], text), lambda: files.write(repository, text, "")):
        with contextlib.suppress(files.RepositoryError):
            edit()


def _shown(text: str):
    span = {"kind": "policy", "start": 0, "end": 1}
    record = {"data_source": "x", "index": 0, "sample": 0, "score": 0.0, "acc": 0.0, "turns": 1, "finish": "answer"}
    markdown(record | {"spans": [span], "calls": [], "prompt_ids": [1], "response_ids": [1]}, lambda ids: text)


READERS = {
    "reward retool": _scored("retool"),
    "reward toolrl": _scored("toolrl", "data=functions"),
    "reward tool_n1": _scored("tool_n1", "data=functions"),
    "answer boxed": lambda text: (extract(text), last_boxed(text)),
    "answer tag": lambda text: extract(text, "answer_tag"),
    "answer final_line": lambda text: extract(text, "final_line"),
    "prose": prose,
    "parse hermes": lambda text: HERMES.parse(text + HERMES.eos_text, TOOLS),
    "parse hermes, interpreter": lambda text: HERMES.parse(text),
    "parse text": lambda text: TEXT.parse(text + "</code>"),
    "arguments": _arguments,
    "json": _json,
    "python calls of a data set": _rows,
    "fences": strip_fences,
    "displayed value": lambda text: with_marked_value(text, "mark"),
    "observation": lambda text: Result(Status.ERROR, text, text, text, 0.0).observation(),
    "observation cut": lambda text: cut_observation(TEXT, TOKENIZER, text[:100_000], 512),  # as sandboxes clip it
    "edits of a repository": _edits,
    "text tab": _shown,
    "repetition": lambda text: repeated_share(list(text.encode()), [(0, len(text.encode()))]),
}


def held_s(read, text: str) -> tuple[float, float]:
    """(seconds that `read` takes for `text`, the longest time for which a thread beside it could not run).

    Both in this process's processor time, so that other programs on the machine do not count. The thread beside it is
    at the head of the machine's queue, where it may be (root).
    """
    longest, stop = 0.0, threading.Event()

    def tick():
        nonlocal longest
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        last = time.process_time()
        while not stop.is_set():
            time.sleep(0.001)
            now = time.process_time()
            longest, last = max(longest, now - last), now

    thread = threading.Thread(target=tick)
    thread.start()
    clock = time.process_time()
    read(text)
    spent = time.process_time() - clock
    stop.set()
    thread.join()
    return spent, longest


def measured(read, size: int) -> dict:
    """{text, quarter_s, whole_s, ratio} of the slowest text and {held_text, held_ms} of the longest hold.

    Another program on the machine can only lengthen a hold: of the AGAIN texts with the longest, each has its shortest.
    """
    for text in TEXTS.values():  # what is loaded at a first call
        read(text(20_000))
    runs = {text: held_s(read, make(size)) for text, make in TEXTS.items()}
    slowest = max(runs, key=lambda text: runs[text][0])
    quarter, whole = held_s(read, TEXTS[slowest](size // 4))[0], runs[slowest][0]
    held = {}
    for text in sorted(runs, key=lambda text: -runs[text][1])[:AGAIN]:
        again = [held_s(read, TEXTS[text](size))[1] for _ in range(AGAIN)] if runs[text][1] > HOLD_S else []
        held[text] = min([runs[text][1], *again])
    longest = max(held, key=held.__getitem__)
    found = {"text": slowest, "quarter_s": round(quarter, 3), "whole_s": round(whole, 3)}
    found |= {"ratio": round(whole / max(quarter, 1e-6), 1)}
    return found | {"held_text": longest, "held_ms": round(1000 * held[longest])}
