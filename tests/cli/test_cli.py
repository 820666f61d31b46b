import subprocess
import sys

import pytest
import yaml

from retool_mcore.cli import main

STAGES = ["prepare", "sft", "rl", "eval", "export", "doctor"]


@pytest.mark.parametrize("stage", [*STAGES, "summary", "submit", "status"])
def test_help_explains_and_gives_two_examples(stage, capsys):
    assert main.main([stage, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.partition("Examples:")[2].count(f"retool {stage}") == 2


@pytest.mark.parametrize("stage", STAGES)
def test_dry_run_prints_the_configuration_and_the_command(stage, capsys, tmp_path):
    assert main.main([stage, f"runs_dir={tmp_path}/runs", "name=x", "--dry-run"]) == 0
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
    assert main.main(["rl", "model=qwen2.5-32b", "parallel=2x8-80g", "data=math", "recipe=dapo", "--dry-run"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["verl"]["actor_rollout_ref"]["model"]["path"]
    assert config["recipe"]["filters"]["all_equal"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
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


def test_a_dry_run_imports_no_framework():
    program = (
        "import sys; from retool_mcore.cli import main; main.main(['rl', '--dry-run']); "
        "sys.exit(' '.join({'torch', 'ray', 'verl', 'vllm', 'transformers', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
