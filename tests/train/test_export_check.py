"""Export's comparison of Megatron's log-probabilities with those of the exported folder, in float32 and bfloat16."""

import json

import pytest
import torch
from families import write_family

from retool_mcore.train import hf_log_probs
from retool_mcore.train.export import compare

PROBE = {"sequences": 2, "tokens": 24}
LIMIT = 1e-3


def log_probs(folder, path, dtype):
    hf_log_probs.main(str(folder), str(path), json.dumps(PROBE), dtype)
    return torch.load(path)


def policy(folder, family, dtype):
    write_family(folder, family)
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    return folder


def other_rounding(folder, change=0.0):
    """The same policy computed in float16 and without fused attention, as another library rounds at other places; one
    layer's weights moved by `change` of their size."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.mul_(1 + change)
        ids = hf_log_probs.probe_batch(model.config.vocab_size, **PROBE)
        return torch.log_softmax(model.half()(input_ids=ids).logits.float(), dim=-1)


@pytest.mark.parametrize(("family", "stored"), [("qwen3", "bfloat16"), ("qwen3-moe", "bfloat16"), ("qwen3", "float32")])
def test_rounding_of_bfloat16_is_no_other_model(family, stored, tmp_path):
    """Whatever dtype the folder names: a float32 model is trained in bfloat16 by the layouts for GPUs."""
    folder = policy(tmp_path / "policy", family, getattr(torch, stored))
    rounded, exact = log_probs(folder, tmp_path / "hf.pt", "bfloat16")
    assert (rounded - exact).abs().max() > 10 * LIMIT  # what a bound for float32 would refuse
    difference, limit = compare(other_rounding(folder), rounded, exact, LIMIT)
    assert difference <= limit
    difference, limit = compare(other_rounding(folder, change=0.5), rounded, exact, LIMIT)
    assert difference > limit


def test_in_float32_one_token_tells(tmp_path):
    folder = policy(tmp_path / "policy", "qwen3", torch.float32)
    rounded, exact = log_probs(folder, tmp_path / "hf.pt", "float32")
    assert compare(exact + 0.5 * LIMIT, rounded, exact, LIMIT)[0] <= LIMIT
    found = exact.clone()
    found[1, 3, 5] += 2 * LIMIT
    difference, limit = compare(found, rounded, exact, LIMIT)
    assert difference > limit == LIMIT
