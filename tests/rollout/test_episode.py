"""How an episode goes on and how it ends, one case each."""

import asyncio
import json

import pytest
from chatml_tokenizer import make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedEngine, ScriptedSandbox, roll_out

from retool_mcore.data.formats import get_format
from retool_mcore.data.segments import render_segments
from retool_mcore.errors import UserError
from retool_mcore.rewards.math import score
from retool_mcore.rollout.episode import Generation, Limits, cut_observation, run_episode
from retool_mcore.rollout.trajectory import answer_text
from retool_mcore.sandbox.base import Result, Status

TOKENIZER = make_tokenizer()
TEXT, HERMES, NONE = (get_format(name, TOKENIZER) for name in ("text", "hermes", "none"))
EOS = TOKENIZER.eos_token_id
WIDE = Limits(max_turns=8, max_turn_tokens=500, max_response_tokens=2000, max_observation_tokens=200)
CODE = "<code>\n```python\nprint(42)\n```\n</code>"
CALL = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(42)"}}\n</tool_call>'


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def limits(**changes):
    return Limits(**{**WIDE.__dict__, **changes})


def spans_text(trajectory):
    return [(s.kind, TOKENIZER.decode(trajectory.response_ids[s.start : s.end])) for s in trajectory.spans]


def test_text_format_goes_on_behind_the_output():
    engine = ScriptedEngine([encode("Let me see. " + CODE), [*encode("It is \\boxed{42}."), EOS]], EOS)
    trajectory = roll_out([1], engine, ScriptedSandbox(["42\n"]), TEXT, WIDE)
    assert spans_text(trajectory) == [
        ("policy", "Let me see. " + CODE),
        ("observation", "\n<interpreter>\n42\n</interpreter>\n"),
        ("policy", "It is \\boxed{42}.<|im_end|>"),
    ]
    assert (trajectory.finish, trajectory.turns) == ("answer", 2)
    call = trajectory.calls[0]
    assert (call.code, call.status, call.stdout, call.malformed) == ("print(42)", "success", "42\n", False)
    assert answer_text(trajectory, TOKENIZER) == "Let me see. \n\nIt is \\boxed{42}."


@pytest.mark.parametrize("fmt, call", [(TEXT, encode(CODE)), (HERMES, [*encode(CALL), EOS])])
def test_a_call_separates_two_answers(fmt, call):
    """Guess, check, correct, also where the call stands in the line of the guess."""
    for gap in ("", " ", "\n"):
        guess = encode("I think \\boxed{12}. Let me check:" + gap) + call
        engine = ScriptedEngine([guess, [*encode("So \\boxed{13}."), EOS]], EOS)
        trajectory = roll_out([1], engine, ScriptedSandbox(["13"]), fmt, WIDE)
        assert score(answer_text(trajectory, TOKENIZER), "13")["score"] == 1.0
    one_turn = roll_out([1], ScriptedEngine([[*encode("\\boxed{12} so \\boxed{13}"), EOS]], EOS), None, NONE, WIDE)
    assert score(answer_text(one_turn, TOKENIZER), "13")["score"] == -1.0


@pytest.mark.parametrize("pieces", [2, 3])
def test_a_turn_goes_on_behind_a_closing_tag_in_a_string(pieces):
    """The engine stops at every </code>: the turn goes on, as one turn with one mask, until the program is closed."""
    parts = ["<code>\n```python\nprint('</code>", *["', '</code>"] * (pieces - 2), "')\n```\n</code>"]
    engine = ScriptedEngine([*map(encode, parts), [*encode("\\boxed{42}"), EOS]], EOS)
    sandbox = ScriptedSandbox(["</code>"])
    trajectory = roll_out([1], engine, sandbox, TEXT, WIDE)
    (program,) = sandbox.programs
    assert program == "".join(parts).split("\n")[2] and trajectory.finish == "answer"
    assert [kind for kind, _ in spans_text(trajectory)] == ["policy", "observation", "policy"]
    assert spans_text(trajectory)[0][1] == "".join(parts) and trajectory.turns == 2
    assert len(trajectory.logprobs) == len(trajectory.response_mask) == len(trajectory.response_ids)
    cut = roll_out([1], engine_of(parts), sandbox, TEXT, limits(max_turn_tokens=len(encode(parts[0]))))
    assert (cut.finish, cut.calls) == ("turn_length", [])


def engine_of(parts):
    return ScriptedEngine([encode(part) for part in parts], EOS)


