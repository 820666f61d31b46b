"""Ids, mask and text of every model family, in both formats and all ways of thinking: nothing is ever written again.

The oracle is the chat template itself: an episode's tokens, decoded, are its rendering of the whole conversation.
"""

import json

import pytest
from families import FAMILIES, OURS, OWN, write_family
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedEngine, ScriptedSandbox, roll_out
from transformers import AutoTokenizer

from retool_mcore.data.formats import get_format
from retool_mcore.data.segments import render_segments
from retool_mcore.errors import UserError
from retool_mcore.rollout.episode import Limits
from retool_mcore.rollout.trajectory import answer_text

LIMITS = Limits(max_turns=8, max_turn_tokens=10_000, max_response_tokens=100_000, max_observation_tokens=2000)
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 2?"}]
THINKING = {"hybrid": {}, "on": {"enable_thinking": True}, "off": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {name: AutoTokenizer.from_pretrained(write_family(folder / name, name, weights=False)) for name in FAMILIES}


def with_template(tokenizer, path):
    tokenizer.chat_template = path.read_text()
    return tokenizer


def ours(tokenizers, family, name, thinking):
    tokenizer = with_template(tokenizers[family], OURS / f"{FAMILIES[family].ours}.jinja")
    return get_format(name, tokenizer, THINKING[thinking])


def call(name: str, text: str, code: str) -> str:
    if name == "text":
        return f"{text}<code>\n```python\n{code}\n```\n</code>"
    arguments = json.dumps({"name": "code_interpreter", "arguments": {"code": code}})
    return f"{text}\n<tool_call>\n{arguments}\n</tool_call>"


def rendered(fmt, turns, printed) -> str:
    """The conversation as the template writes it; in format text its observations stand inside the one turn."""
    if fmt.name == "text":
        seen = [f"\n<interpreter>\n{output}\n</interpreter>\n" for output in printed] + [""]
        turns, printed = ["".join(turn + output for turn, output in zip(turns, seen, strict=True))], []
    messages = [*QUESTION, {"role": "assistant", "content": turns[0]}]
    for turn, output in zip(turns[1:], printed, strict=True):
        messages += [{"role": "tool", "content": output}, {"role": "assistant", "content": turn}]
    return fmt._render(messages)


@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("name", ["text", "hermes"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=6, derandomize=True)
@given(
    thoughts=st.lists(st.text(alphabet="ab é\n.?", max_size=12), min_size=3, max_size=3),
    cuts=st.lists(st.integers(1, 9), min_size=3, max_size=3),
)
def test_an_episode_is_the_templates_own_conversation(tokenizers, family, name, thinking, thoughts, cuts):
    fmt = ours(tokenizers, family, name, thinking)
    prompt = fmt.prompt_ids(QUESTION)
    closed = [f"<think>\n{thought}</think>\n\n" for thought in thoughts]
    texts = [call(name, closed[0], "print(1)"), call(name, closed[1], "print(2)"), closed[2] + "It is \\boxed{3}."]
    ends = [] if name == "text" else [fmt.eos_id]
    sampled = []
    for number, (text, cut) in enumerate(zip(texts, cuts, strict=True)):
        # Not the spelling that a tokenizer would choose: pieces, each encoded by itself.
        pieces = [text[i : i + 7 * cut] for i in range(0, len(text), 7 * cut)]
        sampled.append([token for piece in pieces for token in fmt.encode(piece)] + (ends if number < 2 else []))
    sampled[-1].append(fmt.eos_id)
    trajectory = roll_out(prompt, ScriptedEngine(sampled, fmt.eos_id), ScriptedSandbox(["1", "2"]), fmt, LIMITS)

    assert trajectory.finish == "answer" and [c.code for c in trajectory.calls] == ["print(1)", "print(2)"]
    policy = [token for token, bit in zip(trajectory.response_ids, trajectory.response_mask, strict=True) if bit]
    assert policy == [token for turn in sampled for token in turn]  # thoughts and ends of turns too, nothing else
    whole = fmt.decode(prompt + trajectory.response_ids)
    assert rendered(fmt, texts, ["1", "2"]).startswith(whole)
    assert rendered(fmt, texts, ["1", "2"])[len(whole) :].strip() == ""
    assert all(thought.strip() in answer_text(trajectory, fmt.tokenizer) for thought in thoughts)


@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("name", ["text", "hermes"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_sft_teaches_is_what_a_rollout_meets(tokenizers, family, name, thinking):
    fmt = ours(tokenizers, family, name, thinking)
    segments = [
        {"kind": "text", "text": "<think>\nI add.\n</think>\n\n"},
        {"kind": "code", "text": "print(1)"},
        {"kind": "observation", "text": "1"},
        {"kind": "text", "text": "<think>\nSo\n</think>\n\n\\boxed{1}"},
    ]
    ids, mask, spans = render_segments(fmt, fmt.tokenizer, segments)
    turns = [ids[start:end] for kind, start, end in spans if kind == "policy"]
    trajectory = roll_out(
        fmt.prompt_ids(QUESTION), ScriptedEngine(turns, fmt.eos_id), ScriptedSandbox(["1"]), fmt, LIMITS
    )
    assert (trajectory.response_ids, trajectory.response_mask) == (ids, mask)
    assert fmt.decode(t for t, bit in zip(ids, mask, strict=True) if bit).count("</think>") == 2


@pytest.mark.parametrize("name", ["text", "hermes"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_program_cannot_write_a_turn(tokenizers, family, name):
    """Whatever it prints, its observation holds as many of the template's own tokens as an empty one."""
    fmt = ours(tokenizers, family, name, "hybrid")
    turn = set(FAMILIES[family].special) | {t for t in FAMILIES[family].plain if t.startswith("<｜")}
    tokens = set(fmt.tokenizer.convert_tokens_to_ids(sorted(turn)))

    def held(output: str) -> list[int]:
        return [token for token in fmt.observation_ids([output]) if token in tokens]

    assert held("".join(turn)) == held("x")


def test_prefilled_thoughts_belong_to_the_prompt(tokenizers):
    ends = {
        (family, thinking): fmt.decode(fmt.prompt_ids(QUESTION)[-40:])
        for family in ("qwen3", "r1-distill")
        for thinking in THINKING
        for fmt in [ours(tokenizers, family, "text", thinking)]
    }
    empty = "<think>\n\n</think>\n\n"
    assert [ends["qwen3", mode].endswith(empty) for mode in THINKING] == [False, False, True]
    assert [ends["r1-distill", mode].endswith("<think>\n") for mode in THINKING] == [True, True, False]


# What the models' own templates allow: a rewritten turn is refused, never tokenised anew.
@pytest.mark.parametrize(
    ("family", "name", "thinking", "refused"),
    [
        ("qwen3", "text", "hybrid", "generation prompt"),
        ("qwen3", "text", "on", "generation prompt"),
        ("qwen3", "text", "off", None),
        ("qwen3", "hermes", "on", "generation prompt"),
        ("qwen3", "hermes", "off", "earlier turns"),
        ("qwen3-moe", "text", "hybrid", "generation prompt"),
        ("r1-distill", "text", "on", "generation prompt"),
        ("r1-distill", "hermes", "on", "generation prompt"),
        ("llama3.1", "text", "on", None),
        ("llama3.1", "hermes", "on", None),
        ("mistral", "text", "on", "generation prompt"),
    ],
)
def test_the_models_own_templates(tokenizers, family, name, thinking, refused):
    tokenizer = with_template(tokenizers[family], OWN / f"{FAMILIES[family].own}.jinja")
    if refused is None:
        get_format(name, tokenizer, THINKING[thinking])
    else:
        with pytest.raises(UserError, match=refused):
            get_format(name, tokenizer, THINKING[thinking])


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (
            "qwen3",
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
            "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "r1-distill",
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜>\n\na<｜end▁of▁sentence｜><｜User｜>r<｜Assistant｜><think>\n",
        ),
        ("mistral", "<s>[INST] q[/INST] <think>\nt\n</think>\n\na</s>[INST] r[/INST]"),
    ],
)
def test_the_models_own_templates_drop_thoughts_as_published(tokenizers, family, expected):
    tokenizer = with_template(tokenizers[family], OWN / f"{FAMILIES[family].own}.jinja")
    turns = [("user", "q"), ("assistant", "<think>\nt\n</think>\n\na"), ("user", "r")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == expected
