"""`retool compare`: arms by seeds against a criterion that is older than the runs, and a run on a reference curve."""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from retool_mcore.analysis import reference
from retool_mcore.analysis.compare import judge, read_arms
from retool_mcore.analysis.plan import fixed_at, read_plan
from retool_mcore.analysis.statistics import interval, met
from retool_mcore.cli import main
from retool_mcore.errors import UserError

PLAN = {
    "arms": {"tool": "tool-s{seed}", "text": "text-s{seed}"},
    "seeds": [1, 2, 3],
    "claims": {"helps": {"better": "tool", "worse": "text", "rule": "above", "points": 5}},
}
BEGAN = 1_700_000_000.0
CONFIG = {
    "model": {"name": "tiny"},
    "data": {"name": "arithmetic", "arithmetic": {"train": 4096, "place": "/home/me"}, "sft": {"steps": 400}},
    "recipe": {"name": "retool", "reward": {"name": "retool"}},
    "parallel": {"device": "cuda", "nodes": 1, "gpus_per_node": 2},
    "train": {"batch": 16, "n": 8, "mini_batch": 4, "lr": 0.00025},
}


def seed_of(folder: Path) -> int:
    return int(folder.name.partition("-s")[2] or 7)


def run(folder: Path, last: float, problems: list[int] | None = None, began: float = BEGAN) -> None:
    """A run whose accuracy rises to `last`; problems: of its evaluation, 1 for a right one."""
    (folder / "rl" / "metrics").mkdir(parents=True)
    curve = [last * step / 8 for step in range(1, 9)]
    lines = [{"step": n, "data": {"reward/accuracy": v, "perf/total_num_tokens": 100}} for n, v in enumerate(curve, 1)]
    (folder / "rl/metrics/attempt_001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    attempt = {"attempt": 1, "started": datetime.fromtimestamp(began, UTC).isoformat(), "seconds": 120.0}
    (folder / "rl/attempts.jsonl").write_text(json.dumps(attempt | {"outcome": "complete"}) + "\n")
    (folder / "rl/config.yaml").write_text(yaml.safe_dump(CONFIG | {"seed": seed_of(folder)}))
    (folder / "rl/validation.jsonl").write_text(json.dumps({"step": 8, "problems": [last, last]}) + "\n")
    if problems is not None:
        (folder / "eval/rl").mkdir(parents=True)
        rows = [{"data_source": "s", "index": n, "sample": 0, "acc": float(one)} for n, one in enumerate(problems)]
        (folder / "eval/rl/trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def study(tmp_path):
    """Three seeds of two arms; `tool` has 16, 15 and 17 of 20 problems, `text` 8, 8 and 10."""
    for seed, (ours, theirs) in enumerate(((16, 8), (15, 8), (17, 10)), start=1):
        run(tmp_path / f"tool-s{seed}", ours / 20, [1] * ours + [0] * (20 - ours))
        run(tmp_path / f"text-s{seed}", theirs / 20, [1] * theirs + [0] * (20 - theirs))
    write_plan(tmp_path)
    return tmp_path


def write_plan(folder: Path, older: bool = True, **changes) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(PLAN | {"runs": str(folder)} | changes))
    when = BEGAN - 60 if older else BEGAN + 60
    os.utime(path, (when, when))
    return path


def rows(path: Path) -> list[dict]:
    plan = read_plan(path)
    runs, _ = read_arms(plan, path)
    return judge(plan, runs)


def test_pairs_by_seed_and_by_problem_decide_together(study):
    (row,) = rows(study / "study.yaml")
    assert row["pairs"] == [40.0, 35.0, 35.0] and row["mean"] == pytest.approx(36.67)
    assert row["over_seeds"] == pytest.approx([29.5, 43.84], abs=0.01)
    assert row["problems"] == 20 and row["over_problems"][0] > 5 and row["met"]
    strict = {"helps": PLAN["claims"]["helps"] | {"points": 25}}
    (row,) = rows(write_plan(study, claims=strict))
    assert row["over_seeds"][0] > 25 > row["over_problems"][0] and not row["met"]  # so few problems do not say so much


def validate(folder: Path, step: int, hard: float, easy: float, calls: float) -> None:
    """Add a validation of four problems, two of the source `hard` and two of `easy`, all with `calls` calls."""
    line = {"step": step, "problems": [hard, easy] * 2, "sources": ["hard", "easy"] * 2, "calls": [calls] * 4}
    with (folder / "rl/validation.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_a_claim_on_some_sources_on_calls_and_against_the_start(study):
    for seed in (1, 2, 3):
        validate(study / f"tool-s{seed}", 0, hard=0.25, easy=0.5, calls=0.5)
        validate(study / f"tool-s{seed}", 9, hard=1.0, easy=0.5, calls=1.0)
        validate(study / f"text-s{seed}", 9, hard=0.0, easy=0.5, calls=0.0)
    helps = PLAN["claims"]["helps"]
    claims = {
        "hard": helps | {"sources": ["hard"]},
        "easy": helps | {"sources": ["easy"]},
        "calls": helps | {"of": "calls"},
        "learns": helps | {"worse": "tool", "worse_at": "start"},
    }
    found = {row["claim"]: row for row in rows(write_plan(study, measure="validation", claims=claims))}
    assert {name: row["mean"] for name, row in found.items()} == {"hard": 100, "easy": 0, "calls": 100, "learns": 37.5}
    assert found["hard"]["met"] and not found["easy"]["met"] and found["hard"]["problems"] == 2
    assert found["learns"]["criterion"].startswith("tool - tool before RL")
    for wrong, said in (
        ({"sources": ["odd"]}, "was not validated on the data source odd; it has hard, easy"),
        ({"worse_at": "start"}, "was not validated before its first step"),  # text has no step 0
    ):
        with pytest.raises(UserError, match=said):
            rows(write_plan(study, measure="validation", claims={"c": helps | wrong}))


def test_a_claim_whose_runs_are_not_all_there_has_no_verdict(study, capsys):
    path = write_plan(study, seeds=[1, 2, 3, 4], arms=PLAN["arms"] | {"late": "late-s{seed}"})
    (row,) = rows(path)
    assert row["met"] is None and row["pairs"] == [40.0, 35.0, 35.0]
    assert main.main(["compare", str(path)]) == 0
    out = capsys.readouterr().out
    assert "no verdict: a run is missing" in out and "missing runs: " in out and "late-s2" in out


@pytest.mark.parametrize("measure", ["training", "validation"])
def test_other_measures(study, measure):
    (row,) = rows(write_plan(study, measure=measure, late=1))
    assert row["pairs"] == [40.0, 35.0, 35.0] and row["met"]


def test_a_plan_that_is_younger_than_its_runs_is_refused(study):
    path = write_plan(study, older=False)
    with pytest.raises(UserError, match="after the RL of .* began"):
        rows(path)
    # A commit counts, not the time at which a clone wrote the file.
    git = ["git", "-C", str(study), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "study.yaml"], check=True)
    when = f"{int(BEGAN - 600)} +0000"
    env = os.environ | {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when}
    subprocess.run([*git, "commit", "-qm", "plan"], check=True, env=env)
    assert fixed_at(path) == BEGAN - 600 and rows(path)[0]["met"]
    path.write_text(path.read_text() + "# changed since\n")
    with pytest.raises(UserError, match="a criterion counts when it was fixed before"):
        rows(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"measure": "luck"}, "measure is 'luck'"),
        ({"seeds": [1, 1]}, "seeds are given twice"),
        ({"arms": {"tool": "tool-s1", "text": "text-s{seed}"}}, "put {seed} into the folder's name"),
        ({"claims": {"c": {"better": "tool", "worse": "txt", "rule": "all", "points": 1}}}, "names the arm 'txt'"),
        ({"claims": {"c": {"better": "tool", "worse": "text", "rule": "some", "points": 1}}}, "has the rule 'some'"),
        ({"points": 3}, "there is no key points"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [8, 9]}, "none of the runs of"),
        ({"claims": {"c": PLAN["claims"]["helps"] | {"sources": ["easy"]}}}, "these need measure: validation"),
        ({"label": "sft"}, "no evaluation 'sft' in"),
    ],
)
def test_what_is_no_plan_or_has_no_runs_is_refused(study, changes, said):
    with pytest.raises(UserError) as refused:
        rows(write_plan(study, **changes))
    assert said in str(refused.value)