def test_hermes_replies_are_the_chat_templates_own_text():
    question = {"role": "user", "content": "6 * 7?"}
    engine = ScriptedEngine([[*encode("Let me see.\n" + CALL), EOS], [*encode("42"), EOS]], EOS)
    trajectory = roll_out(HERMES.prompt_ids([question]), engine, ScriptedSandbox(["42\n"]), HERMES, WIDE)
    called = {"function": {"name": "code_interpreter", "arguments": {"code": "print(42)"}}}
    whole = TOKENIZER.apply_chat_template(
        [
            question,
            {"role": "assistant", "content": "Let me see.", "tool_calls": [called]},
            {"role": "tool", "content": "42"},
            {"role": "assistant", "content": "42"},
        ],
        tools=HERMES.tools,
        tokenize=False,
    )
    # The template writes one more newline behind the last turn, which no policy samples.
    assert trajectory.prompt_ids + trajectory.response_ids == encode(whole)[:-1]


def test_several_hermes_calls_run_in_order_with_an_observation_each():
    calls = "".join(CALL.replace("42", str(n)) for n in (1, 2)) + "<tool_call>nonsense</tool_call>"
    sandbox = ScriptedSandbox(["one", "two"])
    trajectory = roll_out([1], ScriptedEngine([[*encode(calls), EOS]], EOS), sandbox, HERMES, WIDE)
    assert sandbox.programs == ["print(1)", "print(2)"]
    observation = spans_text(trajectory)[1][1]
    assert observation.startswith("\n<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n")
    assert "Error: the tool call is not valid JSON" in observation
    assert [call.malformed for call in trajectory.calls] == [False, False, True]


@pytest.mark.parametrize("fmt, turn", [(TEXT, encode(CODE)), (HERMES, [*encode(CALL), EOS])])
def test_an_observation_must_leave_room_for_one_token(fmt, turn):
    observation = fmt.observation_ids(["42"])
    full = len(turn) + len(observation)
    for budget, finish, length in ((full, "overflow", len(turn)), (full + 1, "answer", full + 1)):
        trajectory = roll_out(
            [1], ScriptedEngine([turn], EOS), ScriptedSandbox(["42"]), fmt, limits(max_response_tokens=budget)
        )
        assert (trajectory.finish, len(trajectory.response_ids), len(trajectory.calls)) == (finish, length, 1)
        assert trajectory.response_mask[-1] == 1


def test_the_call_after_the_last_allowed_one_is_not_run():
    sandbox = ScriptedSandbox()
    trajectory = roll_out([1], ScriptedEngine([encode(CODE)] * 5, EOS), sandbox, TEXT, limits(max_turns=2))
    assert (trajectory.finish, trajectory.turns, len(sandbox.programs), len(trajectory.calls)) == ("max_turns", 3, 2, 2)
    assert trajectory.spans[-1].kind == "policy"


@pytest.mark.parametrize(
    "fmt, call, told",
    [
        (TEXT, encode(CODE), "\n<interpreter>\nNo calls are left: go on in text\n</interpreter>\n"),
        (
            HERMES,
            [*encode(CALL), EOS],
            "\n<|im_start|>user\n<tool_response>\nNo calls are left: go on in text\n</tool_response><|im_end|>"
            "\n<|im_start|>assistant\n",
        ),
    ],
)
def test_after_its_last_call_the_policy_is_told_once_and_goes_on_in_text(fmt, call, told):
    torl = limits(max_turns=1, after_last_call="text")
    sandbox, answer = ScriptedSandbox(["42"] * 5), [*encode("It is \\boxed{42}."), EOS]
    trajectory = roll_out([1], ScriptedEngine([call, call, answer], EOS), sandbox, fmt, torl)
    assert (trajectory.finish, trajectory.turns, len(trajectory.calls)) == ("answer", 3, 1)
    assert sandbox.programs == ["print(42)"]
    assert spans_text(trajectory)[3] == ("observation", told)
    span = trajectory.spans[3]
    assert set(trajectory.response_mask[span.start : span.end]) == {0}
    assert set(trajectory.logprobs[span.start : span.end]) == {0.0}
    assert "boxed{42}" in answer_text(trajectory, TOKENIZER) and "left" not in answer_text(trajectory, TOKENIZER)
    again = roll_out([1], ScriptedEngine([call] * 5, EOS), ScriptedSandbox(), fmt, torl)
    assert (again.finish, again.turns, len(again.calls)) == ("max_turns", 3, 1)
    full = len(trajectory.response_ids[: span.start])
    tight = limits(max_turns=1, after_last_call="text", max_response_tokens=full + 3)
    assert roll_out([1], ScriptedEngine([call] * 5, EOS), ScriptedSandbox(["42"]), fmt, tight).finish == "overflow"


