from retool_mcore.metrics.text import chosen, markdown, roles

RECORD = {
    "data_source": "aime",
    "index": 3,
    "sample": 1,
    "score": -1.0,
    "acc": 0.0,
    "pred": "5",
    "ground_truth": "6",
    "turns": 2,
    "finish": "answer",
    "prompt_ids": [1, 2],
    "response_ids": [3, 4, 5, 6, 7],
    "spans": [
        {"kind": "policy", "start": 0, "end": 3},
        {"kind": "observation", "start": 3, "end": 4},
        {"kind": "policy", "start": 4, "end": 5},
    ],
    "calls": [{"turn": 0, "start": 1, "status": "error"}],
}


def words(ids):
    return " ".join(f"t{i}" for i in ids)


def test_headings_follow_the_trajectory():
    text = markdown(RECORD, words)
    headings = [line[5:] for line in text.splitlines() if line.startswith("#### ")]
    assert headings == ["Prompt", "Thought", "Code", "Output, an error", "Thought"]
    assert text.startswith("**aime #3**, sample 1, reward -1, wrong: 5 for 6, 2 turns, finish: answer")
    assert [text.count(piece) for piece in ("\nt1 t2\n", "\nt3\n", "\nt4 t5\n", "\nt6\n", "\nt7\n")] == [1] * 5


def test_a_long_text_keeps_both_ends_and_no_fence_of_the_policys_ends_the_block():
    text = markdown(RECORD, lambda ids: f"start{ids[0]} " + "~" * 6 + "x" * 9000 + f" end{ids[-1]}", kept_chars=2000)
    assert len(text) < 3000 and "start1" in text and "end2" in text and "characters ..." in text
    assert text.count("~~~~~~\n") + text.endswith("~~~~~~") == 10


def test_the_chosen_reach_from_the_lowest_to_the_highest_reward():
    records = [{"score": score} for score in (0.5, -1.0, 1.0, 0.0)]
    assert [record["score"] for record in chosen(records, 2)] == [-1.0, 1.0]
    assert [record["score"] for record in chosen(records, 9)] == [-1.0, 0.0, 0.5, 1.0]


def test_roles_leave_no_gap():
    assert roles(RECORD) == [("thought", 0, 1), ("code", 1, 3), ("error", 3, 4), ("thought", 4, 5)]
