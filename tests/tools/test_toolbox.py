"""Tools from the configuration, for a row, and in a call that goes wrong."""

import asyncio
import json
import socket

import pytest

from retool_mcore.data.function_schema import argument_error, function_schema
from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode, Reply, Tool
from retool_mcore.tools.functions import FunctionTable, describe
from retool_mcore.tools.recorded import ReplayTable
from retool_mcore.tools.search import Search
from retool_mcore.tools.toolbox import Toolbox, create_toolbox

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Shout(Tool):
    schema = function_schema("shout", "Says it loud.", TEXT)

    async def call(self, arguments, episode):
        return Reply(arguments["text"].upper())


class Broken(Shout):
    schema = function_schema("broken", "", TEXT)

    async def call(self, arguments, episode):
        if arguments["text"] == "wait":
            await asyncio.sleep(60)
        raise ValueError("no\nluck")


def call(box, tool, **arguments):
    return asyncio.run(box.call(tool, arguments, Episode()))


def test_a_failing_or_hanging_tool_is_an_answer_and_not_the_end_of_a_step():
    box = Toolbox([Broken(), Shout()], timeout_s=0.05)
    assert (call(box, "shout", text="hey").text, call(box, "shout", text="hey").status) == ("HEY", "success")
    assert call(box, "broken", text="x").text == "Error: ValueError: no\nluck"
    late = call(box, "broken", text="wait")
    assert late.status == "timeout" and "0.05 s" in late.text and late.duration_s >= 0.05


@pytest.mark.parametrize(("returned", "words"), [("HEY", "returned str"), (None, "returned NoneType")])
def test_a_tool_that_returns_no_reply_is_named(returned, words):
    class Careless(Shout):
        async def call(self, arguments, episode):
            return returned

    with pytest.raises(UserError, match=words):
        call(Toolbox([Careless()]), "shout", text="x")


def test_a_reply_is_text_that_can_be_written():
    reply = call(Toolbox([Shout()]), "shout", text="a\ud800b")
    assert reply.text == "A?B" and reply.text.encode()


class Slow(Shout):
    """Needs its opening, which takes a while."""

    schema = function_schema("slow", "", TEXT)

    def __init__(self):
        self.released = 0

    async def open(self, episode):
        await asyncio.sleep(0.01)
        episode.state[self.name] = "ready"

    async def call(self, arguments, episode):
        return Reply(episode.state[self.name])

    async def release(self, episode):
        self.released += 1


def test_calls_of_one_turn_wait_for_the_same_opening():
    slow = Slow()
    box, episode = Toolbox([slow]), Episode()

    async def both():
        replies = await asyncio.gather(*(box.call("slow", {"text": word}, episode) for word in "ab"))
        await box.release(episode)
        return replies

    assert [reply.text for reply in asyncio.run(both())] == ["ready", "ready"]
    assert slow.released == 1


def test_a_tool_that_never_opened_is_not_released():
    slow = Slow()
    box, episode = Toolbox([slow], timeout_s=0.001), Episode()

    async def late():
        reply = await box.call("slow", {"text": "a"}, episode)
        await box.release(episode)
        return reply

    assert asyncio.run(late()).status == "timeout" and slow.released == 0


def test_a_tool_that_could_not_open_tells_every_call_and_is_not_released():
    class Closed(Slow):
        async def open(self, episode):
            raise OSError("no key")

    closed = Closed()
    box, episode = Toolbox([closed]), Episode()

    async def twice():
        replies = [await box.call("slow", {"text": word}, episode) for word in "ab"]
        await box.release(episode)
        return replies

    assert [reply.text for reply in asyncio.run(twice())] == ["Error: OSError: no key"] * 2
    assert closed.released == 0


def test_a_tool_with_bounds_of_its_own_fails_aloud():
    class Interpreter(Broken):
        own_bounds = True

    with pytest.raises(ValueError, match="no\nluck"):
        call(Toolbox([Interpreter()]), "broken", text="x")


