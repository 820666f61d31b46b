"""The line that says what a stage listens on is of its layout, and says what has no protection."""

import pytest
from omegaconf import OmegaConf

from retool_mcore.preflight import listeners


@pytest.mark.parametrize(
    ("stage", "nodes", "env", "sentence"),
    [
        ("rl", 1, {}, "listens: on loopback; on all addresses torch's store (no protection) (docs/security.md)"),
        ("rl", 1, {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}, "on all addresses Ray (the job's token)"),
        ("rl", 1, {"RAY_ADDRESS": "a:1"}, "on all addresses Ray (the job's token)"),
        ("rl", 2, {}, "on the node's address Gloo and NCCL (no protection)"),
        ("sft", 2, {}, "listens: on the node's address Gloo and NCCL (no protection); on all addresses torch's store"),
    ],
)
def test_what_listens_where(monkeypatch, stage, nodes, env, sentence):
    for name in ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    line = listeners.line(stage, OmegaConf.create({"parallel": {"nodes": nodes}}))
    assert sentence in line and "torch's store (no protection)" in line
    assert line.endswith("nobody else may reach the nodes' network (docs/security.md)") is (nodes > 1 or bool(env))


def test_a_stage_that_opens_nothing_says_nothing():
    assert listeners.line("export", OmegaConf.create({"parallel": {"nodes": 1}})) is None
