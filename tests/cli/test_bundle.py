"""What a bundle takes of a run, and what it never shows."""

import tarfile

import pytest

from retool_mcore.cli import bundle
from retool_mcore.cli.main import main

# By form: a line of a log or configuration, and the secret in it.
PLANTED = [
    ("api_key: s3cr3t-of-yaml", "s3cr3t-of-yaml"),
    ("{'OPENAI_API_KEY': 'quoted-s3cr3t'}", "quoted-s3cr3t"),
    ('"password": "json-s3cr3t"', "json-s3cr3t"),
    ("MLFLOW_TRACKING_PASSWORD=shell-s3cr3t", "shell-s3cr3t"),
    ("Authorization: Bearer abc.def-s3cr3t", "abc.def-s3cr3t"),
    ("asked with Bearer loose-s3cr3t", "loose-s3cr3t"),
    ("at https://me:pass-word@host:5000/x", "pass-word"),
    ("cloned https://token-s3cr3t@host/x", "token-s3cr3t"),
    ("pushed with hf_abcdefghijklmnop", "hf_abcdefghijklmnop"),
    ("said by the server: the-environments-own", "the-environments-own"),
    ("refused by the receiver: of a-header", "of a-header"),
]
HARMLESS = "sft: step 13/24, 56 s  loss 2.499, tokens/s 2725, max_tokens: 4096, pad_token_id=0 at http://n1:8080/v1"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "the-environments-own")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=mine,x-team-pass=of%20a-header")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs/mine"
    for name, text in {
        "rl/config.yaml": PLANTED[0][0],
        "rl/log.txt": "\n".join(["first", HARMLESS, *(line for line, _ in PLANTED), "last"]),
        "rl/stacks/attempt_001/n2/7.txt": "Thread 1",
        "rl/metrics/attempt_001.jsonl": "{}",
        "slurm/7-ray/n1/raylet.out": "killed",
        "rl/trajectories/step_1.parquet": "a trajectory",
        "rl/policy/model.safetensors": "weights",
        "data/rl_train.parquet": "problems",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "rl/stacks/linked").symlink_to("/etc/passwd")
    return folder


def packed(path):
    with tarfile.open(path) as archive:
        return {name: archive.extractfile(name).read().decode() for name in archive.getnames()}


def test_it_takes_what_tells_and_never_weights_data_or_trajectories(run, capsys):
    assert main(["bundle", str(run)]) == 0
    found = packed("bundle-mine.tar.gz")
    assert sorted(found) == [
        "mine/environment.txt", "mine/rl/config.yaml", "mine/rl/log.txt", "mine/rl/metrics/attempt_001.jsonl",
        "mine/rl/stacks/attempt_001/n2/7.txt", "mine/slurm/7-ray/n1/raylet.out",
    ]  # fmt: skip
    assert "torch==" in found["mine/environment.txt"] and "6 files" in capsys.readouterr().out


@pytest.mark.parametrize(("line", "secret"), PLANTED)
def test_no_secret_is_in_it(run, line, secret):
    bundle.write(run)
    everything = "".join(packed("bundle-mine.tar.gz").values())
    assert secret not in everything and line.split(secret)[0].partition("//")[0] in everything


def test_what_is_no_secret_stays(run):
    bundle.write(run)
    assert HARMLESS in packed("bundle-mine.tar.gz")["mine/rl/log.txt"]


def test_of_a_long_log_it_takes_the_end_from_a_whole_line_on(run, monkeypatch):
    monkeypatch.setattr(bundle, "MOST", 20)
    (run / "rl/log.txt").write_text("first line\nsecond line\nthe last\n")
    bundle.write(run)
    assert packed("bundle-mine.tar.gz")["mine/rl/log.txt"] == "the last\n"


@pytest.mark.parametrize("there", [False, True])
def test_no_run_and_a_file_that_is_there_are_refused(run, tmp_path, capsys, there):
    (tmp_path / "out.tar.gz").touch() if there else None
    words = [str(run if there else tmp_path / "nothing"), "--out", "out.tar.gz"]
    assert main(["bundle", *words]) == 2
    assert ("is there already" if there else "no run in") in capsys.readouterr().err
