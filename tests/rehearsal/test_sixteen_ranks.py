"""The flagship's mapping, TP8 x PP2 with sequence parallelism and the distributed optimizer, as sixteen processes.

Thin models with the flagships' layers and heads; the stages are `retool sft` and `retool replay` as they are started on
GPUs, and what they compute is compared with the same command in one process.
"""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from made_run import record as made_record
from omegaconf import OmegaConf
from rehearsal_runs import (
    DATA,
    EXACT,
    KERNELS,
    LAYOUT,
    ONE_MACHINE,
    ONE_PROCESS,
    THIN,
    different_keys,
    forked,
    furthest,
    layout,
    read,
    retool,
    submitted,
    tell_memory,
)
from thin_models import write_thin

from retool_mcore.config import compose
from retool_mcore.metrics.records import write_step
from tests.support.slurm import slurm_here

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

DENSE, MOE = "qwen2.5-32b", "qwen3-30b-a3b"
EXPERTS = {"parallel.tp": "4", "parallel.ep": "8"}  # 4 KV heads; two data-parallel ranks, 16 experts on each of 8
EXPERTS_ELSEWHERE = ONE_PROCESS | {"parallel.gpus_per_node": "2", "parallel.ep": "2", "parallel.ray.num_gpus": "2"}
GRPO = (
    "recipe=grpo",
    "train.batch=2",
    "train.mini_batch=2",
    "train.n=4",
    "train.lr=1e-5",
    "rollout.max_prompt_tokens=64",  # the longest sequence fits a micro-batch
    "rollout.max_response_tokens=192",
    "rollout.max_observation_tokens=64",
)
OTHER_LAYOUTS = {
    "TP4 PP2 DP2": ONE_MACHINE | {"parallel.tp": "4"},
    "TP2 PP4 DP2": ONE_MACHINE | {"parallel.tp": "2", "parallel.pp": "4"},
    "TP1": ONE_PROCESS,
}


def sft(runs: Path, record: Path, *overrides: str) -> None:
    retool("sft", "name=t", f"runs_dir={runs}", *overrides, record=record)


def replay(run: Path, record: Path, given, chosen: list[str]) -> dict[str, float]:
    """One GRPO update from recorded trajectories by the trainer alone; its metrics."""
    config = compose("rl", ["name=t", f"runs_dir={run.parent}", "init_from=${model.path}", *GRPO, *given, *chosen])
    (run / "rl").mkdir(parents=True)
    OmegaConf.save(config, run / "rl/config.yaml", resolve=True)
    write_step(run / "rl/trajectories", 1, recorded_trajectories())
    retool("replay", str(run), "--step", "1", record=record)
    return json.loads((run / "replay/step_000001/trainer/metrics.json").read_text())["replayed"]


def recorded_trajectories() -> list[dict]:
    """Two groups of four: in every fourth the policy has answered after its first program's error. No two are alike, or
    their gradients would cancel."""
    found = []
    for row in range(8):
        record = made_record(1, row, place=row, overlong=0.0, drop="")
        for span in record["spans"][::2]:
            policy = slice(span["start"], span["end"])
            record["response_ids"][policy] = np.roll(record["response_ids"][policy], row)
        record["logprobs"] *= 12  # about those of a random policy: 6 below 0, else a correction of them takes the loss
        if row % 4 == 3:
            end = record["spans"][2]["end"]
            cut = {name: record[name][:end] for name in ("response_ids", "response_mask", "logprobs")}
            cut |= {name: record[name][:end] for name in ("old_log_probs", "advantages")}
            record |= cut | {"spans": record["spans"][:3], "calls": record["calls"][:1]}
        found.append(record)
    return found


