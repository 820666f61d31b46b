"""The tiny policy: a folder that transformers loads, tokens that make the round trip, turns that only append."""

import json
import math
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from retool_mcore.data import arithmetic, tiny_model
from retool_mcore.data.formats import TOOL, get_format
from retool_mcore.data.segments import render_segments
from retool_mcore.errors import UserError

CALL = {"type": "function", "function": {"name": "code_interpreter", "arguments": {"code": 'print("2*\\n3")'}}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Compute 12*345-7."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "code_interpreter", "content": "4133"},
    {"role": "tool", "name": "code_interpreter", "content": "again"},
    {"role": "assistant", "content": "Once more:", "tool_calls": [CALL, CALL]},
    {"role": "tool", "name": "code_interpreter", "content": "-5"},
    {"role": "assistant", "content": "\\boxed{4133}"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model.make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", seed=1)


@pytest.fixture(scope="module")
def tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def test_transformers_loads_it_and_every_weight_comes_from_the_file(folder):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    weights = load_file(folder / "model.safetensors")
    state = model.state_dict()
    assert state.keys() == weights.keys()
    for name, tensor in state.items():
        assert tensor.dtype == torch.float32
        assert np.array_equal(tensor.numpy(), weights[name]), name
    with torch.no_grad():
        logits = model(input_ids=torch.arange(40)[None]).logits
    assert logits.shape == (1, 40, tiny_model.VOCAB_SIZE)
    assert bool(torch.isfinite(logits).all())
    # An untrained policy must be near uniform, or the first SFT steps only undo what the seed made up.
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean().item()
    assert entropy > 0.9 * math.log(tiny_model.VOCAB_SIZE)


def test_layer_0_looks_back_and_layer_1_passes_on_what_it_attends_to(folder):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    ids = torch.randint(0, tiny_model.VOCAB_SIZE, (1, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        attention = model(input_ids=ids, output_attentions=True).attentions[0][0]
    for head, distance in enumerate((1, 2, 3)):
        on_target = attention[head, torch.arange(10, 100), torch.arange(10 - distance, 100 - distance)]
        assert on_target.mean() > 0.8, head
    weights = load_file(folder / "model.safetensors")
    value, output = (weights[f"model.layers.1.self_attn.{name}_proj.weight"] for name in ("v", "o"))
    heads = np.concatenate([value[:32], value[:32], value[32:], value[32:]])
    passed_on = weights["lm_head.weight"] @ output @ heads @ weights["model.embed_tokens.weight"].T
    assert (passed_on.argmax(axis=0) == np.arange(tiny_model.VOCAB_SIZE)).mean() > 0.95


def test_the_vocabulary_fills_the_model_and_divides(folder, tokenizer):
    config = json.loads((folder / "config.json").read_text())
    assert len(tokenizer) == config["vocab_size"] == tiny_model.VOCAB_SIZE == 384
    assert sorted(tokenizer.get_vocab().values()) == list(range(384))
    assert config["num_attention_heads"] % 2 == config["num_key_value_heads"] % 2 == 0
    assert tokenizer.pad_token == "<|endoftext|>" and tokenizer.eos_token == "<|im_end|>"
    assert (config["pad_token_id"], config["eos_token_id"]) == (tokenizer.pad_token_id, tokenizer.eos_token_id)


def test_autotokenizer_gives_the_tokens_of_the_file(folder, tokenizer):
    text = "a  b\n\n12345 <code>print(7*  8)</code> It's 'tool'\t\\boxed{-90}x é ``````python"
    assert encode(tokenizer, text) == tiny_model.build_tokenizer().encode(text, add_special_tokens=False).ids


def test_pieces_are_one_token_and_survive_skip_special_tokens(tokenizer):
    for piece in tiny_model.PIECES:
        ids = encode(tokenizer, piece)
        assert len(ids) == 1, piece
        assert tokenizer.decode(ids, skip_special_tokens=True) == piece


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    st.lists(st.one_of(st.text(max_size=8), st.sampled_from([*tiny_model.PIECES, "\n", "007", "-12*3"])), max_size=12)
)
def test_any_text_makes_the_round_trip(parts):
    import unicodedata

    text = unicodedata.normalize("NFC", "".join(parts))
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


TOKENIZER = tiny_model.build_tokenizer()


@pytest.mark.parametrize("format_name", ["text", "hermes", "none"])
def test_task_traces_render_to_tokens_that_merge_nowhere(tokenizer, format_name):
    fmt = get_format(format_name, tokenizer)
    longest = 0
    for trace in arithmetic.solve(arithmetic.problems(100, 7), 7, 0.7):
        segments = [{"kind": s.kind, "text": s.text} for s in trace.segments]
        ids, mask, _ = render_segments(fmt, tokenizer, segments)
        text = decode(tokenizer, ids)
        assert encode(tokenizer, text) == ids
        assert text.endswith(trace.segments[-1].text + "<|im_end|>")
        assert len(mask) == len(ids)
        longest = max(longest, len(ids))
    assert longest <= 96


@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_the_template_only_appends(tokenizer, tools):
    def ids(messages, **kwargs):
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **kwargs)
        return encode(tokenizer, text)

    whole = ids(MESSAGES)
    for k in range(1, len(MESSAGES)):
        head = ids(MESSAGES[:k])
        assert whole[: len(head)] == head, k
        if MESSAGES[k]["role"] == "assistant":
            opened = ids(MESSAGES[:k], add_generation_prompt=True)
            assert whole[: len(opened)] == opened, k


def test_the_template_writes_calls_as_python_json_does_and_no_default_system_prompt(tokenizer):
    text = tokenizer.apply_chat_template(MESSAGES[1:4], tokenize=False, add_generation_prompt=True)
    call = json.dumps({"name": "code_interpreter", "arguments": {"code": 'print("2*\\n3")'}})
    assert text == (
        "<|im_start|>user\nCompute 12*345-7.<|im_end|>\n"
        f"<|im_start|>assistant\n<tool_call>\n{call}\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n4133\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    listed = tokenizer.apply_chat_template(MESSAGES[:2], tools=[TOOL], tokenize=False)
    assert listed.startswith(
        "<|im_start|>system\nBe brief.\nTools: code_interpreter(code)<|im_end|>\n<|im_start|>user\n"
    )


def test_a_seed_decides_the_weights():
    first, again, other = (tiny_model.initial_weights(seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    name = "model.layers.1.mlp.up_proj.weight"
    assert not np.array_equal(first[name], other[name])


def test_a_second_call_returns_at_once_and_leaves_the_folder_alone(tmp_path):
    root = tiny_model.make_tiny_model(tmp_path / "model", seed=3)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.iterdir()}
    assert tiny_model.make_tiny_model(root, seed=3) == root
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_making_it_imports_no_torch(tmp_path):
    program = (
        "import sys; from pathlib import Path; from retool_mcore.data.tiny_model import make_tiny_model\n"
        "make_tiny_model(Path(sys.argv[1]), 1); print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "model"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_another_seed_or_another_content_in_the_folder_is_refused(tmp_path):
    root = tiny_model.make_tiny_model(tmp_path / "model", seed=3)
    with pytest.raises(UserError, match="seed 3, .*asked for was seed 4"):
        tiny_model.make_tiny_model(root, seed=4)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is no tiny model"):
        tiny_model.make_tiny_model(other, seed=3)
    assert (other / "notes.txt").read_text() == "mine"


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "model").mkdir()
    assert (tiny_model.make_tiny_model(tmp_path / "model", seed=1) / "model.safetensors").is_file()


def test_two_makers_at_once_leave_one_whole_folder(tmp_path):
    failures = []

    def make():
        try:
            tiny_model.make_tiny_model(tmp_path / "model", seed=1)
        except Exception as error:
            failures.append(error)

    makers = [threading.Thread(target=make) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert not failures
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert len(load_file(tmp_path / "model" / "model.safetensors")) == 27
