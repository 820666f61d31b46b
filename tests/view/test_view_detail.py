import numpy as np
from made_run import BAD, GOOD, record
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.view.detail import detail, highlight, roles, token_pieces


def shown(**changes) -> tuple[dict, dict]:
    tokenizer = build_tokenizer()
    made = record(1, 0, **changes)
    return made, detail(made, lambda ids: tokenizer.decode(ids, skip_special_tokens=False))


def text_of(page: dict, role: str) -> list[str]:
    return ["".join(page["pieces"][start:end]) for name, start, end in page["roles"] if name == role]


def test_every_token_has_one_role_and_roles_hold_the_text_they_name():
    made, page = shown()
    assert [part[1] for part in page["roles"][1:]] == [part[2] for part in page["roles"][:-1]]
    assert page["roles"][0][1] == 0 and page["roles"][-1][2] == len(page["pieces"])
    assert text_of(page, "prompt") == ["7*6="]
    assert [BAD in text_of(page, "code")[0], GOOD in text_of(page, "code")[1]] == [True, True]
    assert "never closed" in text_of(page, "error")[0]
    assert "42" in text_of(page, "observation")[0]
    assert text_of(page, "thought") == ["\\boxed{42}"]


def test_the_mask_shown_is_the_one_that_the_loss_received_not_the_spans():
    made, page = shown()
    by_spans = [[s["start"] + 4, s["end"] + 4] for s in made["spans"] if s["kind"] == "policy"]
    assert page["prompt_tokens"] == 4 and page["trained"] == by_spans
    shifted = np.roll(made["response_mask"], 1)
    _, page = shown(response_mask=shifted)
    assert page["trained"] != by_spans
    assert sum(end - start for start, end in page["trained"]) == shifted.sum()


def test_log_probabilities_stand_on_sampled_tokens_only():
    made, page = shown()
    for position, sampled in enumerate(made["response_mask"]):
        assert (page["logprobs"][position] is not None) == sampled
        assert page["trainer_logprobs"][position] == (-0.75 if sampled else None)
    made, page = shown(logprobs=np.where(made["response_mask"], np.nan, 0).astype(np.float32), old_log_probs=None)
    assert set(page["logprobs"]) == set(page["trainer_logprobs"]) == {None}


def test_the_seconds_of_every_turn_are_those_that_it_waited():
    made, page = shown()
    assert page["waits"] == [[0.5, 0.0, 0.25], [0.5, 0.0, 0.25], [0.5, 0.0, 0.0]]
    _, page = shown(calls=[call | {"duration_s": 0.1 * call["turn"]} for call in made["calls"]])
    assert page["waits"] == [[0.5, 0.25, 0.0], [0.5, 0.15, 0.1], [0.5, 0.0, 0.0]]


def test_a_turn_with_prose_before_its_program_has_both_roles():
    made = record(1, 0)
    made["calls"][1]["start"] += 3
    names = [name for name, _, _ in roles(made)]
    assert names == ["code", "error", "thought", "code", "observation", "thought"]


def test_pieces_join_to_the_text_where_a_character_takes_several_tokens():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(alphabet))}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    text = "π≈3 \U0001f600!"
    ids = tokenizer.encode(text).ids
    pieces = token_pieces(tokenizer.decode, ids)
    assert len(pieces) == len(ids) == len(text.encode()) and "".join(pieces) == text
    assert token_pieces(tokenizer.decode, ids[:1]) == ["\ufffd"]


def test_highlighting_keeps_the_text_of_every_token():
    pieces = ["<code>\n", "im", "port math\npri", "nt(1)", "</code>"]
    parts = highlight(pieces, "import math\nprint(1)")
    assert ["".join(text for _, text in row) for row in parts] == pieces
    assert parts[1] == [("kn", "im")] and parts[0] == [("", "<code>\n")]
    assert highlight(pieces, "import sys") is None
