"""Reading, comparing and filtering rows: the stages that need no model and no sandbox."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retool_mcore.coldstart import dedup
from retool_mcore.coldstart.config import Columns, EvaluationFile, Source, load
from retool_mcore.coldstart.dedup import Decontaminate
from retool_mcore.coldstart.execution import agree, stale
from retool_mcore.coldstart.normalise import normalise
from retool_mcore.coldstart.rows import Drop, Outcome, Row, Store
from retool_mcore.coldstart.source import read
from retool_mcore.config import CONFIG_DIR
from retool_mcore.errors import UserError

LONG = "A farmer has a field of wheat and sells a third of what it yields at the market in town, then keeps the rest."


def row(problem="What is 1+1?", answer="2", index=0, reasoning="It is \\boxed{2}."):
    return Row(f"key{index}", index, problem, reasoning, answer)


def reasons(outcomes):
    return [outcome.reason for outcome in sorted(outcomes, key=lambda outcome: outcome.index)]


def test_every_kind_of_bad_line_is_counted_and_explained(tmp_path):
    good = {"p": {"q": "1+1?"}, "r": "two", "a": 2.0}
    lines = [
        json.dumps(good).encode(),
        json.dumps(good | {"r": "x" * 1_000_000}).encode(),
        b'{"p": {"q": "caf\xe9"}, "r": "", "a": 1}',
        b'{"p": {"q": ',
        json.dumps({"p": {}, "r": "two", "a": 2}).encode(),
        json.dumps(good | {"a": None}).encode(),
        json.dumps(good | {"r": "\ud800"}).encode(),
        b"[1]",
        b"[" * 100_000,
    ]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines))
    found = list(
        read(Source(path=str(tmp_path / "rows.jsonl"), columns=Columns(problem="p.q", reasoning="r", answer="a")))
    )
    assert found[0].row.answer == "2" and found[0].row.problem == "1+1?"
    expected = ["too large", "not UTF-8", "not JSON", "no such column", "answer is empty or no text", "not UTF-8"]
    assert reasons(found)[1:] == [*expected, "not JSON", "not JSON"]


def test_parquet_rows_that_are_no_utf8_are_counted(tmp_path):
    text = pa.array([b"1+1?", b"\xff\xfe", b"2+2?"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"problem": text, "answer": ["2", "3", "4"]}), tmp_path / "rows.parquet")
    found = list(read(Source(path=str(tmp_path / "rows.parquet"), columns=Columns(problem="problem", answer="answer"))))
    assert reasons(found) == ["", "not UTF-8", ""]


def test_wrappers_and_thoughts_come_off():
    wrapped = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 1+1?\n\nRemember to put your "
        'answer on its own line after "Answer:".'
    )
    done = normalise(row(wrapped, reasoning="<think>\r\nhm\x00</think>\nTwo"))
    assert (done.problem, done.reasoning) == ("What is 1+1?", "hm\nTwo")
    for bad, reason in ((row(answer="proof"), "no final answer"), (row(reasoning="<code>1"), "holds tool tags")):
        with pytest.raises(Drop, match=reason):
            normalise(bad)


def test_exact_duplicates_and_disputed_answers():
    rows = [
        row("What is $1+1$?", index=0),
        row("what is 1+1", index=1, reasoning="other"),
        row("Which?", "3", 2),
        row("which", "4", 3),
    ]
    dispute = "same problem, another answer"
    assert reasons(dedup.exact(lambda: rows, 1)) == ["", "same problem", dispute, dispute]
    assert reasons(dedup.exact(lambda: rows[:2], 2)) == ["", ""]
    same = [row(answer="0.5"), row(answer="\\frac{1}{2}", index=1)]
    assert reasons(dedup.exact(lambda: same, 1)) == ["", "same problem"]


def test_near_duplicates_share_words_and_numbers():
    texts = [LONG + " How many of 12?", LONG + " How many of the 12?", LONG + " How many of 13?", "Is 12 even?"]
    rows = [row(text, index=number) for number, text in enumerate([*texts, LONG + " How many of about 13?"])]
    twin = "nearly the same problem"
    assert reasons(dedup.near(lambda: rows, 0.8, 3)) == ["", twin, "", "", twin]


def test_evaluation_problems_are_out(tmp_path):
    path = tmp_path / "aime.jsonl"
    path.write_text(json.dumps({"q": LONG}) + "\n" + json.dumps({"q": "Is $12$ even?"}) + "\n")
    check = Decontaminate([EvaluationFile(path=str(path), problem="q")], 10)
    assert check(row("Is 13 even?"))
    for text, reason in (("is 12 even", "in an evaluation set"), ("Well. " + LONG[:70], "shares words")):
        with pytest.raises(Drop, match=reason):
            check(row(text))
    with pytest.raises(UserError, match="has no problem"):
        Decontaminate([EvaluationFile(path=str(path), problem="problem")], 10).prepare()


@pytest.mark.parametrize(
    "claimed, real, same",
    [
        ("42", "42\n", True),
        ("x = 3.14", "x = 3.14159", True),
        ("[1,2]", "[1, 2]", True),
        ("'a'", "a", True),
        ("1_000", "1000", True),
        ("0.5", "0.50", True),
        ("3.15", "3.14159", False),
        ("3", "2.7", False),
        ("43", "42", False),
        ("", "42", False),
        ("42", "42 43", False),
        ("-1", "1", False),
        ("{'b', 'a'}", "{'a', \"b\"}", True),
        ("{1: 2, 3: 4}", "{3: 4, 1: 2}", False),
        ("12,345", "12345", True),
        ("[1,234]", "[1, 234]", True),
        ("True", "False", False),
        ("9" * 5000, "9" * 5000 + "1", False),
    ],
)
def test_outputs_agree_but_for_their_format(claimed, real, same):
    assert agree(claimed, real) is same


def test_values_that_only_a_wrong_claim_had_are_found():
    assert stale("7 and 99", "7 and 98", ["start with 7"], "so 99 and 7") == ["99"]
    assert stale("7 and 99", "7 and 98", ["start with 99"], "so 99") == []
    assert stale("It is 12345.", "12344", [], "So 12,345.") == ["12345"]
    assert stale("3.14159", "2.71828", [], "about 3.14, not 2.7") == ["3.14"]
    assert stale("99", "98", [], "so 98") == []
    assert stale("True", "False", [], "It is True.") == ["True"]
    assert stale("True", "False", [], "It is False.") == []
    assert stale("5", "-5", [], "We get 5.") == ["5"]
    assert stale("5", "-5", ["of 5"], "We get 5.") == stale("5", "-5", [], "We get -5, of size 5.") == []


def test_a_torn_line_and_other_work_are_not_taken_for_rows(tmp_path):
    path = tmp_path / "stage.jsonl"
    store = Store(path, "work")
    for index in range(3):
        store.add(Outcome(f"key{index}", index, row(index=index)))
    store.close()
    path.write_bytes(path.read_bytes()[:-5])
    store = Store(path, "work")
    assert store.done == {"key0", "key1"} and not store.ended
    store.add(Outcome("key2", 2, None, "why", "detail"))
    store.end()
    store = Store(path, "work")
    assert (store.ended, store.kept, store.drops) == (True, 2, {"why": 1})
    assert [kept.index for kept in store.kept_rows()] == [0, 1]
    assert Store(path, "other work").rows == 0


@pytest.mark.parametrize("path", sorted((CONFIG_DIR / "coldstart").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_loads(path):
    config = load(path, ["seed=3"])
    assert config.seed == 3 and config.source.columns.problem


@pytest.mark.parametrize(
    "override, words",
    [
        ("source.column=x", "column"),
        ("seed=x", "seed"),
        ("execution.on_mismatch=keep", "should be 'repair' or 'drop'"),
        ("rewrite.model.concurrency=0", "concurrency is 0, it should be greater than or equal to 1"),
        ("dedup.jaccard=7", "jaccard is 7, it should be less than or equal to 1"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_sentence(override, words):
    with pytest.raises(UserError, match=words) as error:
        load(CONFIG_DIR / "coldstart" / "dapo.yaml", [override])
    assert "\n" not in str(error.value)


def test_missing_values_are_named(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("source: {path: x.jsonl}\nrewrite: {model: {url: u}}\n")
    with pytest.raises(UserError, match="lacks output, rewrite.model.name, source.columns"):
        load(path)
