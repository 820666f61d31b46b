"""A job whose program is in a container without Slurm's commands, on the real Slurm: slurm/host_slurm.py starts its
steps.

The containers are stand-ins for Apptainer and for srun with Pyxis: they take the options and hide Slurm's commands.
"""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.support.slurm.slurm_jobs import SIZE, Job, prepare

REPOSITORY = Path(__file__).parents[2]
INSIDE = """\
#!/bin/bash
exec unshare --mount bash -c 'for name in srun scontrol squeue sacct sinfo sbatch; do
    mount --bind /bin/false "$(command -v "$name")"; done; exec "$@"' inside "$@"
"""
APPTAINER = '#!/bin/bash\nwhile [[ $1 != image ]]; do shift; done; shift; exec {folder}/inside "$@"\n'
# Pyxis: the options of a container before the command.
SRUN = """\
#!/bin/bash
options=() image=
while [[ $1 == -* ]]; do
    case $1 in --container-image=*) image=yes ;; --container-*) ;; *) options+=("$1") ;; esac
    shift
done
echo "${image:-none}" "$@" >>{folder}/called
[[ -z $image ]] || options+=({folder}/inside)
exec /usr/bin/srun "${options[@]}" "$@"
"""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def contained(tmp_path, cluster):
    """Submits SFT in the container of a kind; gives the job."""
    for name in ("slurm", "configs", "retool_mcore"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bin").mkdir()
    for name, text in {"inside": INSIDE, "bin/apptainer": APPTAINER, "bin/srun": SRUN}.items():
        (tmp_path / name).write_text(text.replace("{folder}", str(tmp_path)))
        (tmp_path / name).chmod(0o755)
    prepare(cluster, tmp_path / "runs")

    def submit(kind, *overrides):
        site = f"venv: null\ncontainer:\n  kind: {kind}\n  image: image\nenv:\n  NCCL_DEBUG: WARN\n"
        (tmp_path / f"configs/site/{kind}.yaml").write_text(site)
        out = tmp_path / "runs/t/slurm/job.out"
        out.parent.mkdir()
        env = {"RETOOL_ROOT": str(tmp_path), "RETOOL_SITE": kind, "RETOOL_VENV": sys.prefix}
        env |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        words = [
            "sbatch",
            "--parsable",
            "--nodes=2",
            "--gpus-per-node=0",
            f"--output={tmp_path}/runs/t/slurm/%j-sft.out",
        ]
        words += [str(tmp_path / "slurm/sft.sbatch"), "name=t", f"runs_dir={tmp_path}/runs", *SIZE, *overrides]
        return Job(cluster, cluster.run(*words, env=env, cwd=tmp_path).strip(), "sft", tmp_path / "runs")

    return submit


@pytest.mark.parametrize("kind", ["apptainer", "pyxis"])
def test_the_steps_of_a_job_in_a_container_are_started_by_the_host(cluster, contained, tmp_path, kind):
    job = contained(kind, "init_from=/no/such/model")
    ended = cluster.wait(job.id, "FAILED", "COMPLETED", timeout_s=300)
    said = job.output()
    assert ended["ExitCode"] == "2:0" and re.search(r"^sft: job \d+, start 1, on n1, n2$", said, re.MULTILINE), said
    assert re.search(r"^retool: .*/no/such/model", said, re.MULTILINE) and "Traceback" not in said, said
    if (
        kind == "pyxis"
    ):  # the image unpacked, the job, its guard, the look at the nodes, the sweep, the container removed
        called = (tmp_path / "called").read_text()
        first, *rest, last = called.splitlines()
        assert first == "yes true" and "enroot remove" in last and last.startswith("none ")
        parts = ("cluster.job sft", "cluster.guard", "cluster.node_check", "cluster.node sweep")
        assert all(any(line.startswith("yes ") and part in line for line in rest) for part in parts), called


@pytest.mark.nightly
def test_a_job_in_a_container_whose_process_is_killed_goes_on(cluster, contained):
    """Two nodes train; the guard, in a container too, asks for the requeue through the host."""
    job = contained("apptainer")
    job.wait_for_step(attempt=1, step=9)
    own = re.compile(r"^\S*python\S* -m retool_mcore\.cluster\.job ")  # not host_slurm.py, which starts it
    (pid,) = [pid for pid, command in cluster.processes("n1").items() if own.match(command)]
    os.kill(pid, signal.SIGKILL)
    assert job.finish()["Restarts"] == "1"
    assert "the job's own process was killed" in job.output()
    done = {step for steps in job.attempts() for step in steps}
    assert done == {*range(1, 25)}
