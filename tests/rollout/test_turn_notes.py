"""What an episode notes of every policy turn, for the metrics and the viewer."""

import pytest
from chatml_tokenizer import make_tokenizer
from scripted import ScriptedEngine, ScriptedSandbox, roll_out

from retool_mcore.data.formats import get_format
from retool_mcore.rollout.episode import Limits

TOKENIZER = make_tokenizer()
TEXT, HERMES, NONE = (get_format(name, TOKENIZER) for name in ("text", "hermes", "none"))
WIDE = Limits(max_turns=8, max_turn_tokens=500, max_response_tokens=2000, max_observation_tokens=200)
CODE = "<code>\nprint(42)\n</code>"
CALL = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(42)"}}\n</tool_call>'


def notes_of(fmt, *turns, limits=WIDE):
    script = [TOKENIZER.encode(turn, add_special_tokens=False) for turn in turns]
    engine = ScriptedEngine([*script, [fmt.eos_id]], fmt.eos_id)
    return roll_out([1, 2], engine, ScriptedSandbox(["42\n"] * 8), fmt, limits)


def test_programs_and_boxes_of_each_turn():
    trajectory = notes_of(TEXT, f"so {CODE}", "</code>", "it is \\boxed{42}<|im_end|>")
    assert [(note.programs, note.boxed) for note in trajectory.turn_notes] == [(1, False), (0, False), (0, True)]
    assert trajectory.turns == 3 and trajectory.started > 1e9
    assert sum(note.generate_s for note in trajectory.turn_notes) == pytest.approx(trajectory.generate_s)
    assert sum(note.tool_s for note in trajectory.turn_notes) == pytest.approx(trajectory.tool_s)


def test_a_program_that_was_not_run_is_a_program():
    none_allowed = Limits(max_turns=0, max_turn_tokens=500, max_response_tokens=2000, max_observation_tokens=200)
    trajectory = notes_of(TEXT, CODE, limits=none_allowed)
    assert trajectory.finish == "max_turns" and not trajectory.calls
    assert trajectory.turn_notes[0].programs == 1


def test_a_box_inside_a_block_is_no_box():
    assert not notes_of(TEXT, "<interpreter>\\boxed{1}</interpreter><|im_end|>").turn_notes[0].boxed


@pytest.mark.parametrize(
    ("fmt", "call", "opening"), [(TEXT, CODE, "<interpreter>"), (HERMES, CALL + "<|im_end|>", "<tool_response>")]
)
def test_blocks_that_the_policy_wrote_itself(fmt, call, opening):
    assert fmt.observation_open == opening
    trajectory = notes_of(fmt, call, f"then {opening}\n42\n and {opening}<|im_end|>")
    real, faked = trajectory.turn_notes
    assert real.fakes == []
    answer = trajectory.spans[2]
    assert len(faked.fakes) == 2 and all(answer.start < token < answer.end for token in faked.fakes)
    for token in faked.fakes:
        assert fmt.decode(trajectory.response_ids[token:]).lstrip().startswith(opening)


def test_a_policy_that_only_imitates_costs_no_minutes():
    assert len(notes_of(TEXT, "<interpreter>" * 50 + "<|im_end|>").turn_notes[0].fakes) == 8
    assert NONE.observation_open == ""
