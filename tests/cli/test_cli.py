import re
import subprocess
import sys

import pytest
import yaml
from omegaconf import OmegaConf

from retool_mcore.cli import dry_run, main
from retool_mcore.config import compose, keys, models
from retool_mcore.errors import UserError
from retool_mcore.runner import launch

pytestmark = pytest.mark.usefixtures("one_start_of_each_sandbox")

STAGES = ["prepare", "sft", "rl", "eval", "export", "doctor"]


@pytest.mark.parametrize("stage", [*STAGES, "summary", "submit", "status", "simulate"])
def test_help_explains_and_gives_two_examples(stage, capsys):
    assert main.main([stage, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.partition("Examples:")[2].count(f"retool {stage}") >= 2


@pytest.mark.parametrize("stage", ["prepare", "sft", "rl", "eval", "export"])
def test_help_lists_the_keys_of_the_stage(stage, capsys):
    assert main.main([stage, "--help"]) == 0
    groups, _, listed = capsys.readouterr().out.partition("Keys")
    kind = models.STAGES[stage]
    for key, _, why in keys.fields(kind):
        if key.split(".")[0] not in kind.groups and not key.endswith("*"):
            assert f"  {key}" in listed and why.split()[0].rstrip(".") in listed, key
    assert "name=default" in listed and all(f"{group}={preset}" in groups for group, preset in kind.groups.items())


@pytest.mark.parametrize("stage", STAGES)
def test_dry_run_prints_the_configuration_and_the_command(stage, capsys, tmp_path):
    option = "--dry-run" if stage == "doctor" else "--full"
    assert main.main([stage, f"runs_dir={tmp_path}/runs", "name=x", option]) == 0
    out = capsys.readouterr().out
    config = yaml.safe_load(out)
    assert config["run_dir"] == f"{tmp_path}/runs/x"
    assert "${" not in out
    command = out.splitlines()[-1]
    assert command.startswith("# command: ")
    if stage not in ("prepare", "doctor"):
        assert f"-m retool_mcore.train.{stage} {tmp_path}/runs/x/{stage}/" in command
    assert not (tmp_path / "runs").exists()


def test_dry_run_of_the_large_policy(capsys):
    assert main.main(["rl", "model=qwen2.5-32b", "parallel=2x8-80g", "data=math", "recipe=dapo", "--full"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["verl"]["actor_rollout_ref"]["model"]["path"]
    assert config["recipe"]["filters"]["all_equal"] is True


def test_a_dry_run_is_short_and_has_the_checks_verdict(capsys, tmp_path):
    assert main.main(["rl", f"runs_dir={tmp_path}/runs", "name=x", "recipe=dapo", "--dry-run"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert 10 <= len(out) <= 18 and out[0] == f"rl: would write to {tmp_path}/runs/x/rl"
    assert out[-1].startswith("  checks    refused: ") and "rl_train.parquet does not exist" in out[-1]
    (recipe,) = [line for line in out if line.startswith("  recipe ")]
    assert recipe == "  recipe    dapo, paper arXiv 2503.14476, pipeline sync, correction decoupled_token_is"
    assert any(line.startswith("  model     tiny, path ") for line in out)
    assert not (tmp_path / "runs").exists()
    assert main.main(["prepare", f"runs_dir={tmp_path}/runs", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "  checks    passed: it can start"


def test_the_planners_verdict_is_in_a_dry_run(capsys):
    words = ["data=math", "model=qwen2.5-7b"]
    assert main.main(["rl", *words, "parallel=2gpu", "parallel.gpu_memory_utilization=0.3", "--dry-run"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  plan ")]
    assert re.search(r"fits 1 x 2 H200-141, \d+ of 140 GiB .* s a step \(generation ", said[0]), said
    assert "a checkpoint every" in said[1] and "GPU-hours" in said[1]
    assert "parallel.gpu_memory_utilization=" in said[2] and len(said) == 3
    small = [*words, "parallel=2gpu", "parallel.gpu=H100-80"]
    assert re.search(
        "does not fit: .* GiB",
        next(dry_run.plan(compose("sft", [*small, "parallel.tp=1", "parallel.sequence_parallel=false"]))),
    )
    (said,) = dry_run.plan(compose("rl", [*words, "parallel=2x8-80g"]))
    assert "none: parallel.tp=8 does not divide the model's 28 attention heads" in said
    assert "not known" in next(dry_run.plan(compose("rl")))


def test_what_a_resume_would_ignore_is_said(tmp_path, monkeypatch):
    given = [f"runs_dir={tmp_path}", "name=x"]
    assert launch.kept_values("rl", compose("rl", given)) == ""
    (tmp_path / "x" / "rl").mkdir(parents=True)
    (tmp_path / "x" / "rl" / "config.yaml").write_text(OmegaConf.to_yaml(compose("rl", given)))
    assert launch.kept_values("rl", compose("rl", given)) == ""  # no checkpoint yet: it begins anew
    monkeypatch.setattr(launch.checkpoints, "latest", lambda folder: folder / "global_step_20")
    said = launch.kept_values("rl", compose("rl", [*given, "train.lr=0.001", "train.steps=50"]))
    assert said == "from step 20, with that checkpoint's schedule; train.lr=0.001 has no effect, 0.00025 goes on"
    old = compose("rl", given)
    del old.parallel.megatron.dist_ckpt_optim_fully_reshardable  # of a release before there was one
    (tmp_path / "x" / "rl" / "config.yaml").write_text(OmegaConf.to_yaml(old))
    with pytest.raises(UserError, match=f"was saved with {launch.FORMAT}=false: add this"):
        launch.kept_values("rl", compose("rl", given))
    assert launch.kept_values("rl", compose("rl", [*given, f"{launch.FORMAT}=false"]))
    experts = [*given, "model=qwen3-30b-a3b", "parallel=2x8-80g"]
    (tmp_path / "x" / "rl" / "config.yaml").write_text(OmegaConf.to_yaml(compose("rl", [*experts, "parallel.ep=8"])))
    assert launch.kept_values("rl", compose("rl", [*experts, "parallel.ep=4"]))
    with pytest.raises(UserError, match="was saved with parallel.ep=8: add this"):
        launch.kept_values("rl", compose("rl", [*experts, "parallel.ep=1"]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["view", "runs/x", "--port", "99999"], "'--port': Input should be less than or equal to 65535"),
        (["sandbox", "serve", "--port", "99999"], "'--port': Input should be less than or equal to 65535"),
        (["rll"], "Did you mean 'rl'"),
        (["rl", "--dryrun"], "--dry-run"),
        (["rl", "train.bach=3"], "unknown key train.bach; the nearest valid key is train.batch."),
        (["rl", "recipe=grpoo"], "choose one of:"),
        (["rl", "x"], "cannot read the override"),
        (["summary"], "RUN"),
        (["summary", "/nowhere"], "no run in /nowhere"),
        (["sft", "data.sft_train_files=/nowhere/x.parquet", "runs_dir=/nowhere"], "/nowhere/x.parquet"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, words, capsys):
    assert main.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("retool: ") and words in captured.err
    assert captured.err.count("\n") == 1


def test_without_arguments_it_helps(capsys):
    assert main.main([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["rl", "--full"], ["prepare", "--dry-run", "name=x"]], ids=" ".join)
def test_a_dry_run_imports_no_framework(words, tmp_path):
    program = (
        f"import sys; from retool_mcore.cli import main; main.main({words}); "
        "sys.exit(' '.join({'torch', 'ray', 'verl', 'vllm', 'transformers', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
