"""The list's columns: numbers, the problem's text, the kinds of errors; and what the list is asked."""

import numpy as np
import pytest
from made_run import call, record

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.errors import UserError
from retool_mcore.metrics.schema import to_table
from retool_mcore.view.columns import Columns, error_kind, frame
from retool_mcore.view.query import by_error, entries, select

TOKENIZER = build_tokenizer()


def spell(ids) -> str:
    return TOKENIZER.decode(ids, skip_special_tokens=False)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def made(*records: dict):
    columns = Columns(spell)
    return columns.of(to_table(records)), columns.words


def asked(data, **query: str) -> list[int]:
    return data[0]["row"][select(data, query)].astype(int).tolist()


CHAT = "<|im_start|>user\nSolve it.\n{}<|im_end|>\n<|im_start|>assistant\n"
WRONG_NAME = call("print(x)", "error", 0, 0, stderr="Traceback\nNameError: name 'x' is not defined\n")


@pytest.fixture
def data():
    """Four trajectories in two steps: problems 2 + 3 and 50 * 4, one without calls, one without a reward."""
    prompts = {index: ids(CHAT.format(text)) for index, text in {7: "What is 2 + 3?", 8: "What is 50 * 4?"}.items()}
    other = WRONG_NAME | {"stderr": "NameError: name 'total' is not defined"}
    limit = call("while True: pass", "timeout", 0, 0, stderr="the program ran longer than 5 s")
    return made(
        record(1, 0, index=7, prompt_ids=prompts[7], score=1.0, calls=[]),
        record(1, 1, index=8, prompt_ids=prompts[8], score=-1.0, calls=[WRONG_NAME, other, limit], acc=0.0),
        record(2, 2, index=8, prompt_ids=prompts[8], score=None, calls=[call("1", "success", 0, 0), other], acc=1.0),
        record(2, 3, index=7, prompt_ids=prompts[7], score=0.5, data_source="math", calls=[limit], finish="length"),
    )


def test_entries_hold_the_problems_text_and_the_errors_of_calls(data):
    first, second, third, last = entries(data, np.arange(4))
    assert (first["text"], second["text"]) == ("What is 2 + 3?", "What is 50 * 4?")
    assert (first["step"], first["row"], first["calls"], first["errors"], first["statuses"]) == (1, 0, 0, (), ())
    assert second["errors"] == ("error: NameError: name … is not defined", "timeout")
    assert second["statuses"] == ("error", "error", "timeout") and second["problem"] == "arithmetic #8"
    assert third["score"] is None and third["errors"] == second["errors"][:1] and third["seconds"] == 2.0
    assert last["text"].endswith("What is 2 + 3?<|im_end|> <|im_start|>assistant")  # one prompt has no frame of its own


def test_filters_leave_what_they_name_and_together_what_all_name(data):
    assert asked(data) == [2, 3, 0, 1]
    assert asked(data, step="1") == [0, 1] and asked(data, answer="wrong") == [3, 1]
    assert asked(data, score_min="0.5") == [3, 0] and asked(data, score_max="0") == [1]
    assert asked(data, calls_min="1", calls_max="2") == [2, 3]
    assert asked(data, status="timeout") == [3, 1] and asked(data, status="length") == [3]
    assert asked(data, error="timeout") == [3, 1] and asked(data, error="time") == []
    assert asked(data, text="50 * 4") == [2, 1] and asked(data, text="WHAT IS 2") == [3, 0]
    assert asked(data, source="math") == [3] and asked(data, problem="arithmetic #8", step="2") == [2]


def test_any_column_sorts_both_ways_and_no_reward_comes_last(data):
    assert asked(data, sort="score") == [1, 3, 0, 2] and asked(data, sort="-score") == [0, 3, 1, 2]
    assert asked(data, sort="calls") == [0, 3, 2, 1] and asked(data, sort="finish") == [0, 1, 2, 3]
    assert asked(data, sort="errors") == [0, 2, 1, 3] and asked(data, sort="-text")[-1] == 3
    with pytest.raises(UserError, match="there is no column reward; it is one of step"):
        asked(data, sort="reward")
    with pytest.raises(ValueError, match="'x'"):
        asked(data, score_min="x")


def test_failures_are_gathered_by_their_error(data):
    name = "error: NameError: name … is not defined"
    every = np.arange(4)
    assert by_error(data, every) == [
        {"error": name, "trajectories": 2, "right": 1},
        {"error": "timeout", "trajectories": 2, "right": 0},
    ]
    assert by_error(data, every[:1]) == []


def test_an_error_is_told_apart_by_what_it_says_and_not_by_what_it_names():
    assert error_kind("error", "x\nKeyError: 'a'\n\n") == error_kind("error", 'KeyError: "b"') == "error: KeyError: …"
    assert error_kind("error", "IndexError: 12 > 3.5 at 0x7f") == "error: IndexError: … > … at …"
    assert error_kind("timeout", "longer than 5 s") == "timeout" and error_kind("error", "") == "error"
    assert len(error_kind("error", "x" * 100_000)) == 160


def test_a_template_ends_at_a_line_or_a_special_token():
    assert frame({"<|user|>1 + 1<|end|>", "<|user|>1 + 2<|end|>"}) == ("<|user|>", "<|end|>")
    assert frame({"Be brief.\nWhat is 1?\nBox it.", "Be brief.\nWhat is 2?\nBox it."}) == ("Be brief.\n", "\nBox it.")
    assert frame({"7*6=", "7*5="}) == ("", "")
