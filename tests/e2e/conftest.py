"""One small cold-started run that the end-to-end tests start from."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_runs import RESUMABLE, succeed

from retool_mcore.backends.env import stage_env
from retool_mcore.runner import template


@pytest.fixture(scope="session")
def cold_started(tmp_path_factory) -> Path:
    """A runs folder whose run `t` is prepared and cold-started under TP=2, text format."""
    runs = tmp_path_factory.mktemp("runs")
    succeed("prepare", runs)
    succeed("sft", runs)
    return runs


@pytest.fixture(scope="session")
def trained(cold_started, tmp_path_factory) -> Path:
    """A runs folder whose run `t` went on to the end of RL, RESUMABLE and undisturbed, in the layout of the cold start.
    Tests may add evaluations and exports to it, and change nothing else."""
    runs = tmp_path_factory.mktemp("trained") / "runs"
    shutil.copytree(cold_started, runs, symlinks=True)
    succeed("rl", runs, *RESUMABLE)
    return runs


@pytest.fixture
def fork_of_cold_start(cold_started, tmp_path) -> Path:
    """A copy of `cold_started` to train on, which itself stays as it is: other tests start from it in any order."""
    shutil.copytree(cold_started, tmp_path / "runs", symlinks=True)
    return tmp_path / "runs"


@pytest.fixture(scope="session", autouse=True)
def shared_template() -> Iterator[dict[str, str]]:
    """One template that the processes of all stages are forked from, those of the shared runs above too; its variables,
    which are in the environment meanwhile."""
    given = {name: value for name, value in stage_env({"parallel": {"device": "cpu"}}).items() if "RETOOL" not in name}
    with template.forked(given, []) as (env, _), pytest.MonkeyPatch.context() as patch:
        named = {name: env[name] for name in template.VARIABLES}
        for name, value in named.items():
            patch.setenv(name, value)
        yield named


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, shared_template):
    for name in [n for n in os.environ if n.startswith(("RETOOL_", "VERL_", "TENSORBOARD_"))]:
        if name not in shared_template:
            monkeypatch.delenv(name)