def test_other_problems_are_refused(study):
    path = study / "tool-s1/eval/rl/trajectories.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="on other problems"):
        rows(study / "study.yaml")


def test_rules_and_intervals():
    assert interval([3.0]) == (3.0, float("inf"))
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2 and half == pytest.approx(2.4841, abs=1e-4)
    assert met("all", 2, [1.0, 3.0], []) and not met("all", 2, [-1.0, 9.0], [])
    assert met("within", 5, [1.0], [(1.0, 3.0)]) and not met("within", 5, [1.0], [(1.0, 3.0), (1.0, 4.5)])


def test_the_command_reports_verdict_costs_and_a_figure(study, capsys):
    assert main.main(["compare", str(study / "study.yaml"), "--json", str(study / "out.json")]) == 0
    out = capsys.readouterr().out
    assert (
        "helps: tool - text interval above 5. met. Mean +36.7 points (80.0 against 43.3); pairs +40.0, +35.0, +35.0"
        in out
    )
    assert "95 % interval over 3 seeds" in out and "over 20 problems" in out
    assert "4.0" in out and "800" in out  # GPU minutes of two GPUs, tokens
    assert (study / "study.png").stat().st_size > 5000 and (study / "study.svg").is_file()
    assert json.loads((study / "out.json").read_text())["claims"][0]["met"] is True


