"""The scripts under launch/, with stand-ins for what they call, and the constraints they install under."""

import hashlib
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from strict_scripts import assert_strict

from benchmarks.cluster.bare_root import instructions
from retool_mcore.cli.main import main

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = [*sorted((REPOSITORY / "launch").glob("*.sh")), REPOSITORY / ".ci" / "run"]


def constraints(extra):
    lines = (REPOSITORY / "launch" / f"constraints-{extra}.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert len({canonicalize_name(pin.name) for pin in pins}) == len(pins)
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_constraints_agree_with_the_package(extra):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    pins = constraints(extra)
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras[extra], *extras["trace"], *extras["dev"]]
    for requirement in map(Requirement, wanted):
        if requirement.name == project["name"]:
            continue  # dev takes in another extra of this package
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} but constraints-{extra}.txt has {pin}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_strict(script, tmp_path):
    assert_strict(script, tmp_path)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RETOOL_EXTRA": "tpu"}, "expected cpu or gpu"),
        ({"RETOOL_EXTRA": "cpu", "RETOOL_PYTHON": "no-such-python"}, "needs Python 3.11"),
        ({"RETOOL_EXTRA": "gpu", "RETOOL_PYTHON": "no-such-python"}, "needs Python 3.12"),
    ],
)
def test_setup_refuses_before_it_makes_anything(tmp_path, environment, words):
    environment = os.environ | environment | {"RETOOL_VENV": str(tmp_path / "venv")}
    done = subprocess.run([REPOSITORY / "launch/setup.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and words in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("programs", "environment", "words"),
    [
        ({}, {}, "needs nvcc of CUDA 13, which is neither in /no/cuda/bin nor in PATH"),
        ({"python3.12": "3.13"}, {}, "needs nvcc of CUDA 13"),
        ({"python3.12": "3.14"}, {}, "needs Python 3.12, or 3.13 by RETOOL_PYTHON=python3.13, but"),
        ({"nvcc": "release 12.8, V12.8.93"}, {}, "is of CUDA 12, and torch here of CUDA 13"),
        ({"nvcc": "release 13.0, V13.0.88", "nvidia-smi": "550.54.15"}, {}, "is 550.54.15, and CUDA 13 needs 580"),
        ({}, {"RETOOL_WHEELHOUSE": "/no/wheels"}, "expected a folder that launch/wheelhouse.sh has filled"),
    ],
)
def test_a_gpu_environment_is_refused_before_anything_is_downloaded(programs, environment, words, tmp_path):
    for name, said in {"python3.12": "3.12", "gcc": "", "g++": "", **programs}.items():
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/bin/sh\necho '{said}'\n")
        stub.chmod(0o755)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    environment = {"RETOOL_EXTRA": "gpu", "CUDA_HOME": "/no/cuda", "PATH": path} | environment
    environment |= {"RETOOL_VENV": str(tmp_path / "venv"), "RETOOL_PYTHON": "python3.12"}
    done = subprocess.run([REPOSITORY / "launch/setup.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and words in done.stderr, done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_wheelhouse_that_was_damaged_is_refused(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    text = b"".join((REPOSITORY / name).read_bytes() for name in ("pyproject.toml", "launch/lock-cpu.txt"))
    (wheels / "OF").write_text(hashlib.sha256(text).hexdigest() + "\n")
    (wheels / "torch.whl").write_text("half")
    (wheels / "SHA256SUMS").write_text(f"{hashlib.sha256(b'whole').hexdigest()}  torch.whl\n")
    environment = os.environ | {"RETOOL_EXTRA": "cpu", "RETOOL_WHEELHOUSE": str(wheels)}
    environment |= {"RETOOL_VENV": str(tmp_path / "venv")}
    done = subprocess.run([REPOSITORY / "launch/setup.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "torch.whl: FAILED" in done.stdout and "copy them again" in done.stderr


def test_the_images_are_built_by_the_set_up_script():
    """Every stage of docker/Dockerfile: setup.sh for its kind, no root at the end, `retool` as its entry."""
    text = (REPOSITORY / "docker/Dockerfile").read_text()
    for stage in ("cpu", "gpu"):
        found = list(instructions(text, stage))
        assert any(word == "ENV" and f"RETOOL_EXTRA={stage} " in rest for word, rest in found)
        assert any(word == "RUN" and "launch/setup.sh" in rest for word, rest in found)
        assert [rest for word, rest in found if word in ("USER", "ENTRYPOINT")] == ["1000", '["retool"]']
    with pytest.raises(ValueError, match="no stage tpu"):
        list(instructions(text, "tpu"))


@pytest.fixture
def checkout(tmp_path):
    """The scripts in a folder of their own; what they start only writes down how it was called."""
    shutil.copytree(REPOSITORY / "launch", tmp_path / "launch")
    for name in ("launch/setup.sh", *(f".venv/bin/{name}" for name in ("retool", "python", "ruff"))):
        stub = tmp_path / name
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(
            f'#!/bin/bash\necho "{stub.name} $*" >>"{tmp_path}/calls"\n[[ "$*" != *$FAIL* ]] || exit $STATUS\n'
        )
        stub.chmod(0o755)
    return tmp_path


def call(checkout, script, *arguments, fail="no call at all", status=1):
    """(exit code, lines of calls) of a script of which the call that contains `fail` ends with `status`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RETOOL_")}
    environment |= {"FAIL": fail, "STATUS": str(status)}
    done = subprocess.run([checkout / script, *arguments], env=environment, capture_output=True, text=True)
    calls = (checkout / "calls").read_text().splitlines()
    (checkout / "calls").unlink()
    # These run beside the others: whether they are called before or after one is chance.
    beside = [line for line in calls if line == "python -m mypy"]
    return done.returncode, [*beside, *(line for line in calls if "runner.template" not in line and line not in beside)]


def test_quickstart_runs_every_stage_in_order(checkout):
    code, calls = call(checkout, "launch/quickstart.sh", "seed=2")
    stages = ["prepare", "eval policy=init", "sft", "eval policy=sft", "rl", "eval policy=rl", "export policy=rl"]
    expected = [f"retool {stage} name=quickstart seed=2" for stage in stages]
    told = ["retool summary runs/quickstart", "retool figures runs/quickstart"]
    assert (code, calls) == (0, ["setup.sh ", *expected, *told])
    for line in told:  # the real commands know what they are given
        assert main([*line.split()[1:], "--help"]) == 0


def test_quickstart_text_only_and_renamed(checkout):
    _, calls = call(checkout, "launch/quickstart.sh", "--text-only", "runs_dir=/r")
    assert calls[1] == "retool prepare name=quickstart-text rollout.format=none runs_dir=/r"
    assert calls[-2:] == ["retool summary /r/quickstart-text", "retool figures /r/quickstart-text"]
    _, calls = call(checkout, "launch/quickstart.sh", "name=mine")
    assert calls[-1] == "retool figures runs/mine"


def test_quickstart_stops_at_the_first_stage_that_fails(checkout):
    code, calls = call(checkout, "launch/quickstart.sh", fail="sft name", status=2)
    assert code == 2 and calls[-1].startswith("retool sft")


def test_tests_run_in_parts(checkout):
    by_file = " -n 3 --dist loadfile --max-worker-restart 0"
    checks = ["ruff check --quiet .", "ruff format --check --quiet ."]
    fast, e2e, cluster = (
        f"python -m pytest {folder} -m {marker} and not gpu{workers}"
        for folder, marker, workers in (
            ("tests", "not e2e and not nightly and not hostile and not cluster and not rehearsal", by_file),
            ("tests", "e2e and not nightly and not cluster", " -n 2 --dist load --maxschedchunk 1"),
            ("tests/cluster", "cluster and not nightly", " -n 3 --dist loadfile"),
        )
    )
    code, calls = call(checkout, "launch/test.sh")
    assert (code, calls) == (0, ["python -m mypy", "setup.sh ", *checks, fast, e2e])
    assert call(checkout, "launch/test.sh", "fast", "-k", "mask") == (
        0,
        ["python -m mypy", "setup.sh ", *checks, f"{fast} -k mask"],
    )
    assert call(checkout, "launch/test.sh", "e2e") == (0, ["setup.sh ", *checks, e2e])
    assert call(checkout, "launch/test.sh", "cluster") == (0, ["setup.sh ", *checks, cluster])


def test_a_failing_part_fails_the_whole(checkout):
    assert call(checkout, "launch/test.sh", fail="not e2e", status=1)[0] == 1
    # pytest's 5: nothing collected. Fine where a selection leaves one part empty, a mistake otherwise.
    assert call(checkout, "launch/test.sh", fail="-m e2e", status=5)[0] == 5
    assert call(checkout, "launch/test.sh", "-k", "mask", fail="-m e2e", status=5)[0] == 0


def test_a_sweep_runs_every_combination_in_a_folder_of_its_own(checkout):
    words = ["launch/sweep.sh", "sft", "rl", "name=s", "data=math", "over", "recipe=retool,dapo", "train.lr=1e-6"]
    code, calls = call(checkout, *words)
    folders = {"retool": "s-recipe_retool-lr_1e-6", "dapo": "s-recipe_dapo-lr_1e-6"}
    expected = [
        f"retool {stage} name={folder} data=math recipe={recipe} train.lr=1e-6"
        for recipe, folder in folders.items()
        for stage in ("sft", "rl")
    ]
    assert (code, calls) == (0, expected)
    # One that fails ends neither the sweep nor passes for complete; Ctrl-C ends it.
    code, calls = call(checkout, *words, fail="sft name=s-recipe_retool", status=1)
    assert (code, calls) == (1, [expected[0], *expected[2:]])
    code, calls = call(checkout, *words, fail="sft", status=130)
    assert (code, calls) == (130, expected[:1])


@pytest.mark.parametrize("words", [["rl", "name=s"], ["over", "seed=1"], ["rl", "over", "seed"]])
def test_a_sweep_over_nothing_is_refused(checkout, words):
    done = subprocess.run([checkout / "launch/sweep.sh", *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("usage: ") and not (checkout / "calls").exists()
