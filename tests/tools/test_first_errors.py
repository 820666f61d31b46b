"""A tool, a reward or an environment that has never worked ends the run; one that fails now and then does not."""

import asyncio
import inspect

import pytest

from retool_mcore.data.function_schema import function_schema
from retool_mcore.environments.gym import GymEnvironment
from retool_mcore.errors import ALIKE, FirstErrors, NeverWorked, describe, identity
from retool_mcore.tools.base import Episode, Reply, Tool
from retool_mcore.tools.toolbox import Toolbox

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


class Fails(Tool):
    schema = function_schema("fails", "", TEXT)

    def __init__(self, error=RuntimeError, message=lambda text: "no index", opens=True, works=lambda text: False):
        self.error, self.message, self.opens, self.works = error, message, opens, works

    async def open(self, episode):
        if not self.opens:
            raise OSError("no server")

    async def call(self, arguments, episode):
        if not self.works(arguments.get("text")):
            raise self.error(self.message(arguments.get("text")))
        return Reply("fine")


def calls(tool, texts, episodes=None, alike=ALIKE):
    """The replies to calls with these texts, each in an episode of its own, until the tool ends the run."""
    box = Toolbox([tool])
    box.alike = alike
    replies = []
    try:
        for number, text in enumerate(texts):
            episode = episodes[number] if episodes else Episode()
            arguments = {} if text is None else {"text": text}
            # The row's toolbox is another object in every episode.
            replies.append(asyncio.run(box.for_row({}).call(tool.name, arguments, episode)).text)
    except NeverWorked as never:
        replies.append(never)
    return replies


@pytest.mark.parametrize("alike", [2, ALIKE])
@pytest.mark.parametrize("case", ["call", "open", "no arguments"])
def test_a_tool_that_never_worked_ends_the_run_with_its_error_function_and_line(case, alike):
    texts = [None] * 20 if case == "no arguments" else map(str, range(20))
    *read, never = calls(Fails(opens=case != "open"), texts, alike=alike)
    assert len(read) == alike - 1
    function = "open" if case == "open" else "call"
    source, first = inspect.getsourcelines(getattr(Fails, function))
    line = first + next(number for number, text in enumerate(source) if "raise " in text)
    error = "OSError: no server" if case == "open" else "RuntimeError: no index"
    assert f"the tool fails has failed {alike} times of {alike} with the same error: {error}" in str(never)
    assert f"(test_first_errors.py, line {line}, in {function})" in str(never)


@pytest.mark.parametrize(
    ("what", "tool", "texts"),
    [
        ("worked once", Fails(works=lambda text: text == "3"), map(str, range(40))),
        ("tells what is wrong with each input", Fails(ValueError, "no city {}".format), map(str, range(40))),
        ("is always called alike", Fails(), ["x"] * 40),
    ],
)
def test_errors_that_the_policy_can_learn_from_are_its_to_read(what, tool, texts):
    replies = calls(tool, texts)
    assert len(replies) == 40 and all(reply == "fine" or reply.startswith("Error: ") for reply in replies)


def test_one_episode_that_calls_again_and_again_is_one():
    assert len(calls(Fails(), map(str, range(40)), episodes=[Episode()] * 40)) == 40


class BrokenEnvironment:
    def reset(self):
        raise KeyError("data")

    def step(self, action):
        return "", 0.0, False, False, {}


def test_an_environment_whose_reset_raises_ends_the_run(monkeypatch):
    monkeypatch.setattr("retool_mcore.environments.gym.load", lambda path, what: BrokenEnvironment)
    tool = GymEnvironment("broken.Environment", "act", parameters=TEXT)
    *read, never = calls(tool, map(str, range(20)))
    assert len(read) == ALIKE - 1 and "in reset)" in str(never) and "the tool act" in str(never)


def error_of(raises):
    try:
        raises()
    except Exception as error:
        return error


def count(first, number, error, given=None):
    first.failed("it", identity(error), describe(error), str(number), given)


def test_only_one_error_from_the_start_never_worked():
    first = FirstErrors()
    errors = [error_of(lambda: 1 / 0), error_of(lambda: [][0])]
    for number in range(3 * ALIKE):  # two errors in turn are no sign of one cause
        count(first, number, errors[number % 2])
    for number in range(ALIKE - 1):
        count(first, number, errors[0], given="the same")
    count(first, 0, errors[0])
    first.worked()
    count(first, "late", errors[0])


def test_an_error_is_described_by_the_users_own_function():
    import json

    assert describe(error_of(lambda: json.loads("{"))).endswith("in <lambda>)")
    assert describe(ValueError()) == "ValueError"
    far = RuntimeError("task")
    far.cause, far.traceback_str = KeyError("x"), 'File "/u/own.py", line 3, in f\nFile "<frozen x>", line 1, in g'
    assert describe(far) == "KeyError: 'x' (own.py, line 3, in f)"
