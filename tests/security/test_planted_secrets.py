"""What stands in the environment stands in no file and on no screen."""

import os

import yaml
from omegaconf import OmegaConf

from retool_mcore.cli import main
from retool_mcore.config import compose, config_hash, keep_environment
from retool_mcore.runner.launch import _write_config

SECRET = "planted-secret-value"
MCP = (
    "toolbox.use=[{path: retool_mcore.tools.mcp_client.McpServer, "
    "args: {command: x, env: {KEY: '${oc.env:PLANTED}', DIR: '${runs_dir}'}}}]"
)


def test_no_file_and_no_dry_run_holds_what_a_configuration_takes_from_the_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PLANTED", SECRET)
    overrides = ["toolbox=code", MCP, f"runs_dir={tmp_path}", "data=arithmetic", "rollout.format=hermes"]
    config = compose("eval", [*overrides, "policy=sft"])
    given = config.toolbox.use[0].args.env
    assert dict(given) == {"KEY": SECRET, "DIR": str(tmp_path)}, "the stage itself reads it"
    assert OmegaConf.to_container(config.toolbox, resolve=True)["use"][0]["args"]["env"]["KEY"] == SECRET
    _write_config(tmp_path, config, 1)
    monkeypatch.setenv("RETOOL_UMASK", f"{(before := os.umask(0o077)):03o}")  # which the command sets, for other tests
    os.umask(before)
    assert main.main(["eval", "--dry-run", "--full", *overrides, "policy=sft"]) == 0
    # What RL's workers are built from, which is written to a file with all else worked out.
    episode = OmegaConf.create({"toolbox": keep_environment(OmegaConf.to_container(config.toolbox))})
    (tmp_path / "episode.yaml").write_text(OmegaConf.to_yaml(episode, resolve=True))
    read = OmegaConf.create(yaml.safe_load((tmp_path / "episode.yaml").read_text()))
    assert read.toolbox.use[0].args.env.KEY == SECRET
    assert OmegaConf.load(tmp_path / "config.yaml").toolbox.use[0].args.env.KEY == SECRET
    texts = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    texts["screen"] = "".join(capsys.readouterr())
    assert len(texts) == 3 and not [name for name, text in texts.items() if SECRET in text]
    assert all("${oc.env:PLANTED}" in text for text in texts.values())
    before = config_hash(config)
    monkeypatch.setenv("PLANTED", "another")
    assert config_hash(config) == before
