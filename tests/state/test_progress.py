import io
import json

import pytest

from retool_mcore.state.progress import Progress, metric, parse, read_steps


def line(step: int, **data) -> str:
    return json.dumps({"step": step, "data": {key.replace("__", "/"): value for key, value in data.items()}}) + "\n"


def attempt(folder, number: int, text: str):
    path = folder / "metrics" / f"attempt_{number:03d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_steps_of_a_resumed_run_replace_the_lost_ones(tmp_path):
    attempt(tmp_path, 1, line(1, x=1) + line(2, x=2) + line(3, x=3) + '{"step": 4, "da')
    attempt(tmp_path, 2, line(2, x=20))
    attempt(tmp_path, 10, "")
    assert read_steps(tmp_path) == {1: {"x": 1}, 2: {"x": 20}}


def test_lines_of_one_step_are_joined(tmp_path):
    attempt(tmp_path, 1, line(1, train__loss=1.0) + line(1, val__loss=2.0))
    assert read_steps(tmp_path) == {1: {"train/loss": 1.0, "val/loss": 2.0}}


@pytest.mark.parametrize("text", ["", "{", "3", '{"step": 1}', '{"step": 1, "data": 3}', '{"step": "x", "data": {}}'])
def test_a_broken_line_is_nothing(text):
    assert parse(text.encode()) == (0, {})


def test_only_numbers_count():
    assert parse(line(3, a=1, b="x", c=True, d=None, e=0.5).encode()) == (3, {"a": 1, "e": 0.5})


def test_metric_is_found_by_its_last_words():
    assert metric({"retool/code_ratio": 0.5, "not_code_ratio": 1}, "code_ratio") == 0.5
    assert metric({"val/loss": 1.0}, "train/loss") is None


def test_plain_lines_follow_the_file(tmp_path):
    out = io.StringIO()
    path = attempt(tmp_path, 1, line(1, critic__score__mean=-0.5))
    progress = Progress("rl", path, 40, out=out, every_s=0.0)
    progress.update()
    assert out.getvalue().startswith("rl: step 1/40, 0 s  reward -0.5")
    with path.open("a") as file:
        file.write(line(2, critic__score__mean=0.25)[:-9])
    progress.update()
    assert progress.step == 1  # half a line is not a step
    with path.open("a") as file:
        file.write(line(2, critic__score__mean=0.25)[-9:])
    progress.close()
    assert "rl: step 2/40" in out.getvalue() and "reward 0.25" in out.getvalue().splitlines()[-1]


def test_lines_are_not_printed_more_often_than_asked(tmp_path):
    out = io.StringIO()
    progress = Progress("sft", tmp_path / "missing.jsonl", None, out=out, every_s=3600.0)
    for _ in range(5):
        progress.update()
    progress.close()
    assert out.getvalue() == ""


def test_the_line_says_what_runs_now_and_does_not_ask_at_every_look(tmp_path):
    out, asked = io.StringIO(), []
    path = attempt(tmp_path, 1, line(11, critic__score__mean=0.5))
    progress = Progress(
        "rl", path, 40, out=out, every_s=0.0, doing=lambda: asked.append(1) or "update 31 %, 4 min left"
    )
    for _ in range(5):
        progress.update()
    assert out.getvalue().startswith("rl: step 11/40, update 31 %, 4 min left, 0 s  reward 0.5\n") and len(asked) == 1


def test_a_stage_without_steps_shows_its_phase(tmp_path):
    out, said = io.StringIO(), ""
    path = tmp_path / "missing.jsonl"
    progress = Progress("eval", path, None, out=out, every_s=0.0, doing=lambda: said, counts_steps=False)
    progress.update()
    progress.looked, said = 0.0, "evaluation 27 % (76 trajectories finished, 64 live, 3,200 tokens/s), 5 min left"
    progress.looked = -1e9
    progress.update()
    lines = out.getvalue().splitlines()
    assert lines == ["eval: starting, 0 s", f"eval: {said}, 0 s"]


def test_a_bar_on_a_terminal(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    progress = Progress("sft", attempt(tmp_path, 1, line(30, train__loss=0.5)), 40, out=out)
    progress.update()
    progress.close()
    assert "30/40" in out.getvalue() and "loss 0.5" in out.getvalue()