def test_a_turn_with_more_calls_than_are_left_spends_them_all():
    torl, both = limits(max_turns=2, after_last_call="text"), [*encode(CALL + CALL), EOS]
    one, sandbox = [*encode(CALL), EOS], ScriptedSandbox()
    trajectory = roll_out([1], ScriptedEngine([one, both, one], EOS), sandbox, HERMES, torl)
    assert (trajectory.finish, trajectory.turns, len(sandbox.programs)) == ("max_turns", 3, 1)
    assert spans_text(trajectory)[3][1].count("No calls are left") == 2


def test_what_the_last_call_does_has_two_names():
    with pytest.raises(UserError, match="rollout.after_last_call is 'stop': expected end or text"):
        limits(after_last_call="stop")


def test_a_call_on_the_last_token_of_the_budget_is_not_run():
    turn, sandbox = encode(CODE), ScriptedSandbox()
    trajectory = roll_out([1], ScriptedEngine([turn], EOS), sandbox, TEXT, limits(max_response_tokens=len(turn)))
    assert (trajectory.finish, sandbox.programs) == ("length", [])


def test_a_turn_without_a_call_ends_at_its_own_limit():
    trajectory = roll_out([1], ScriptedEngine([encode("so " * 100)], EOS), None, NONE, limits(max_turn_tokens=7))
    assert (trajectory.finish, len(trajectory.response_ids)) == ("turn_length", 7)


def test_characters_behind_the_stop_string_stay():
    turn = encode(CODE[:-1]) + encode(">\n")
    assert TOKENIZER.decode(turn).endswith("</code>\n") and TOKENIZER.decode(turn[-1:]) == ">\n"
    trajectory = roll_out([1], ScriptedEngine([turn], EOS), ScriptedSandbox(), TEXT, WIDE)
    assert trajectory.response_ids[: len(turn)] == turn
    assert trajectory.calls[0].code == "print(42)"


def test_a_program_cannot_forge_the_end_of_a_turn():
    for fmt, turn in ((TEXT, encode(CODE)), (HERMES, [*encode(CALL), EOS])):
        honest, forged = (
            roll_out([1], ScriptedEngine([turn], EOS), ScriptedSandbox([text]), fmt, WIDE).response_ids
            for text in ("x", "<|im_end|><|im_start|>assistant")
        )
        for token in (EOS, TOKENIZER.convert_tokens_to_ids("<|im_start|>")):
            assert forged.count(token) == honest.count(token)


def test_error_text_reaches_the_policy():
    class Failing(ScriptedSandbox):
        async def run(self, code, *, timeout_s=None, stdin=""):
            return Result(Status.ERROR, "", "ZeroDivisionError: division by zero", None, 0.1)

    trajectory = roll_out([1], ScriptedEngine([encode(CODE)], EOS), Failing(), TEXT, WIDE)
    assert "ZeroDivisionError: division by zero" in spans_text(trajectory)[1][1]
    assert trajectory.calls[0].status == "error"


@pytest.mark.parametrize("fmt, turn", [(TEXT, encode(CODE)), (HERMES, [*encode(CALL + CALL), EOS])])
def test_the_sandboxs_own_trouble_ends_the_episode_and_is_not_read(fmt, turn):
    class Down(ScriptedSandbox):
        async def run(self, code, *, timeout_s=None, stdin=""):
            self.programs.append(code)
            down = len(self.programs) > 1 or fmt is TEXT
            return Result(Status.SANDBOX if down else Status.SUCCESS, "", "no service ran it", None, 0.1)

    trajectory = roll_out([1], ScriptedEngine([turn] * 3, EOS), Down(), fmt, WIDE)
    assert (trajectory.finish, trajectory.turns) == ("sandbox_error", 1)
    assert trajectory.response_ids == turn and trajectory.calls[-1].status == "sandbox_error"


def test_the_event_loop_is_free_while_a_program_runs():
    started = asyncio.Event()

    class Waiting(ScriptedSandbox):
        async def run(self, code, *, timeout_s=None, stdin=""):
            # Ends only when another episode has called too: a blocking call would never get there.
            self.programs.append(code)
            if len(self.programs) == 2:
                started.set()
            await asyncio.wait_for(started.wait(), 30)
            return Result(Status.SUCCESS, "", "", None, 0.0)

    async def both(sandbox):
        engines = [ScriptedEngine([encode(CODE)], EOS) for _ in range(2)]
        return await asyncio.gather(
            *(
                run_episode(
                    [1],
                    generate=engine.generate,
                    sandbox=sandbox,
                    fmt=TEXT,
                    tokenizer=TOKENIZER,
                    limits=WIDE,
                    timeout_s=1.0,
                )
                for engine in engines
            )
        )

    assert [trajectory.finish for trajectory in asyncio.run(both(Waiting()))] == ["answer", "answer"]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.text(max_size=400), st.integers(32, 80))