def test_runs_without_a_plan_get_figures_and_no_verdict(study, capsys):
    words = [str(study / f"{arm}-s{seed}") for arm in ("tool", "text") for seed in (1, 2)]
    assert main.main(["compare", *words]) == 0
    out = capsys.readouterr().out
    assert "no criterion was fixed before these runs" in out and "met" not in out and "pairs +40.0, +35.0" in out
    assert main.main(["compare", words[0], words[0]]) == 2 and "rename one" in capsys.readouterr().err


def test_a_run_lies_on_a_reference(tmp_path, capsys):
    shipped = reference.find_reference("quickstart")
    curves = list(shipped["curves"].values())
    assert len(curves) == 5 and all(len(own) == 16 for own in curves)
    others = shipped | {"curves": dict(list(shipped["curves"].items())[1:])}
    assert reference.place(curves[0], others)["verdict"] == "within"
    assert reference.place([0.3] * 16, shipped)["verdict"] == "below"
    assert reference.place([1.0] * 16, shipped)["verdict"] == "above"
    run(tmp_path / "mine", 0.2)
    assert main.main(["compare", str(tmp_path / "mine"), "reference:quickstart"]) == 0
    out = capsys.readouterr().out
    assert "below it" in out and "other settings" not in out
    assert main.main(["compare", str(tmp_path / "mine"), "reference:none"]) == 2
    assert "shipped are quickstart" in capsys.readouterr().err


def change(folder: Path, **values) -> None:
    """Set dotted keys (with __ for the dot) of the run's configuration; None removes one."""
    path = folder / "rl/config.yaml"
    config = yaml.safe_load(path.read_text())
    for key, value in values.items():
        *groups, last = key.split("__")
        place = config
        for group in groups:
            place = place[group]
        place[last] = value
        if value is None:
            del place[last]
    path.write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model__name": "small"}, "model.name (small and tiny)"),
        ({"data__name": "math"}, "data.name (math and arithmetic)"),
        ({"recipe__name": "dapo", "recipe__reward__name": "otc"}, "recipe.name (dapo and retool); recipe.reward.name"),
        ({"model__name": None}, "model.name (None and tiny)"),
    ],
)
def test_a_run_of_another_model_data_or_recipe_is_refused(tmp_path, capsys, values, said):
    run(tmp_path / "mine", 0.8)
    change(tmp_path / "mine", **values)
    assert main.main(["compare", str(tmp_path / "mine"), "reference:quickstart"]) == 2
    assert f"is no run of reference:quickstart: it differs in {said}" in capsys.readouterr().err


def test_other_settings_are_reported_and_a_lost_configuration_is_refused(tmp_path, capsys):
    run(tmp_path / "mine", 0.8)
    change(tmp_path / "mine", train__lr=0.01)
    assert main.main(["compare", str(tmp_path / "mine"), "reference:quickstart"]) == 0
    assert "other settings than the reference's: train.lr (0.01 and 0.00025)" in capsys.readouterr().out
    (tmp_path / "mine/rl/config.yaml").unlink()
    assert main.main(["compare", str(tmp_path / "mine"), "reference:quickstart"]) == 2
    assert "config.yaml cannot be read" in capsys.readouterr().err


