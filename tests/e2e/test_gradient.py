"""The mask where it counts: in the gradient of the real Megatron loss, under TP=2 with sequence parallelism, PP=2.

Of every model family, whose Megatron model is also compared with transformers' own, weight by weight and in its logits.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from families import FAMILIES, write_family
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from retool_mcore.backends.env import stage_env
from retool_mcore.backends.forked_python import PYTHON
from retool_mcore.backends.verl.fingerprint import EMBEDDING
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.train.hf_log_probs import probe_batch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


LAYOUTS = {"TP=2": (2, 1), "PP=2": (1, 2), "EP=2": (2, 1, "parallel.ep=2")}
# A tied model lies on both stages of PP=2, where Llama's once failed: it stands for them in every run of the tests.
CASES = [pytest.param("tiny", False, "TP=2", id="TP=2"), pytest.param("llama3.1", True, "PP=2", id="tied PP=2")] + [
    pytest.param(family, tied, layout, id=f"{family}{' tied' * tied} {layout}", marks=pytest.mark.nightly)
    for family in ("tiny", *FAMILIES)
    for tied in (False, True)
    for layout in LAYOUTS
    if (layout != "EP=2" or family == "qwen3-moe")
    and (family != "tiny" or (tied, layout) == (False, "PP=2"))
    and (family, tied, layout) != ("llama3.1", True, "PP=2")
]


@pytest.mark.parametrize(("family", "tied", "layout"), CASES)
def test_only_policy_tokens_reach_the_gradient(family, tied, layout, tmp_path):
    """Changing an interpreter token's label or advantage leaves every gradient bitwise alike; a policy token's not.

    And a NaN gradient is kept from weights and optimizer by alarms.nan, which stock Megatron lets through.
    """
    (tp, pp, *overrides), output = LAYOUTS[layout], tmp_path / "result.json"
    make = make_tiny_model if family == "tiny" else lambda folder, seed: write_family(folder, family, seed, tied=tied)
    model = make(tmp_path / "model", seed=1)
    probe = Path(__file__).with_name("gradient_probe.py")
    # Forked from the session's template, as the ranks of a stage are.
    torchrun = [os.environ[PYTHON], "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = stage_env({"parallel": {"device": "cpu"}})
    done = subprocess.run(
        [*torchrun, str(probe), str(model), str(tp), str(pp), str(output), *overrides],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(output.read_text())
    assert result["repeats"] and result["nonzero"]
    policy = [bool(bit) for bit in result["mask"]]
    assert result["label"] == policy
    assert result["advantage"] == policy
    update = result["update"]
    assert update["skipped"] == [0, 1, 0, None] and update["kept"] and update["went_on"] and update["finite"]
    assert update["spoilt_without"]
    assert update["copies"] == 2 * (tied and layout == "PP=2") and update["equal"]
    found = torch.load(f"{output}.pt")
    weights = load_file(model / "model.safetensors")
    assert found["weights"].keys() == weights.keys()
    assert all(torch.equal(found["weights"][name], weight) for name, weight in weights.items())
    transformers = AutoModelForCausalLM.from_pretrained(model).eval()
    if found["tied"]:
        expected = embedding_gradient(transformers, result)
        for gradient, weight in found["tied"]:
            assert torch.equal(weight, weights[EMBEDDING])
            assert (gradient - expected).norm() < 1e-4 * expected.norm()  # float32 on both sides
    with torch.no_grad():
        logits = transformers(probe_batch(384, sequences=4, tokens=48)).logits
    assert (torch.log_softmax(logits, dim=-1) - found["log_probs"]).abs().max() < 2e-5


def embedding_gradient(model, result: dict) -> torch.Tensor:
    """Of the probe's loss, on one process: both uses of a tied embedding together."""
    ids, advantages = torch.tensor(result["ids"]), torch.tensor(result["advantages"])
    mask = torch.tensor(result["mask"])
    logits = model(ids[None]).logits[0, -len(mask) - 1 : -1]
    log_probs = torch.log_softmax(logits, dim=-1).gather(1, ids[-len(mask) :, None])[:, 0]
    ratio = torch.exp(log_probs - torch.linspace(-5.0, -1.0, len(mask)))
    (-(ratio * advantages * mask).sum() / mask.sum()).backward()
    return model.get_input_embeddings().weight.grad
