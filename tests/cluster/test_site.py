"""Site files: what Python reads, what the batch scripts read of the same file, and what the scripts then start."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from strict_scripts import assert_strict

from retool_mcore.cluster.site import Container, load_site, site_names, step_command
from retool_mcore.errors import UserError

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = sorted((REPOSITORY / "slurm").glob("*.sbatch"))
FULL = """\
# a comment
partition: gpu  # another
account: "my project"
time: 1-00:00:00
qos: null
nodes: 3
venv: envs/retool
container:
  kind: none
  image: ~
  mounts:
    - /a:/b
    - /c#d
modules:
  - cuda/12.4
env:
  NCCL_DEBUG: WARN
  OPTIONS: --a=b:c && d
  UNSET: null
scratch: '/local/my scratch'
"""


@pytest.fixture
def root(tmp_path):
    """A repository of scripts and site files alone, with a python that says how it was called."""
    shutil.copytree(REPOSITORY / "slurm", tmp_path / "slurm")
    shutil.copytree(REPOSITORY / "configs" / "site", tmp_path / "configs" / "site")
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "activate").write_text("export ACTIVATED=yes\n")
    write_program(bin_folder / "python", 'echo "python: $*; activated: ${ACTIVATED:-no}; in: $PWD"; env')
    return tmp_path


def write_program(path, text):
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def environment(root, **more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "RETOOL", "SBATCH", "NCCL"))}
    kept |= {"SLURM_SUBMIT_DIR": str(root), "SLURM_JOB_ID": "1234567", "SLURMD_NODENAME": "n7"}
    return kept | {"PATH": f"{root / 'bin'}:{os.environ['PATH']}"} | more


def run_script(root, name, *arguments, cwd=None, **more):
    spool = root / "spool"  # as Slurm does, a copy in another folder
    spool.mkdir(exist_ok=True)
    shutil.copy(root / "slurm" / name, spool / "slurm_script")
    command = ["bash", spool / "slurm_script", *arguments]
    return subprocess.run(command, env=environment(root, **more), cwd=cwd or root, capture_output=True, text=True)


def write_site(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.yaml").write_text(text)
    return folder


def test_a_site_is_read_whole(tmp_path):
    site = load_site("mine", write_site(tmp_path, FULL))
    assert (site.partition, site.account, site.time, site.qos) == ("gpu", "my project", "1-00:00:00", None)
    assert (site.nodes, site.gpus_per_node, site.max_attempts) == (3, None, 10)
    assert site.container == Container("none", None, ["/a:/b", "/c#d"])
    assert site.modules == ["cuda/12.4"]
    assert site.env == {"NCCL_DEBUG": "WARN", "OPTIONS": "--a=b:c && d"}
    assert (site.venv, site.scratch) == ("envs/retool", "/local/my scratch")


def bash_reading(file):
    """What slurm/site.sh reads, as the loader gives it."""
    text = (REPOSITORY / "slurm" / "site.sh").read_text()
    function = re.search(r"^read_site\(\) \{.*?^\}", text, re.MULTILINE | re.DOTALL)[0]
    done = subprocess.run(["bash", "-c", f'{function}\nread_site "$0"', file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pairs = [tuple(line.split("\t")) for line in done.stdout.splitlines()]
    single = {key: value for key, value in pairs if key not in ("modules", "container.mounts")}
    lists = {name: [v for key, v in pairs if key == name] for name in ("modules", "container.mounts")}
    return single, lists


@pytest.mark.parametrize("name", ["mine", *site_names()])
def test_bash_reads_what_python_reads(name, tmp_path):
    folder = tmp_path if name == "mine" else REPOSITORY / "configs" / "site"
    if name == "mine":
        write_site(tmp_path, FULL)
    site = load_site(name, folder)
    single, lists = bash_reading(folder / f"{name}.yaml")
    assert lists == {"modules": site.modules, "container.mounts": site.container.mounts}
    assert single.get("venv") == site.venv and single.get("scratch") == site.scratch
    assert single.get("sandbox_image") == site.sandbox_image
    assert single.get("sandbox_command") == site.sandbox_command
    assert single.get("container.kind", "none") == site.container.kind
    assert single.get("container.image") == site.container.image
    assert {key[4:]: value for key, value in single.items() if key.startswith("env.")} == site.env


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("network: token-ring", "no network 'token-ring' in "),
        ("patition: gpu", "there is no key patition: see "),
        ("container:\n  kid: none", "there is no key container.kid"),
        ("container:\n  kind: docker", "it should be 'none', 'pyxis' or 'apptainer'"),
        ("container:\n  kind: pyxis", "needs container.image"),
        ("nodes: two", "nodes is 'two', it should be a valid integer"),
        ("max_attempts: 0", "max_attempts is '0', it should be greater than or equal to 1"),
        ("modules: cuda", "modules is 'cuda', it should be a valid list"),
        ("modules: [cuda]", "one item a line"),
        ("env: {A: b}", "one item a line"),
        ("env:\n  A-B: c", "env.A-B"),
        ("venv: |\n  x", "one line"),
        ("venv: 'a # b'", "free of quotes"),
        ("venv: [", "is not YAML"),
        ("- venv", "`key: value` lines"),
        ("partition: gpu", "venv must name the environment"),
    ],
)
def test_what_is_wrong_in_a_site_is_said(text, words, tmp_path):
    with pytest.raises(UserError, match=re.escape(words)):
        load_site("mine", write_site(tmp_path, text + "\n"))


def test_the_site_is_chosen_by_name_then_by_the_environment(monkeypatch):
    monkeypatch.setenv("RETOOL_SITE", "example-pyxis")
    assert load_site().container.kind == "pyxis"
    assert load_site("default").container.kind == "none"
    monkeypatch.delenv("RETOOL_SITE")
    assert load_site() == load_site("default")
    with pytest.raises(UserError, match="choose one of: default, example-apptainer, example-pyxis"):
        load_site("nowhere")


def test_steps_enter_the_container(monkeypatch):
    for name in ("RETOOL_HOST_SLURM", "PYTHONPATH", "PYTHONSAFEPATH", "NCCL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    assert step_command(load_site("default"), ["-N2"], ["true"]) == ["srun", "-N2", "true"]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    words = step_command(load_site("example-pyxis"), ["-N2"], ["true"])
    image = ["--container-image=/shared/images/retool.sqsh", "--container-name=retool-7"]
    image += [f"--container-workdir={os.getcwd()}", "--container-mounts=/shared:/shared"]
    assert words == ["srun", "-N2", *image, "env", "NCCL_DEBUG=INFO", "true"]
    words = step_command(load_site("example-apptainer"), [], ["true"])
    assert words[:5] == ["srun", "apptainer", "exec", "--nv", "--bind=/shared"]
    assert words[5:] == ["/shared/images/retool.sif", "env", "NCCL_DEBUG=INFO", "true"]


def test_only_a_step_on_the_jobs_own_node_may_ask_slurm(monkeypatch):
    """The folder of slurm/host_slurm.py is on no other node, and a mount of what is not there fails."""
    monkeypatch.setenv("RETOOL_HOST_SLURM", "/tmp/h")
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    for name, mount in (
        ("example-pyxis", "--container-mounts=/shared:/shared,/tmp/h:/tmp/h"),
        ("example-apptainer", "--bind=/tmp/h:/tmp/h"),
    ):
        words = step_command(load_site(name), ["--nodes=1", "--nodelist=n7"], ["true"])
        assert words[0] == "/tmp/h/srun" and mount in words
        assert "/tmp/h:/tmp/h" not in " ".join(step_command(load_site(name), ["--nodes=2"], ["true"]))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_batch_scripts_are_strict(script, tmp_path):
    assert_strict(script, tmp_path)


@pytest.mark.parametrize("stage", ["sft", "rl", "eval"])
def test_a_stage_script_starts_its_job(stage, root, tmp_path):
    done = run_script(root, f"{stage}.sbatch", "name=a b", "x=1", cwd=tmp_path / "slurm")
    assert done.returncode == 0, done.stderr
    # The folder of the caller stays: relative paths in overrides mean the same there as here.
    expected = f"python: -m retool_mcore.cluster.job {stage} name=a b x=1; activated: yes; in: {tmp_path}/slurm"
    assert done.stdout.splitlines()[0] == expected
    header = (root / "slurm" / f"{stage}.sbatch").read_text()
    for directive in ("--signal=B:USR1@600", "--requeue", "--open-mode=append", "--gpus-per-node=8", "--exclusive"):
        assert f"#SBATCH {directive}\n" in header
    assert f"#SBATCH --nodes={1 if stage == 'eval' else 2}\n" in header


@pytest.mark.parametrize("stage", ["sft", "rl", "eval"])
def test_slurms_warning_does_not_end_a_script_whose_python_still_starts(root, stage):
    """It comes within seconds where the time limit is short."""
    write_program(root / ".venv" / "bin" / "python", "kill -USR1 $$; sleep 0.2; echo lives")
    done = run_script(root, f"{stage}.sbatch")
    assert (done.returncode, done.stdout) == (0, "lives\n")


def test_slurms_signal_reaches_python(root):
    heard = "lambda *_: (print('heard', flush=True), sys.exit(75))"
    program = (
        f"import signal, sys, time; signal.signal(signal.SIGUSR1, {heard}); print('ready', flush=True); time.sleep(60)"
    )
    write_program(root / ".venv" / "bin" / "python", f'exec {sys.executable} -c "{program}"')
    command = ["bash", root / "slurm" / "rl.sbatch"]
    with subprocess.Popen(command, env=environment(root), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGUSR1)  # to the batch shell alone, as --signal=B: does
            assert process.wait(timeout=60) == 75
            assert process.stdout.readline() == "heard\n"
        finally:
            process.kill()


def test_a_sites_environment_is_set_where_the_caller_has_set_none(root):
    write_site(root / "configs" / "site", "venv: .venv\nscratch: /s\nenv:\n  NCCL_DEBUG: WARN\n  NCCL_ALGO: Ring x\n")
    done = run_script(root, "rl.sbatch", RETOOL_SITE="mine", NCCL_DEBUG="INFO")
    lines = done.stdout.splitlines()
    assert {"NCCL_DEBUG=INFO", "NCCL_ALGO=Ring x", "TMPDIR=/s"} <= set(lines), done.stderr


NETWORKS = REPOSITORY / "configs" / "site" / "network"


@pytest.mark.parametrize("network", site_names(NETWORKS))
def test_a_networks_variables_are_set_on_both_sides_and_the_sites_own_win(network, root):
    values = yaml.safe_load((NETWORKS / f"{network}.yaml").read_text())
    assert list(values) == ["env"] and "# Source: " in (NETWORKS / f"{network}.yaml").read_text()
    expected = {name: str(value) for name, value in values["env"].items()}
    own, callers, *rest = [*expected, "NCCL_DEBUG"]
    text = f"venv: .venv\nnetwork: {network}\nenv:\n  {own}: mine\n"
    folder = write_site(root / "configs" / "site", text)
    assert load_site("mine", folder).env == expected | {own: "mine"}
    done = run_script(root, "rl.sbatch", RETOOL_SITE="mine", **{callers: "callers"})
    lines = set(done.stdout.splitlines())
    assert {f"{own}=mine", f"{callers}=callers"} <= lines, done.stderr
    assert {f"{name}={expected[name]}" for name in rest if name in expected} <= lines


def test_modules_are_loaded_first(root):
    write_site(root / "configs" / "site", "venv: .venv\nmodules:\n  - cuda/12\n  - gcc\n")
    (root / "module.sh").write_text('module() { echo "module $*" $nobody_set_this; }\n')
    done = run_script(root, "rl.sbatch", RETOOL_SITE="mine", BASH_ENV=str(root / "module.sh"))
    assert done.stdout.splitlines()[:2] == ["module load cuda/12", "module load gcc"], done.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RETOOL_SITE": "nowhere"}, "set RETOOL_SITE to one of: default example-apptainer example-pyxis"),
        ({"RETOOL_VENV": "/nowhere/venv"}, "no environment in /nowhere/venv"),
        ({"RETOOL_ROOT": "/nowhere"}, "/nowhere is not the repository"),
    ],
)
def test_a_batch_script_says_what_is_missing(variables, words, root):
    done = run_script(root, "rl.sbatch", **variables)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_containers_are_entered_by_the_hosts_srun(root):
    (root / "bin").mkdir()
    for name in ("srun", "apptainer"):
        write_program(root / "bin" / name, f'printf "%s|" {name} "$@"; echo; [[ $* != *cluster.job* ]] || exit 75')
    (root / "module.sh").write_text("module() { :; }\n")
    job = ["python3", "-m", "retool_mcore.cluster.job", "rl", "a=b", ""]
    inside = ["env", f"PYTHONPATH={root}", "PYTHONSAFEPATH=1", "NCCL_DEBUG=INFO"]
    more = {"NCCL_DEBUG": "INFO", "PYTHONPATH": ""}
    done = run_script(root, "rl.sbatch", "a=b", RETOOL_SITE="example-pyxis", **more)
    unpack, words, clean = (line.split("|") for line in done.stdout.splitlines())
    enter = ["srun", "--overlap", "--ntasks-per-node=1", "--container-image=/shared/images/retool.sqsh"]
    enter += [f"--container-workdir={root}", "--container-name=retool-1234567"]
    assert unpack == [*enter, "--container-mounts=/shared:/shared", "true", ""]
    assert words[: len(enter)] == enter and words[-10:] == [*inside, *job]
    mounts, *own = words[len(enter) : -10]
    folder = re.fullmatch(r"--container-mounts=/shared:/shared,(/tmp/retool-slurm-\w+):\1", mounts)[1]
    assert own == ["--nodes=1", "--ntasks=1", "--nodelist=n7"] and not Path(folder).exists()
    assert clean == [
        "srun",
        "--overlap",
        "--ntasks-per-node=1",
        "enroot",
        "remove",
        "--force",
        "pyxis_retool-1234567",
        "",
    ]
    assert done.returncode == 75
    more["BASH_ENV"] = str(root / "module.sh")
    done = run_script(root, "rl.sbatch", "a=b", RETOOL_SITE="example-apptainer", **more)
    words = done.stdout.strip().split("|")
    assert words[:4] == ["apptainer", "exec", "--nv", f"--pwd={root}"] and words[-10:] == [*inside, *job]
    assert words[4] == "--bind=/shared" and words[5].startswith("--bind=/tmp/retool-slurm-") and len(words) == 17
    assert done.returncode == 75


def test_an_arrays_index_stands_where_the_words_have_it(root):
    done = run_script(root, "rl.sbatch", "name=s-%a", "seed=%a", SLURM_ARRAY_TASK_ID="3")
    assert done.stdout.startswith("python: -m retool_mcore.cluster.job rl name=s-3 seed=3;")
    assert run_script(root, "rl.sbatch", "name=s-%a").stdout.startswith(
        "python: -m retool_mcore.cluster.job rl name=s-%a;"
    )


def test_a_stage_is_started_in_an_allocation(root):
    (root / "bin").mkdir()
    write_program(root / "bin" / "squeue", 'echo "n[3-4]"')
    write_program(root / "bin" / "scontrol", "echo n3; echo n4")
    # As srun does: on the first node.
    write_program(root / "bin" / "srun", 'printf "%s|" "$@"; echo; while [[ $1 == -* ]]; do shift; done; exec "$@"')
    command = [root / "slurm" / "attach.sh", "rl", "name=a b"]
    done = subprocess.run(command, env=environment(root), cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    step, job, *_ = done.stdout.splitlines()
    flags = ["--jobid=1234567", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--nodelist=n3", "--unbuffered"]
    assert step.split("|")[: len(flags)] == flags, done.stderr
    assert job == f"python: -m retool_mcore.cluster.job rl name=a b; activated: yes; in: {root}"
    for words, env in ((["nothing"], {}), (["rl"], {"SLURM_JOB_ID": ""})):
        done = subprocess.run([command[0], *words], env=environment(root, **env), capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith("usage: ")


def test_tensorboard_prints_the_tunnel(root):
    done = run_script(root, "tensorboard.sbatch", "runs/x", USER="me", SLURM_SUBMIT_HOST="login1")
    lines = done.stdout.splitlines()
    assert lines[1] == "  ssh -N -L 6006:localhost:6573 -J me@login1 me@n7"  # 6006 + 1234567 % 1000
    assert lines[2].startswith("python: -m tensorboard.main --logdir runs/x --host localhost --port 6573;")


def test_a_sandbox_service_that_dies_is_started_again_until_it_is_told_to_go(root):
    (root / "bin").mkdir()
    write_program(root / "bin" / "srun", 'while [[ $1 == -* ]]; do shift; done; exec "$@"')
    write_program(root / "bin" / "sleep", ":")
    python = "echo x >> starts; [[ $(wc -l < starts) == 3 ]] && exit {last}; exit 137"
    for last in (0, 2):
        write_program(root / ".venv" / "bin" / "python", python.format(last=last))
        done = run_script(root, "sandbox.sbatch")
        assert done.returncode == last and done.stdout.count("started again") == 2, done.stderr
        assert (root / "starts").read_text() == "x\n" * 3
        (root / "starts").unlink()


def test_the_sandbox_services(root):
    (root / "bin").mkdir()
    write_program(root / "bin" / "srun", 'printf "%s|" srun "$@"')
    done = run_script(root, "sandbox.sbatch", "--workers", "9", RETOOL_SANDBOX_PORT="81")
    said, command = done.stdout.splitlines()
    assert done.returncode == 0 and said == f"sandbox=pool sandbox.hosts_from={root}/runs/sandbox-hosts", done.stderr
    words = command.split("|")
    assert words[:2] == ["srun", "--ntasks-per-node=1"]
    assert "|sandbox|serve|--host|0.0.0.0|--port|81|--register|runs/sandbox-hosts|--workers|9|" in command
    write_program(root / "bin" / "scontrol", "echo n1; echo n2")
    (root / "module.sh").write_text("module() { :; }\n")
    variables = {
        "RETOOL_SITE": "example-apptainer",
        "BASH_ENV": str(root / "module.sh"),
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    done = run_script(root, "sandbox.sbatch", **variables)
    *urls, command = done.stdout.splitlines()
    assert urls == ["sandbox.url=http://n1:8080/run_code", "sandbox.url=http://n2:8080/run_code"]
    words = command.split("|")
    assert words[:5] == ["srun", "--ntasks-per-node=1", "apptainer", "exec", "--nv"]
    assert words[-5:] == [
        "/shared/images/sandbox-fusion.sif", "bash", "-c", "cd /root/sandbox && make run-online", "",
    ]  # fmt: skip
    assert not any(word.startswith("--bind=") for word in words)
