"""The commands of docs/cluster.md, on the real Slurm: those that are quick are run, of the others their words are."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.slurm.slurm_jobs import ENV, RETOOL

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "cluster.md"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def commands(first: str) -> list[list[str]]:
    """The page's commands that begin with this word (or whose second word it is, behind a variable's value)."""
    lines = [line[2:] for line in PAGE.read_text().splitlines() if line.startswith("$ ")]
    lines += [line for line in PAGE.read_text().splitlines() if line.startswith("    ")]
    words = [shlex.split(line, comments=True) for line in lines]
    found = [line for line in words if first in line[: 1 + ("=" in line[0])]]
    assert found, f"the page has no {first}"
    return found


def allocation() -> list[str]:
    """The page's salloc of two nodes, without a command."""
    return next(line for line in commands("salloc") if "--nodes=2" in line and "retool" not in line)


def output(command: str) -> list[str]:
    """What the page shows below its command that begins so."""
    _, _, rest = PAGE.read_text().partition(f"\n$ {command}")
    return rest.partition("\n\n")[0].partition("\n```")[0].splitlines()[1:]


def with_paths_of_the_page(text: str, runs: Path) -> list[str]:
    """`text` as somebody sees it who is in the repository, with a runs folder there."""
    return text.replace(str(runs), "runs").replace(str(REPOSITORY), ".").splitlines()


def test_slurm_takes_the_batch_scripts_with_the_pages_words(cluster):
    for line in commands("sbatch"):
        cluster.run(line[0], "--test-only", *line[1:], cwd=REPOSITORY)


def test_a_stage_takes_the_pages_words(cluster, tmp_path):
    """On the nodes of an allocation, as slurm/attach.sh starts it: refused is only the word that the page has not."""
    allocate = allocation()
    attached = commands("slurm/attach.sh")
    script = tmp_path / "by_hand.sh"
    lines = [shlex.join([*line, "train.no_such_key=1"]) + "; echo ended: $?" for line in attached]
    script.write_text("\n".join(["#!/bin/bash", *lines]))
    script.chmod(0o755)
    said = cluster.run(
        *allocate, "bash", "-c", f"{script} 2>&1", cwd=REPOSITORY, env=cluster.env() | ENV, timeout_s=300
    )
    assert said.count("unknown key train.no_such_key") == said.count("ended: 2") == len(attached), said


@pytest.mark.nightly
def test_what_a_dry_run_prints_is_on_the_page(cluster, tmp_path):
    (line,) = [line for line in commands("retool") if "--dry-run" in line]
    runs = tmp_path / "runs"
    said = cluster.run(RETOOL, *line[1:], f"runs_dir={runs}", env=ENV, timeout_s=300)
    shown = [text.replace(f" runs_dir={runs}", "") for text in said.splitlines()]
    assert with_paths_of_the_page("\n".join(shown), runs) == output("retool submit")


@pytest.mark.nightly
def test_what_prepare_and_a_queue_print_is_on_the_page(cluster, tmp_path):
    (line,) = [line for line in commands("retool") if line[1] == "prepare"]
    said = cluster.run(RETOOL, *line[1:], f"runs_dir={tmp_path / 'runs'}", env=ENV, timeout_s=300)
    assert with_paths_of_the_page(said, tmp_path / "runs") == output("retool prepare")
    assert cluster.run("sinfo").splitlines() == output("sinfo")
    assert cluster.run("squeue").splitlines() == output("squeue")[:1]


@pytest.mark.nightly
def test_a_sweep_of_jobs_submits_each_run(cluster, tmp_path):
    (line,) = [line for line in commands("launch/sweep.sh") if "=" in line[0]]
    name, _, value = line[0].partition("=")
    env = cluster.env() | ENV | {name: f"{value.replace('retool', RETOOL)} --dry-run"}
    done = subprocess.run(line[1:], env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sbatch --parsable") == done.stdout.count("== sweep: ") == 3
    assert "complete" not in done.stdout.splitlines()[-1], "none of them has begun"


@pytest.mark.nightly
def test_the_doctor_looks_at_an_allocation_from_a_login_node(cluster, tmp_path):
    """This machine does not know the nodes' names, as many login nodes do not."""
    allocate = allocation()
    words = [RETOOL, "doctor", "parallel=cpu-2nodes", f"runs_dir={tmp_path}"]
    said = cluster.run(*allocate, *words, env=ENV | {"RETOOL_INTERFACE": "eth0"}, timeout_s=500)
    assert "nodes: n1, n2: " in said and "checks, all fine" in said, said
    assert "nccl_check: all nodes together: " in said and "interface " in said, said
