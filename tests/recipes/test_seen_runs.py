"""Which runs docs/recipes.md calls seen."""

import json

import pytest
from omegaconf import OmegaConf

from docs import recipe_runs as seen
from retool_mcore.errors import UserError


@pytest.fixture
def run(tmp_path):
    """The folder of a run of three steps, the last of which was repeated."""
    stage = tmp_path / "t" / "rl"
    (stage / "metrics").mkdir(parents=True)
    recipe = {"recipe": {"name": "zerotir", "advantage": "gae"}, "pipeline": {"name": "async"}}
    rest = {"model": {"name": "tiny"}, "parallel": {"device": "cpu", "tp": 2, "pp": 1}}
    OmegaConf.save(OmegaConf.create(recipe | rest), stage / "config.yaml")
    for attempt, steps in ((1, (1, 2, 3)), (2, (3,))):
        lines = [
            json.dumps(
                {
                    "step": step,
                    "data": {
                        "critic/score/mean": -1 / step - attempt,
                        "actor/pg_loss": step / 1000,
                        "actor/grad_norm": float(step),
                        seen.STALENESS: float(step > 1),
                    },
                }
            )
            for step in steps
        ]
        (stage / "metrics" / f"attempt_{attempt:03d}.jsonl").write_text("\n".join(lines))
    (stage / "COMPLETE").touch()
    return tmp_path / "t"


def test_a_runs_own_files_are_what_is_told(run, tmp_path, capsys):
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([{"recipe": "dapo", "advantage": "grpo", "pipeline": "sync"}]))
    seen.main([str(run)], file)
    found = seen.runs(file)
    assert set(found) == {("dapo", "grpo", "sync"), ("zerotir", "gae", "async")}
    kept = found["zerotir", "gae", "async"]
    assert kept["steps"] == 3 and kept["values"]["grad_norm"] == [1, 2, 3]
    words = seen.format_run(kept)
    assert words.startswith("3 steps on cpu, TP2 (") and words.endswith(
        "): reward -2, -1.5, -2.33; loss 0.001, 0.002, 0.003; grad norm 1, 2, 3; staleness 0, 1, 1"
    )
    kept["values"] = {"grad_norm": [1, 2, 3, 4, 5]}
    assert seen.format_run(kept).endswith("): grad norm 1, 2, 3 ... 5")
    assert words in capsys.readouterr().out


def test_a_run_that_ended_early_was_not_seen(run, tmp_path):
    (run / "rl" / "COMPLETE").unlink()
    with pytest.raises(UserError, match="came to its end"):
        seen.main([str(run)], tmp_path / "runs.json")
    assert not (tmp_path / "runs.json").exists()
    assert seen.runs(tmp_path / "runs.json") == {} and seen.format_run(None) == "none"
