"""RL where a batch system's TMPDIR is long and the working folder holds files by the names of libraries."""

from pathlib import Path

import pytest
from e2e_runs import metrics_of, retool

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]

SHADOWS = ("datasets.py", "json.py", "random.py", "torch.py", "ray/__init__.py", "vllm/__init__.py", "verl/__init__.py")
STEP = [f"data.rl.{part}" for part in ("steps=1", "batch=2", "mini_batch=2", "n=2", "save_every=1", "eval_every=-1")]


@pytest.mark.parametrize("template", ["on", "off"])
def test_a_step_of_rl(fork_of_cold_start, tmp_path, monkeypatch, template):
    work = tmp_path / "work"
    for name in SHADOWS:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(f"raise SystemExit({name!r} + ' of the working folder was imported')")
    scratch = tmp_path / "slurm_jobdir_1355700" / ("tmp of node0016-" + "x" * 90)
    scratch.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setenv("RETOOL_TEMPLATE", template)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:")
    monkeypatch.chdir(work)
    done = retool("rl", "name=t", f"runs_dir={fork_of_cold_start}", *STEP, "train.keep_best=null", plainly=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert sorted(metrics_of(fork_of_cold_start / "t" / "rl")) == [1]