def test_tools_are_made_from_dotted_paths_with_the_runs_own_parts():
    entries = [
        {"path": "retool_mcore.tools.code.CodeInterpreter"},
        {"path": "retool_mcore.tools.functions.FunctionTable", "args": {"module": "tool_functions"}},
    ]
    box = create_toolbox({"use": entries, "timeout_s": 3}, sandbox="the sandbox", timeout_s=7, error_lines=2)
    assert list(box.tools) == ["code_interpreter", "area", "greet"] and box.timeout_s == 3
    code = box.tools["code_interpreter"]
    assert (code.sandbox, code.timeout_s, code.error_lines) == ("the sandbox", 7, 2)
    assert not box.code_only and create_toolbox(None, sandbox=None).code_only


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ([], "toolbox.use is empty"),
        ([{"path": "nowhere.Tool"}], "cannot be loaded"),
        ([{"path": "Tool"}], "cannot be loaded"),
        ([{"path": "json.JSONDecoder"}], "is no tool"),
        ([{"path": "retool_mcore.tools.search.Search", "args": {"corpse": "x"}}], "do not fit"),
        ([{"path": "retool_mcore.tools.search.Search", "args": {"corpus": "/none.jsonl"}}], "cannot read"),
        ([{"path": "retool_mcore.tools.functions.FunctionTable", "args": {"module": "no_such"}}], "be imported"),
        ([{"path": "retool_mcore.tools.code.CodeInterpreter"}] * 2, "two tools are called"),
    ],
)
def test_what_is_no_toolbox_is_refused(use, words):
    with pytest.raises(UserError, match=words):
        create_toolbox({"use": use}, sandbox=None)


def test_a_row_brings_its_own_tools():
    weather = function_schema("weather", "", TEXT)
    row = {"tools": json.dumps([weather, Shout.schema])}
    with pytest.raises(UserError, match="'weather'.*toolbox=replay"):
        Toolbox([Shout()]).for_row(row)
    box = Toolbox([Shout()], rows=ReplayTable()).for_row(row)
    assert [s["function"]["name"] for s in box.schemas] == ["weather", "shout"] and box.one_turn
    assert call(box, "weather", text="x").ends and not call(box, "shout", text="x").ends
    assert Toolbox([Shout()]).for_row({"index": 3}).schemas == [Shout.schema]


def test_recorded_replies_answer_the_recorded_call_only():
    recorded = [{"name": "weather", "arguments": {"text": "Paris"}, "reply": "sunny"}]
    row = {"tools": json.dumps([function_schema("weather", "", TEXT)]), "replies": json.dumps(recorded)}
    box, episode = Toolbox([], rows=ReplayTable(replies=True)).for_row(row), Episode(row)
    known = asyncio.run(box.call("weather", {"text": "Paris"}, episode))
    other = asyncio.run(box.call("weather", {"text": "Rome"}, episode))
    assert (known.text, known.ends, other.ends, box.one_turn) == ("sunny", False, True, False)


def test_functions_are_described_by_hints_and_docstring():
    box = Toolbox(FunctionTable("tool_functions").tools)
    area = box.tools["area"].schema["function"]
    assert area["description"].startswith("The area") and area["parameters"]["required"] == ["width", "height"]
    assert area["parameters"]["properties"]["width"] == {"type": "number", "description": "One side."}
    assert json.loads(call(box, "area", width=2, height=3).text) == {"area": 6, "unit": "m"}
    assert call(box, "greet", name="you").text == "Hello you"
    assert "'size' was unexpected" in argument_error(area["parameters"], {"width": 1, "height": 2, "size": 3})
    with pytest.raises(UserError, match="passed by name"):
        describe(lambda *args: None)


def test_arguments_are_checked_without_fetching_anything():
    assert argument_error(TEXT, {"text": "a"}) is None
    assert argument_error(TEXT, {"text": 1}) == "text: 1 is not of type 'string'"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema"
        assert "cannot be checked" in argument_error({"type": "object", "$ref": address}, {})
        server.settimeout(0)
        with pytest.raises(BlockingIOError):  # nobody has connected
            server.accept()


def test_search_ranks_passages_and_says_when_there_is_none(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    texts = ["The Loire flows to Nantes.", "The Seine flows through Paris.", "Bread is baked."]
    corpus.write_text("".join(json.dumps({"title": f"T{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    search = Search(str(corpus), k=2)
    assert search.find("paris seine").startswith("[1] T1\nThe Seine")
    assert search.find("flows").count("flows") == 2 and "Bread" not in search.find("flows")
    assert search.find("zebra") == search.find("??") == "No passage found."
    corpus.write_text('{"title": "no text"}\n')
    with pytest.raises(UserError, match="line 1"):
        Search(str(corpus))
