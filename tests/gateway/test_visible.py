"""The text of a turn while it grows: the same in any cut, whole characters, nothing of a call or behind a stop."""

import pytest
from chatml_tokenizer import make_tokenizer

from retool_mcore.data.blocks import prose
from retool_mcore.data.formats import get_format
from retool_mcore.gateway.visible import BLOCKS, Visible, parted, unread_tokens

FMT = get_format("text", make_tokenizer())
UNREAD = unread_tokens(FMT)
TURNS = [
    "plain text",
    "ünï✓ 😀 done",
    "Let me see. <code>\nprint(1)\n</code>",
    "a < b and <codes> are words, <co",
    "<think>\nhm <code> hm\n</think>\n\nanswer",
    "\n\n  indented\n\n",
    "named `<code>` only, then on",
    "<tool_call>\n{}\n</tool_call> behind",
    "one STOP two",
    "one STO",
    "",
]


def grown(text, size, stops=(), opened=False):
    """(thought, text) of all that was returned, and what was returned while the turn grew."""
    visible = Visible(FMT, UNREAD, stops, BLOCKS, opened)
    ids = [*FMT.encode(text), FMT.eos_id]
    parts = []
    for start in range(0, len(ids), size):
        visible.grow(ids[start : start + size])
        parts.append(visible.new())
        if visible.stopped:
            break
    early = ["".join(part[place] for part in parts) for place in (0, 1)]
    thought, content = parted(text, opened)
    late = visible.rest(thought, prose(content))
    return (early[0] + late[0], early[1] + late[1]), early[1]


@pytest.mark.parametrize("text", TURNS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_any_cut_gives_the_same_text(text, size):
    thought, content = parted(text, False)
    whole, early = grown(text, size)
    assert whole == (thought.strip(), prose(content).lstrip("\n").rstrip())
    assert "\ufffd" not in whole[1] and FMT.eos_text not in whole[1]
    assert not any(block in early for block in BLOCKS)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stop_string_is_never_seen(size):
    assert grown("one STOP two", size, ("STOP",))[0][1] == "one"
    assert grown("one STO", size, ("STOP",))[0][1] == "one STO"
    whole, early = grown("a STAR b", size, ("STOP", "STAR b"))
    assert whole[1] == "a" and "ST" not in early


def test_a_thought_that_the_prompt_opens_ends_where_the_policy_closes_it():
    assert grown("hm\n</think>\n\nyes", 1, opened=True)[0] == ("hm", "yes")
    assert grown("hm and no end", 1, opened=True)[0] == ("hm and no end", "")


def test_text_comes_while_the_turn_grows():
    assert grown("a long and plain sentence", 1)[1] == "a long and plain sentence"
    assert grown("before <code>\nx\n</code>", 1)[1] == "before"