def test_a_reference_of_ones_own(study, capsys):
    path = study / "own.json"
    words = [str(study / f"tool-s{seed}") for seed in (1, 2, 3)]
    assert main.main(["compare", *words, "--write-reference", str(path), "--about", "Three seeds."]) == 0
    content = json.loads(path.read_text())
    assert (content["name"], content["about"]) == ("own", "Three seeds.")
    assert list(content["curves"]) == ["seed 1", "seed 2", "seed 3"]
    assert content["config"]["data.arithmetic.train"] == 4096 and "/home" not in path.read_text()
    assert main.main(["compare", words[0], f"reference:{path}"]) == 0
    assert "within it" in capsys.readouterr().out
    change(study / "tool-s1", data__arithmetic={"train": 64})  # the data set's own keys count as the data
    assert main.main(["compare", words[0], f"reference:{path}"]) == 2
    assert "data.arithmetic.train (64 and 4096)" in capsys.readouterr().err
    for broken in ("{}", "[]", '{"curves": {"a": [1], "b": [1]}, "config": [1]}'):
        path.write_text(broken)
        with pytest.raises(UserError, match="is no reference"):
            reference.find_reference(str(path))


@pytest.mark.parametrize(
    ("runs", "values", "options", "said"),
    [
        (["tool-s1"], {}, [], "two runs or more"),
        (["tool-s1", "tool-s2"], {"train__lr": 0.1}, [], "tool-s1 and {}/tool-s2 differ in train.lr (0.00025 and 0.1)"),
        (["tool-s1", "tool-s2"], {"train__lr": None}, [], "differ in train.lr (0.00025 and None)"),
        (["tool-s1", "tool-s2"], {"seed": 1}, [], "the runs have the seeds [1, 1]"),
        (["tool-s1", "tool-s2"], {"seed": None}, ["--write-reference", "own"], "expected the name of a .json file"),
        (["study.yaml"], {}, [], "takes folders of runs"),
        (["tool-s1", "reference:quickstart"], {}, [], "takes folders of runs"),
    ],
)
def test_what_makes_no_reference_is_refused(study, capsys, runs, values, options, said):
    if len(runs) > 1:
        change(study / "tool-s2", **values)
    words = [one if ":" in one else str(study / one) for one in runs]
    assert main.main(["compare", *words, *(options or ["--write-reference", str(study / "own.json")])]) == 2
    assert said.format(study) in capsys.readouterr().err and not (study / "own.json").exists()
    assert main.main(["compare", words[0], "--about", "x"]) == 2
    assert "belongs to --write-reference" in capsys.readouterr().err


def test_shipped_references_can_be_compared_with():
    for path in reference.SHIPPED.glob("*.json"):
        found = reference.find_reference(path.stem)
        assert {"model.name", "data.name", "recipe.name"} <= found["config"].keys() and found["about"]


def test_a_folder_and_files_are_known_by_their_content(tmp_path, capsys):
    """model=folder and data=file say nothing by their names, and paths are another on each machine."""
    for seed in (1, 2, 3):
        folder = tmp_path / f"a-s{seed}"
        run(folder, 0.8)
        (folder / "sft/policy").mkdir(parents=True)
        shape = {"model_type": "llama", "num_hidden_layers": 30 if seed < 3 else 24, "hidden_size": 576}
        (folder / "sft/policy/config.json").write_text(json.dumps(shape))
        rows = [{"prompt": [{"content": f"{n}"}], "reward_model": {"ground_truth": f"{n}"}} for n in range(4)]
        train = folder / "train.parquet"
        parquet.write_table(pa.Table.from_pylist(rows[::-1] if seed == 2 else rows), train)
        data = {"name": "file", "file": {"train": [{"path": f"a{seed}.csv"}]}, "train_files": str(train)}
        change(folder, model__name="folder", data=data)
    one, two, three = (str(tmp_path / f"a-s{seed}") for seed in (1, 2, 3))
    path = tmp_path / "own.json"
    assert main.main(["compare", one, two, "--write-reference", str(path)]) == 0
    config = json.loads(path.read_text())["config"]
    assert config["model.shape"] == "model_type llama, num_hidden_layers 30, hidden_size 576"
    assert len(config["data.problems"]) == 16 and not [key for key in config if "path" in key]
    assert main.main(["compare", two, f"reference:{path}"]) == 0
    assert main.main(["compare", three, f"reference:{path}"]) == 2
    assert "differs in model.shape" in capsys.readouterr().err
    parquet.write_table(pa.Table.from_pylist(rows[:3]), tmp_path / "a-s2/train.parquet")
    assert main.main(["compare", two, f"reference:{path}"]) == 2
    assert "differs in data.problems" in capsys.readouterr().err
