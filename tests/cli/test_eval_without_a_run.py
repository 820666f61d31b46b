"""`retool eval model=FOLDER data=file data.file.eval=FILE`: no run, no cold start and no prepared data before it."""

import io
import json

import pytest
from rich.console import Console

from retool_mcore.cli import main, summary
from retool_mcore.config import compose
from retool_mcore.data.schema import check_rl, rows_of
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.errors import UserError
from retool_mcore.runner import launch
from retool_mcore.train import prepare

pytestmark = pytest.mark.usefixtures("one_start_of_each_sandbox")

SHORT = ("data.max_prompt_tokens=64", "data.max_response_tokens=320", "data.max_observation_tokens=192")


@pytest.fixture
def given(tmp_path, monkeypatch):
    """The words after `retool eval`; run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    make_tiny_model(tmp_path / "my model", 1)
    rows = [{"question": f"{n}+{n}=?", "answer": str(2 * n)} for n in range(5)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["model=my model", "data=file", "data.file.eval=sums.jsonl", "data.prompt=tiny", "k=2", *SHORT, "runs_dir=r"]


def test_a_folder_is_a_model_and_names_the_run(given):
    config = compose("eval", given)
    assert (config.name, config.policy, config.policy_path) == ("eval-my-model", "init", "my model")
    assert launch.stage_dir("eval", config).parts[-4:] == ("r", "eval-my-model", "eval", "init-sums")
    own = compose("eval", [*given, "name=mine", "policy=/a/b", "label=x", "prepare=false"])
    assert (own.name, own.policy, own.label, own.prepare) == ("mine", "/a/b", "x", False)
    hub = compose("rl", ["model=Qwen/Qwen2.5-7B-Instruct", "data=math"])
    assert (hub.model.path, hub.name) == ("Qwen/Qwen2.5-7B-Instruct", "default")
    assert compose("eval").policy == "rl"
    with pytest.raises(UserError, match=r"^model has no choice 'my'; choose one of: folder, "):
        compose("eval", ["model=my"])


def test_a_dry_run_says_whether_it_can_start_and_writes_nothing(given, tmp_path, capsys):
    assert main.main(["eval", *given, "--dry-run"]) == 0
    assert "checks    passed" in capsys.readouterr().out
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.file.eval=null", "data=file names no data: give data.file.train=FILE"),
        ("data.file.eval=no.jsonl", "no.jsonl"),
        ("model=no/where", "policy=init=no/where is neither a folder here nor a downloaded model: run `hf download"),
        ("data.prompt=hermes", "data.prompt=hermes teaches the format hermes but rollout.format=text"),
        ("data.max_response_tokens=2000", "exceeds the model's 1024 positions"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_read(given, tmp_path, change, words):
    config = compose("eval", [*given, change])
    with pytest.raises(UserError) as refused:
        launch.preflight("eval", config)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "r").exists()


def test_training_problems_alone_are_not_evaluated_on(given):
    with pytest.raises(UserError, match="names no problems to evaluate on: give data.file.eval=FILE"):
        prepare.evaluation_parts(compose("eval", [*given, "data.file.train=sums.jsonl", "data.file.eval=null"]))


def test_the_stage_reads_the_problems_and_checks_them_before_an_engine_starts(given, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(launch, "run_process", lambda *args: started.append(args[3]))
    launch.launch("eval", compose("eval", given))
    run = tmp_path / "r" / "eval-my-model"
    assert sorted(path.name for path in run.iterdir()) == ["data", "eval"]
    check_rl(run / "data/eval/sums/test.parquet")
    assert started[0][1:] == ["-m", "retool_mcore.train.eval", str(run / "eval/init-sums/config.yaml")]
    with pytest.raises(UserError, match="prompts are longer than rollout.max_prompt_tokens=4"):
        launch.launch("eval", compose("eval", [*given, "name=long", "rollout.max_prompt_tokens=4"]))
    assert len(started) == 1


def test_each_policy_has_a_folder_for_the_same_problems(given, tmp_path):
    policies = ("init", "sft", "rl", "rl-best", "/models/Qwen2.5-7B", f"{tmp_path}/x/rl", f"{tmp_path}/y/init")
    folders = [launch.stage_dir("eval", compose("eval", [*given, f"policy={policy}"])).name for policy in policies]
    assert folders == [
        "init-sums", "sft-sums", "rl-sums", "rl-best-sums", "Qwen2.5-7B-sums", "folder-rl-sums", "folder-init-sums",
    ]  # fmt: skip
    steps = [
        f"{tmp_path}/x/{stage}/checkpoints/global_step_{n}/model/huggingface" for stage, n in (("rl", 2), ("sft", 4))
    ]
    folders = [launch.stage_dir("eval", compose("eval", [*given, f"policy={policy}"])).name for policy in steps]
    assert folders == ["rl-step_2-sums", "sft-step_4-sums"]


def test_a_file_that_was_edited_is_evaluated_anew(given, tmp_path, monkeypatch, capsys):
    """The stage's process is left out: what it writes stands there already when the launcher looks for the end."""
    started = []

    def stage(name, config, folder, *others):
        started.append(len(rows_of(config.data.validation_files)))
        records = [{"index": index, "sample": sample} for index in range(started[-1]) for sample in range(config.k)]
        (folder / "trajectories.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (folder / "metrics.json").write_text("{}")

    monkeypatch.setattr(launch, "run_process", stage)
    launch.launch("eval", compose("eval", given))
    launch.launch("eval", compose("eval", given))
    assert started == [5] and "complete already" in capsys.readouterr().out
    with (tmp_path / "sums.jsonl").open("a") as file:
        file.write(json.dumps({"question": "9+9=?", "answer": "18"}) + "\n")
    launch.launch("eval", compose("eval", given))
    told = capsys.readouterr().out
    assert started == [5, 6] and "data.validation_files: the problems changed" in told
    (tmp_path / "prompt.txt").write_text("Work it out: {question}\n")
    own = [*given, "data.prompt=prompt.txt", "rollout.format=none"]
    launch.launch("eval", compose("eval", own))
    (tmp_path / "prompt.txt").write_text("Work it out at last: {question}\n")
    launch.launch("eval", compose("eval", own))
    launch.launch("eval", compose("eval", own))
    assert started == [5, 6, 6, 6]


def test_a_generated_data_set_is_made_whole(given, tmp_path):
    config = compose("eval", ["model=my model", "runs_dir=r"])
    prepare.read_evaluation(config)
    check_rl(config.data.validation_files)


def test_the_table(tmp_path):
    metrics = {
        "accuracy": {"sums": {"mean@2": 0.5, "best@2": 0.75}, "other": {"mean@2": 0.25, "best@2": 1.0}},
        "behaviour": {"sums": {"code_ratio": 0.1, "response_length": 12.4}},
    }
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    out = io.StringIO()
    summary.print_evaluation(tmp_path, Console(file=out, width=120))
    lines = [line.replace("│", " ").split() for line in out.getvalue().splitlines()]
    assert ["sums", "50.0", "%", "75.0", "%", "10.0", "%", "12"] in lines
    assert ["other", "25.0", "%", "100.0", "%", "-", "-"] in lines
