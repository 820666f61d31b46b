"""The Triton kernels against float64, on the CPU by Triton's interpreter."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton comes with torch for CUDA only")

PROGRAM = """
import torch
from retool_mcore.backends.megatron import fused_log_probs

fused_log_probs.BLOCK, fused_log_probs.WARPS = 64, 4
torch.manual_seed(0)


def compare(dtype, entropy):
    logits = (torch.randn(1, 7, 200) * 4).to(dtype)
    labels, temperature = torch.randint(0, 200, (1, 7)), torch.rand(1, 7) + 0.5
    up, bonus = torch.randn(1, 7), torch.randn(1, 7) * entropy
    up[0, 2] = bonus[0, 2] = 0
    exact = logits.double().requires_grad_()
    every = (exact / temperature.double()[..., None]).log_softmax(-1)
    spread = -(every.exp() * every).sum(-1)
    wanted = every.gather(-1, labels[..., None])[..., 0]
    ((wanted * up).sum() + (spread * bonus).sum()).backward()
    leaf = logits.clone().requires_grad_()
    found, entropies = fused_log_probs.log_probs(leaf * 1, labels, temperature, entropy=entropy)
    loss = (found * up).sum() + ((entropies * bonus).sum() if entropy else 0)
    loss.backward(retain_graph=True)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2  # the gradient is written in the logits' type
    assert (found - wanted).abs().max() < 1e-5, (found, wanted)
    assert not entropy or (entropies - spread).abs().max() < 1e-5
    assert (leaf.grad - exact.grad).norm() / exact.grad.norm() < tolerance
    assert (leaf.grad[0, 2] == 0).all()
    try:
        loss.backward()
    except RuntimeError as error:
        assert "overwrote the logits" in str(error)
    else:
        raise AssertionError("a second backward pass was accepted")


for dtype in (torch.float32, torch.bfloat16):
    for entropy in (False, True):
        compare(dtype, entropy)
print("compared")
"""


def test_values_and_gradients_are_those_of_float64():
    env = dict(os.environ) | {"TRITON_INTERPRET": "1", "VERL_PLATFORM": "none"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "compared", done.stdout + done.stderr[-2000:]
