"""LoRA from SFT to the exported model on one GPU and on two: `pytest -m gpu tests/e2e/test_lora_on_gpu.py`."""

import pytest
import torch

from tests.support import lora

pytestmark = [pytest.mark.e2e, pytest.mark.gpu, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("gpus", "stages"), [(1, lora.one_gpu), (2, lora.two_gpus)])
def test_adapters_are_trained_merged_pushed_resumed_and_exported(gpus, stages, tmp_path):
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    checks = lora.Checks()
    checks.part("the whole", lambda: stages(checks, tmp_path))
    assert [line["what"] for line in checks.lines if not line["good"]] == []