def losses(runs: Path, stage: str = "sft") -> dict[int, float]:
    lines = (runs / "t" / stage / "metrics/attempt_001.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    return {one["step"]: one["data"]["train/loss"] for one in steps if "train/loss" in one["data"]}


class Thin:
    """A thin model and its data, prepared in the runs `sixteen` and `one`; every run's records are kept by name."""

    def __init__(self, folder: Path, shape: str) -> None:
        self.folder, self.model = folder, write_thin(folder / "model", shape)
        self.given = (*DATA, f"model.path={self.model}", "model.make=false")
        self.sixteen, self.one = folder / "sixteen", folder / "one"
        retool("prepare", "name=t", f"runs_dir={self.sixteen}", *self.given)
        shutil.copytree(self.sixteen / "t", self.one / "t")

    def cold_start(self, changed: dict[str, str], cluster=None) -> None:
        """SFT in sixteen processes and in one."""
        start = time.monotonic()
        if cluster is None:
            sft(self.sixteen, self.record("sixteen"), *self.given, *layout(ONE_MACHINE | changed))
        else:
            submitted(cluster, self.record("sixteen"), self.sixteen, *self.given, *layout(changed))
        self.seconds = time.monotonic() - start
        sft(self.one, self.record("one"), *self.given, *layout(ONE_PROCESS))

    def record(self, name: str) -> Path:
        return self.folder / "records" / name

    def assert_equal(self, what: str) -> None:
        first = read(self.record("sixteen"), "update_1")
        tell_memory(f"{what} ({self.seconds:.0f} s, two steps)", first)
        assert len(first["memory"]) == 16
        loss, wanted = losses(self.sixteen), losses(self.one)
        assert sorted(loss) == [1, 2]
        for step in loss:
            found, reference = (read(self.record(name), f"update_{step}") for name in ("sixteen", "one"))
            assert not any(found["copies_differ"])
            difference, name = furthest(found["gradients"], reference["gradients"])
            print(
                f"step {step}: loss {loss[step]:.7f} beside {wanted[step]:.7f}; of {len(found['gradients'])} gradients "
                f"the furthest is {name}, by {difference:.1e} of its norm",
                flush=True,
            )
            assert loss[step] == pytest.approx(wanted[step], rel=EXACT)
            assert difference < EXACT
            assert found["grad_norm"] == pytest.approx(reference["grad_norm"], rel=EXACT)  # of all ranks' parts

    def assert_resumed(self, runs: Path, name: str, changed: dict[str, str]) -> None:
        """After the first step's checkpoint, in another layout: parameters and Adam's state are the same bits, the next
        loss and all its gradients equal."""
        for part in ("data", "prepare", "sft"):
            shutil.copytree(self.sixteen / "t" / part, runs / "t" / part, symlinks=True)
        shutil.rmtree(runs / "t/sft/checkpoints/global_step_2")
        shutil.rmtree(runs / "t/sft/metrics")
        (runs / "t/sft/COMPLETE").unlink()
        sft(runs, self.record(name), *self.given, *layout(changed))
        assert "random states start anew" in (runs / "t/sft/log.txt").read_text()
        saved, loaded = read(self.record("sixteen"), "update_1"), read(self.record(name), "loaded")
        assert all(steps == [1.0] for steps in loaded["steps"])
        for part in ("parameters", "exp_avg", "exp_avg_sq"):
            assert saved[part].keys() == loaded[part].keys() and saved[part]
            assert not [key for key, tensor in saved[part].items() if not torch.equal(tensor, loaded[part][key])]
        loss, wanted = losses(runs), losses(self.sixteen)
        found, reference = read(self.record(name), "update_2"), read(self.record("sixteen"), "update_2")
        difference, whose = furthest(found["gradients"], reference["gradients"])
        tell_memory(f"its checkpoint in {name}", found)
        print(f"next loss {loss[2]:.7f} beside {wanted[2]:.7f}; furthest gradient {whose}, by {difference:.1e}")
        assert sorted(loss) == [2] and loss[2] == pytest.approx(wanted[2], rel=EXACT)
        assert difference < EXACT

    def assert_pushed(self, name: str) -> None:
        """The stream of a push after the first step, as vLLM's ranks take it, is what the layout of the record `name`
        exports of that step's checkpoint, bit by bit."""
        program = str(Path(__file__).with_name("engine_slices.py"))
        records = (self.record("sixteen") / "update_1.pt", self.record(name) / "loaded.pt")
        said = forked(program, str(self.model), *map(str, records), "1", "2", "4", "8").partition("FOUND ")[2]
        print("a push into vLLM's ranks, TP1, 2, 4 and 8; what differs:", said)
        assert json.loads(said) == dict.fromkeys("1248")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Qwen2.5-32B's shape."""
    return Thin(tmp_path_factory.mktemp("flagship"), DENSE)


@pytest.fixture(scope="module")
def flagship(prepared):
    """`prepared`, cold-started over two nodes of Slurm where this machine can have them."""
    if reason := slurm_here.why_not():
        print(f"no Slurm ({reason}): sixteen processes of one torchrun")
        prepared.cold_start(ONE_MACHINE)
        return prepared
    cluster = slurm_here.up(prepared.folder / "slurm")
    try:
        prepared.cold_start({}, cluster)
    finally:
        cluster.down()
    return prepared


def test_only_keys_of_kernels_differ(tmp_path):
    """Whatever else the layout of GPUs asks for is asked for here."""
    for stage in ("sft", "rl"):
        found = different_keys(stage, "name=t", f"runs_dir={tmp_path}", f"model.path={tmp_path}", "model.make=false")
        print(f"\n{stage}: {len(found)} keys differ from parallel={LAYOUT}")
        for name in (*KERNELS, *THIN):
            print(f"  {name:80} {found[name][0]!s:9} {found[name][1]}")
        assert found.keys() == KERNELS.keys() | THIN.keys()


def test_loss_and_every_gradient_of_a_grpo_update_equal_those_of_one_process(prepared, tmp_path):
    found = {}
    for name, chosen in (("sixteen", ONE_MACHINE), ("one", ONE_PROCESS)):
        shutil.copytree(prepared.sixteen / "t/data", tmp_path / name / "t/data")
        metrics = replay(tmp_path / name / "t", prepared.record(f"grpo {name}"), prepared.given, layout(chosen))
        found[name] = metrics, read(prepared.record(f"grpo {name}"), "update_1")
    (metrics, update), (wanted, reference) = found["sixteen"], found["one"]
    difference, name = furthest(update["gradients"], reference["gradients"])
    tell_memory("GRPO, TP8 x PP2", update)
    print(
        f"loss {metrics['actor/pg_loss']:.7f} beside {wanted['actor/pg_loss']:.7f}; furthest gradient {name}, by "
        f"{difference:.1e} of its norm"
    )
    assert len(update["memory"]) == 16 and not any(update["copies_differ"])
    for metric in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/advantages/max"):
        assert metrics[metric] == pytest.approx(wanted[metric], rel=EXACT, abs=1e-7), metric
    assert wanted["actor/grad_norm"] > 1e-3 and difference < EXACT


def test_loss_and_every_gradient_of_sft_equal_those_of_one_process(flagship):
    flagship.assert_equal("TP8 x PP2")


def test_only_policy_tokens_reach_the_gradient(flagship, tmp_path):
    """An interpreter token's label or advantage leaves every rank's gradients bitwise alike; a policy token's not."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=16"]
    probe, output = Path(__file__).with_name("mask_probe.py"), tmp_path / "result.json"
    forked(*ranks, str(probe), str(flagship.model), str(output), *layout(ONE_MACHINE))
    found = json.loads(output.read_text())
    print("policy's tokens, and whose change is seen:", found)
    assert found["repeats"] and 0 < sum(found["policy"]) < len(found["policy"])
    assert found["label"] == found["advantage"] == found["policy"]


@pytest.mark.parametrize("other", OTHER_LAYOUTS)
def test_a_checkpoint_goes_on_in_another_layout(flagship, tmp_path, other):
    flagship.assert_resumed(tmp_path, other, OTHER_LAYOUTS[other])


def test_a_push_fills_the_slices_of_every_engine(flagship):
    assert (flagship.record("TP1") / "loaded.pt").exists(), (
        "needs the checkpoint read in TP1: the test before has to pass"
    )
    flagship.assert_pushed("TP1")


def test_experts_spread_over_ranks_equal_those_of_one_process(tmp_path):
    """Qwen3-30B-A3B's layers, heads and experts as TP4 x PP2 x EP8: gradients, checkpoint and push as above."""
    made = Thin(tmp_path, MOE)
    made.cold_start(EXPERTS)
    made.assert_equal("TP4 x PP2 x EP8")
    made.assert_resumed(tmp_path / "resumed", "TP1 EP2 DP2", EXPERTS_ELSEWHERE)
    made.assert_pushed("TP1 EP2 DP2")