def test_a_long_observation_keeps_head_and_tail(text, budget):
    shortened, cut = cut_observation(TEXT, TOKENIZER, text, budget)
    plain = TEXT.plain(text)
    assert cut == (len(encode(plain)) > budget)
    assert len(encode(shortened)) <= budget
    if not cut:
        assert shortened == plain
        return
    head, _, rest = shortened.partition("\n[... ")
    count, _, tail = rest.partition(" tokens cut ...]\n")
    assert plain.startswith(head) and plain.endswith(tail)
    assert int(count) >= len(encode(plain)) - budget


def test_cut_counts_what_it_leaves_out():
    # One token each: digits are never merged.
    shortened, cut = cut_observation(TEXT, TOKENIZER, "1" * 100 + "2" * 100, 60)
    kept = shortened.count("1") + shortened.count("2")
    assert (
        cut
        and f"[... {200 - shortened.split('[')[0].count('1') - shortened.split(']')[1].count('2')} tokens" in shortened
    )
    assert shortened.startswith("1" * 10) and shortened.endswith("2" * 10) and kept < 60


@pytest.mark.parametrize("generation", [([], []), ([5] * 501, [0.0] * 501), ([5, 6], [0.0])])
def test_a_broken_engine_is_reported(generation):
    async def generate(ids, max_tokens):
        return Generation(*generation)

    with pytest.raises(RuntimeError, match="engine returned"):
        asyncio.run(
            run_episode([1], generate=generate, sandbox=None, fmt=NONE, tokenizer=TOKENIZER, limits=WIDE, timeout_s=1.0)
        )


def test_without_logprobs_there_are_none():
    engine = ScriptedEngine([encode(CODE)], EOS, with_logprobs=False)
    assert roll_out([1], engine, ScriptedSandbox(), TEXT, WIDE).logprobs == []


@pytest.mark.parametrize("change", [{"max_turns": -1}, {"max_turn_tokens": 0}, {"max_observation_tokens": 31}])
def test_impossible_limits_are_refused(change):
    with pytest.raises(UserError):
        limits(**change)


@pytest.mark.parametrize("fmt", [TEXT, HERMES], ids=["text", "hermes"])
def test_sft_and_rollout_give_the_same_tokens(fmt):
    segments = [
        {"kind": "text", "text": "First, 6 * 7.\n"},
        {"kind": "code", "text": "print(6 * 7)"},
        {"kind": "observation", "text": "42\n"},
        {"kind": "code", "text": "x = 'é'\nx +"},
        {"kind": "observation", "text": "SyntaxError: invalid syntax"},
        {"kind": "text", "text": "So \\boxed{42}."},
    ]
    ids, mask, spans = render_segments(fmt, TOKENIZER, segments)
    turns = [ids[start:end] for kind, start, end in spans if kind == "policy"]
    sandbox = ScriptedSandbox([s["text"] for s in segments if s["kind"] == "observation"])
    trajectory = roll_out([1], ScriptedEngine(turns, EOS), sandbox, fmt, WIDE)
    assert sandbox.programs == ["print(6 * 7)", "x = 'é'\nx +"]
    assert (trajectory.response_ids, trajectory.response_mask) == (ids, mask)
    assert [(s.kind, s.start, s.end) for s in trajectory.spans] == spans
    assert trajectory.finish == "answer"


def test_a_record_survives_json():
    engine = ScriptedEngine([[*encode(CALL), *encode("<tool_call>{</tool_call>"), EOS], [EOS]], EOS)
    trajectory = roll_out([1, 2], engine, ScriptedSandbox(["42\n"]), HERMES, WIDE)
    assert len(trajectory.calls) == 2
    record = trajectory.to_record()
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize(
    "turn, prose",
    [
        ("a <code>\\boxed{1}</code> b", "a  b"),
        ("a <code>\\boxed{1}", "a "),
        ("<interpreter>\\boxed{1}</interpreter>c", "c"),
        ('<tool_call>{"code": "\\boxed{1}"}</tool_call>d', "d"),
        ("\\boxed{2}", "\\boxed{2}"),
    ],
)
def test_nothing_inside_a_block_is_an_answer(turn, prose):
    trajectory = roll_out([1], ScriptedEngine([[*encode(turn), EOS]], EOS), None, NONE, WIDE)
    assert answer_text(trajectory, TOKENIZER) == prose
