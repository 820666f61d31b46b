"""`retool submit`: what it hands to sbatch. Slurm's own commands are stand-ins that write down how they were called."""

import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from retool_mcore.cli import main
from retool_mcore.cluster import submit
from retool_mcore.cluster.site import load_site
from retool_mcore.cluster.submit import ROOT, read_jobs, record
from retool_mcore.config import compose

BIG = ["model=qwen2.5-32b", "parallel=2x8-80g", "data=math", "model.path=/shared/m"]
SBATCH = """\
printf '%s\\0' "$RETOOL_ROOT" "$RETOOL_SITE" "$SBATCH_EXPORT" "$@" >>{folder}/calls; printf '\\n' >>{folder}/calls
[[ ! -f {folder}/refusal ]] || {{ cat {folder}/refusal >&2; exit 1; }}
echo "$((40 + $(wc -l <{folder}/calls)));cluster"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder with sbatch, squeue and sacct in PATH: `calls` is what sbatch got, `queue` what squeue answers."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "queue").touch()
    programs = {"sbatch": SBATCH.format(folder=shlex.quote(str(folder))), "sacct": "exit 1"}
    programs["squeue"] = f"cat {shlex.quote(str(folder / 'queue'))}"
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("RETOOL_SITE", "RETOOL_ROOT", "SBATCH_EXPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submit.inputs_there, "check", lambda *_: "")  # test_inputs_there.py
    return folder


def calls(slurm):
    """(environment that the script needs, flags, script, its arguments) of each call of sbatch."""
    found = []
    for line in (slurm / "calls").read_text().splitlines():
        words = line.split("\0")[:-1]
        script = next(n for n, word in enumerate(words) if word.endswith(".sbatch"))
        found.append((words[:3], words[3:script], Path(words[script]), words[script + 1 :]))
    return found


def test_a_chain_waits_stage_for_stage(slurm, tmp_path, capsys):
    assert main.main(["submit", "sft", "rl", "eval", "export", "name=r", *BIG]) == 0
    run = tmp_path / "runs" / "r"
    sft, rl, evaluation, export = calls(slurm)
    assert export[2] == ROOT / "slurm" / "export.sbatch" and export[2].is_file()
    assert {"--nodes=2", "--gpus-per-node=8", "--dependency=afterok:43"} <= set(export[1])
    assert sft[0] == [str(ROOT), "default", "ALL"]
    assert sft[1] == ["--parsable", f"--output={run}/slurm/%j-sft.out", "--mem=0", "--nodes=2", "--gpus-per-node=8"]
    assert sft[2] == ROOT / "slurm" / "sft.sbatch" and sft[2].is_file()
    assert sft[3] == ["name=r", *BIG]
    assert rl[1][-2:] == ["--dependency=afterok:41", "--kill-on-invalid-dep=yes"]
    assert "--nodes=1" in evaluation[1] and "--dependency=afterok:42" in evaluation[1]
    assert (run / "slurm").is_dir()  # Slurm drops the output of a job whose folder is missing
    out = [line for line in capsys.readouterr().out.splitlines() if "time is null" not in line]
    assert out[1] == f"rl: job 42, after job 41, log: {run}/slurm/42-rl.out"
    assert out[4] == f"to watch it: retool status {run}"
    jobs = [(job["job"], job["stage"], job["folder"], job["after"]) for job in read_jobs(run)]
    assert jobs == [
        ("41", "sft", "sft", None),
        ("42", "rl", "rl", "41"),
        ("43", "eval", "eval/rl", "42"),
        ("44", "export", "export", "43"),
    ]


def test_each_stage_gets_the_overrides_that_it_has(slurm):
    assert main.main(["submit", "sft", "rl", "name=r", "recipe=dapo", "train.lr=1e-6", *BIG]) == 0
    sft, rl = calls(slurm)
    assert sft[3] == ["name=r", "train.lr=1e-6", *BIG] and rl[3] == ["name=r", "recipe=dapo", "train.lr=1e-6", *BIG]


def test_the_sites_limits_become_flags(slurm):
    assert main.main(["submit", "rl", "--site", "example-apptainer", *BIG]) == 0
    ((environment, flags, _, _),) = calls(slurm)
    assert environment[1] == "example-apptainer"
    assert {"--partition=gpu", "--account=my-project", "--qos=normal", "--time=2-00:00:00"} <= set(flags)


def test_where_slurm_counts_no_gpus_none_are_asked_for(slurm, tmp_path, monkeypatch):
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "plain.yaml").write_text("venv: .venv\ngpu_gres: false\nflags:\n  - --constraint=h100\n")
    monkeypatch.setattr(submit, "load_site", partial(load_site, folder=tmp_path / "sites"))
    assert main.main(["submit", "sft", "--site=plain", "name=r", *BIG]) == 0
    ((_, flags, script, arguments),) = calls(slurm)
    assert "--constraint=h100" in flags and "--mem=0" not in flags
    assert not any("gpus" in flag for flag in flags) and arguments == ["name=r", *BIG]
    ours = (ROOT / "slurm" / "sft.sbatch").read_text()
    assert "#SBATCH --gpus-per-node=8\n" in ours
    assert script.read_text() == ours.replace("#SBATCH --gpus-per-node=8\n", "")


def test_the_memory_that_a_node_needs_is_asked_for_where_the_site_asks_for_none(slurm, capsys):
    fewer = "parallel.megatron.optimizer_offload=false"  # the optimizer's copies, and with them most of it
    for words in (BIG, [*BIG, fewer]):
        assert main.main(["submit", "rl", "--site", "example-apptainer", *words]) == 0
    asked = [[flag for flag in flags if flag.startswith("--mem")] for _, flags, _, _ in calls(slurm)]
    (all_of_it,), (less,) = ([int(flag.removeprefix("--mem=").removesuffix("G")) for flag in own] for own in asked)
    capsys.readouterr()
    assert main.main(["plan", *BIG]) == 0
    needed = int(re.search(r"A node's memory: ([\d,]+) GiB", capsys.readouterr().out)[1].replace(",", ""))
    assert needed < all_of_it < 1.1 * needed and less < all_of_it - 300
    # The default site asks for all that a node has, and an evaluation's need is not known.
    assert main.main(["submit", "rl", *BIG]) == main.main(["submit", "eval", "--site", "example-apptainer", *BIG]) == 0
    whole, evaluation = ([flag for flag in flags if flag.startswith("--mem")] for _, flags, _, _ in calls(slurm)[-2:])
    assert (whole, evaluation) == (["--mem=0"], [])


def test_a_run_on_cpu_asks_for_no_gpu(slurm):
    assert main.main(["submit", "rl"]) == 0
    assert calls(slurm)[0][1][-2:] == ["--nodes=1", "--gpus-per-node=0"]


def test_a_layout_that_nobody_chose_takes_the_sites_nodes(slurm):
    assert main.main(["submit", "rl", "eval", "--site", "example-pyxis"]) == 0
    rl, evaluation = calls(slurm)
    assert {"--nodes=2", "--gpus-per-node=8"} <= set(rl[1]) and rl[3] == []
    assert "--nodes=1" in evaluation[1]


def test_rollout_nodes_are_asked_for_beside_the_trainers(slurm, capsys):
    words = ["submit", "rl", "name=r", *BIG, "pipeline=async", "pipeline.rollout_nodes=3", "train.eval_every=-1"]
    assert main.main([*words, "--dry-run"]) == 0
    assert "# nodes: 2 + 3 for rollouts, GPUs on each: 8, device: cuda" in capsys.readouterr().out.splitlines()
    assert main.main(words) == 0
    assert "--nodes=5" in calls(slurm)[0][1]
    # A site's nodes are all there are: the trainer has what the engines leave.
    assert main.main(["submit", "rl", "name=r", "pipeline=async", "--site", "example-pyxis"]) == 0
    assert "--nodes=2" in calls(slurm)[-1][1]


def test_dry_run_shows_the_commands_and_does_nothing(slurm, tmp_path, capsys):
    assert main.main(["submit", "sft", "rl", "name=r", *BIG, "--dry-run"]) == 0
    out = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line) for line in out if not line.startswith("#")]
    assert [command[3] for command in commands] == ["sbatch", "sbatch"]
    assert commands[0][:3] == [f"RETOOL_ROOT={ROOT}", "RETOOL_SITE=default", "SBATCH_EXPORT=ALL"]
    assert "--dependency=afterok:JOBID_OF_SFT" in commands[1]
    assert "# nodes: 2, GPUs on each: 8, device: cuda" in out
    policies = [line for line in out if line.startswith("# policy:")]
    assert policies[0] == "# policy: /shared/m, TP 8 x PP 2"
    assert policies[1] == f"# policy: {tmp_path}/runs/r/sft/policy, TP 8 x PP 2, rollout TP 8"
    (long,) = (line for line in out if line.startswith("# takes: 7.9 days"))
    assert "4,439 s a step: 9 jobs of a day each" in long
    assert "# memory: 443 GiB of each node" in out and "# disk: 1,835 GB, 3 checkpoints of 459" in "\n".join(out)
    assert out[-1].startswith("# disk of sft and rl one after the other: 3,211 GB")
    assert sum("so the limit is the DefaultTime of the partition" in line for line in out) == 2
    assert not (slurm / "calls").exists() and not (tmp_path / "runs").exists()
    assert main.main(["submit", "sft", "rl", "name=r", *BIG]) == 0
    assert calls(slurm)[0][1] == [w for w in commands[0] if w.startswith("--")]


def test_a_dry_run_shows_what_would_wait_for_a_stage_that_is_not_submitted_yet(slurm, capsys):
    assert main.main(["submit", "rl", "name=r", "--after", "sft", "--dry-run"]) == 0
    assert "--dependency=afterok:JOBID_OF_SFT" in capsys.readouterr().out


def test_after_finds_the_newest_job_that_lives(slurm, tmp_path):
    for _ in range(3):
        assert main.main(["submit", "sft", "name=r"]) == 0
    (slurm / "queue").write_text("41|RUNNING|None\n42|PENDING|Priority\n43|CANCELLED|None\n")
    assert main.main(["submit", "rl", "name=r", "--after", "sft"]) == 0
    assert "--dependency=afterok:42" in calls(slurm)[-1][1]
    assert main.main(["submit", "rl", "name=r", "--after", "41"]) == 0
    assert "--dependency=afterok:41" in calls(slurm)[-1][1]


def test_after_a_stage_that_is_complete_waits_for_nothing(slurm, tmp_path, capsys):
    stage = tmp_path / "runs" / "r" / "sft"
    stage.mkdir(parents=True)
    (stage / "COMPLETE").touch()
    assert main.main(["submit", "rl", "name=r", "--after", "sft"]) == 0
    assert "sft is complete already" in capsys.readouterr().out
    assert not any(flag.startswith("--dependency") for flag in calls(slurm)[0][1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sft", "foo"], "there is no job 'foo': submit one or more of sft, rl, eval, export, tensorboard"),
        (["name=r"], "which stage?"),
        (["rl", "rl"], "once in a chain"),
        (["rl", "tensorboard"], "tensorboard runs until it is cancelled"),
        (["rl", "train.bach=2"], "rl: unknown key train.bach; the nearest valid key is train.batch."),
        (["sft", "eval", "train.n=2"], "sft: unknown key train.n"),
        (
            ["rl", "parallel=1gpu", "--site", "example-pyxis"],
            "parallel.nodes=1, but the site example-pyxis gives nodes: 2",
        ),
        (
            ["rl", *BIG, "pipeline=async", "pipeline.rollout_gpus=16", "train.eval_every=-1"],
            "parallel.gpus_per_node=8: lower it, or",
        ),
        (["rl", "--site", "nowhere"], "no site 'nowhere'"),
        (["rl", "name=r", "--after", "sft"], "is queued or running: submit it first"),
        (["rl", "--after", "77"], "Slurm knows no job 77"),
        (["rl", "--after", "prepare"], "--after prepare: give a job's number or one of sft, rl, eval, export."),
    ],
)
def test_wrong_input_is_one_sentence_and_nothing_is_submitted(words, message, slurm, capsys):
    assert main.main(["submit", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (slurm / "calls").exists()


def test_a_refusal_of_slurm_is_passed_on(slurm, tmp_path, capsys):
    (slurm / "refusal").write_text("sbatch: error: invalid partition\nspecified: gpu\n")
    assert main.main(["submit", "sft", "rl", "name=r"]) == 2
    assert "sft: sbatch refused: sbatch: error: invalid partition specified: gpu." in capsys.readouterr().err
    assert len(calls(slurm)) == 1 and read_jobs(tmp_path / "runs" / "r") == []


def test_without_sbatch_it_says_so(slurm, monkeypatch, capsys):
    (slurm / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(slurm))
    assert main.main(["submit", "rl"]) == 2
    assert "sbatch is not here" in capsys.readouterr().err


def test_tensorboard_is_submitted_over_the_run(slurm, tmp_path):
    assert main.main(["submit", "tensorboard", "name=r"]) == 0
    ((_, flags, script, arguments),) = calls(slurm)
    assert script.name == "tensorboard.sbatch" and arguments == [f"{tmp_path}/runs/r"]
    assert not any(flag.startswith("--gpus") for flag in flags)


def test_a_job_is_recorded_once_and_half_lines_do_not_count(tmp_path):
    config = compose("eval", [f"runs_dir={tmp_path}", "name=r", "policy=sft"])
    for _ in range(2):
        record("eval", config, "7", "slurm-7.out")
    path = tmp_path / "r" / "slurm" / "jobs.jsonl"
    path.write_text(path.read_text() + '{"job": "8", "sta')
    assert [(job["job"], job["folder"]) for job in read_jobs(tmp_path / "r")] == [("7", "eval/sft")]
    assert len(path.read_text().splitlines()) == 2 and json.loads(path.read_text().splitlines()[0])["log"]
