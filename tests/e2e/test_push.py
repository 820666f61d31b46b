"""Weight pushes are compared with what vLLM holds, under fusing and slicing."""

import json
import re
import shutil
from pathlib import Path

import pytest
from e2e_runs import metrics_of, retool

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]

FEW = ("data.arithmetic.sft=64", "data.arithmetic.train=32", "data.arithmetic.validation=16")
STEP = ("train.batch=4", "train.n=2", "train.mini_batch=4", "train.steps=1", "train.save_every=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    done = retool("prepare", "name=t", f"runs_dir={runs}", *FEW)
    assert done.returncode == 0, done.stderr
    return runs / "t"


def rl(run: Path, *overrides: str):
    shutil.rmtree(run / "rl", ignore_errors=True)
    named = ("name=t", f"runs_dir={run.parent}", f"init_from={run}/model")
    return retool("rl", *named, *FEW, *STEP, "train.keep_best=null", *overrides)


def test_a_push_over_two_engine_ranks_is_verified_and_told(run):
    done = rl(run, "parallel.rollout_tp=2")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    config = json.loads((run / "model/config.json").read_text())
    log = (run / "rl/log.txt").read_text()
    told = re.search(r"Weight push: ([\d,]+) tensors, ([\d,]+) bytes, verified in", log)
    assert int(told[1].replace(",", "")) == 3 + 12 * config["num_hidden_layers"]
    metrics = metrics_of(run / "rl")[1]
    assert metrics["push/bytes"] == int(told[2].replace(",", "")) > 0
    assert metrics["push/verified"] == 2 and metrics["push/verify_seconds"] > 0


@pytest.mark.parametrize(
    ("tp", "push", "element", "tensor"),
    [
        (1, 2, "model.layers.1.self_attn.qkv_proj.weight,-1,0", "model.layers.1.self_attn.v_proj.weight"),
        (2, 1, "model.layers.0.mlp.gate_up_proj.weight,0,3", "model.layers.0.mlp.gate_proj.weight"),
    ],
)
def test_one_element_that_differs_stops_the_run(run, monkeypatch, tp, push, element, tensor):
    monkeypatch.setenv("CORRUPTED_PUSH", str(push))
    monkeypatch.setenv("CORRUPTED_ELEMENT", element)
    extension = "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls"
    done = rl(run, f"parallel.rollout_tp={tp}", f"{extension}=corrupted_push.CorruptedExtension")
    assert done.returncode == 1
    said = f"PushError: The weight push stops the run: {tensor} in the engine is not what the trainer exported"
    assert said in done.stderr, done.stderr[-2000:]
    assert not metrics_of(run / "rl")
