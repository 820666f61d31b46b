"""A question, a trace or a function that names the tokenizer's special tokens adds no turn to the template's."""

import json

import pytest
from families import FAMILIES, OURS, write_family
from transformers import AutoTokenizer

from retool_mcore.data.formats import get_format
from retool_mcore.data.function_schema import function_schema
from retool_mcore.data.prepare import write_problems, write_traces
from retool_mcore.data.records import Problem, Segment, Trace
from retool_mcore.data.segments import render_segments
from retool_mcore.data.sft_dataset import ReToolSFTDataset
from retool_mcore.preflight import data as preflight


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    made = {name: AutoTokenizer.from_pretrained(write_family(folder / name, name, weights=False)) for name in FAMILIES}
    for name, tokenizer in made.items():
        tokenizer.chat_template = (OURS / f"{FAMILIES[name].ours}.jinja").read_text()
    return made


def marks(tokenizer, family, ids):
    """How often each token that makes a turn stands in `ids`."""
    turn = {*FAMILIES[family].special, *(token for token in FAMILIES[family].plain if "｜" in token)}
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return {token: tokens.count(token) for token in turn if token in tokens}


def naming(family):
    """A text that names every token of the family's turns, nested, doubled and at its ends."""
    turn = [*FAMILIES[family].special, *(token for token in FAMILIES[family].plain if "｜" in token)]
    first, last = turn[0], turn[-1]
    return f"{first}What do {' and '.join(turn)} mean, {last}{last}, <{first}> and {first[:-1]}{first}>?{last}"


@pytest.mark.parametrize("name", ["text", "hermes", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_turns_of_a_prompt_are_the_templates_own(tokenizers, family, name):
    tokenizer = tokenizers[family]
    fmt, text = get_format(name, tokenizer), naming(family)

    def messages(content):
        roles = ("system", "user", "assistant", "tool", "user") if name == "hermes" else ("system", "user")
        return [{"role": role, "content": content} for role in roles]

    def tools(content):
        schema = {"type": "object", "properties": {"x": {"type": "string", "description": content, "enum": [content]}}}
        return [function_schema("f", content, schema)] if name == "hermes" else None

    plain, named = (fmt.prompt_ids(messages(content), tools(content)) for content in ("harmless", text))
    assert marks(tokenizer, family, named) == marks(tokenizer, family, plain)
    assert tokenizer.decode(named).replace(" ", "").count(text.replace(" ", "")) >= len(messages("")), (
        "all is still read"
    )
    question = [{"role": "user", "content": "In <think> or <code>, <tool_call> and <answer>: x = {1}?"}]
    assert fmt.neutral(question) == question, "what a policy writes may be taught"


@pytest.mark.parametrize("name", ["text", "hermes", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_turns_of_a_trace_are_the_formats_own(tokenizers, family, name):
    tokenizer, text = tokenizers[family], naming(family)
    fmt = get_format(name, tokenizer)

    def rendered(content):
        parts = [("text", content), ("code", f"print({content!r})"), ("observation", content), ("text", content)]
        return render_segments(fmt, tokenizer, [{"kind": kind, "text": part} for kind, part in parts])

    (plain, *_), (named, mask, spans) = rendered("harmless"), rendered(text)
    assert marks(tokenizer, family, named) == marks(tokenizer, family, plain)
    assert len(mask) == len(named) and spans[-1][2] == len(named) and named[-1] == fmt.eos_id


def test_rows_that_this_changed_are_counted(tokenizers, tmp_path, capsys):
    fmt = get_format("text", tokenizers["qwen3"])
    problems = [Problem("d", f"Question {n}{'<|im_end|>' * (n % 4 == 0)}", "1", n) for n in range(10)]
    write_problems(problems, tmp_path / "rl.parquet", template="tiny", split="train")
    preflight.tell_special_tokens("data.train_files", [tmp_path / "rl.parquet"], fmt)
    assert "data.train_files: 3 of 10 prompts name special tokens of the tokenizer" in capsys.readouterr().out
    write_problems(problems[1:3], tmp_path / "rl.parquet", template="tiny", split="train")
    preflight.tell_special_tokens("data.train_files", [tmp_path / "rl.parquet"], fmt)
    assert capsys.readouterr().out == ""

    traces = [
        Trace("d", "Q", (Segment("text", f"{n} \\boxed{{1}}{'<|im_start|>' * (n < 2)}"),), n) for n in range(5)
    ] + [Trace("d", "Q <|im_end|>", (Segment("text", "\\boxed{1}"),), 9)]
    write_traces(traces, tmp_path / "sft.parquet", template="tiny", split="train")
    made = ReToolSFTDataset(tmp_path / "sft.parquet", fmt.tokenizer, {"format": "text", "max_length": 999})
    assert "3 of 6 SFT examples name special tokens" in capsys.readouterr().out
    turns = [marks(fmt.tokenizer, "qwen3", made[row]["input_ids"]) for row in range(6)]
    assert all(turn == turns[2] for turn in turns) and json.dumps(turns[2])
