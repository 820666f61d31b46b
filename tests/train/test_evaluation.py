"""An evaluation's folder holds samples of what is asked for alone: of this policy, these settings, these problems."""

import json
import os

import pytest
from omegaconf import OmegaConf

from retool_mcore.config import compose
from retool_mcore.data.prepare import write_problems
from retool_mcore.data.records import Problem
from retool_mcore.data.schema import rows_of
from retool_mcore.train import evaluation
from retool_mcore.train.evaluation import MADE_FROM, METRICS, TRAJECTORIES, asked_for, begin, read_finished

SOME = 3  # problems


@pytest.fixture
def config(tmp_path):
    """A resolved evaluation of a policy and of problems that are there."""
    made = compose("eval", ["k=2"])
    for name, step in (("first", 1), ("second", 2)):
        folder = tmp_path / f"rl/checkpoints/global_step_{step}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text(name)
        (folder / "config.json").write_text("{}")
        made.policy_path = made.policy_path if step == 2 else str(folder)
    made.data.validation_files = str(tmp_path / "test.parquet")
    problems(made, range(SOME))
    return made


def problems(config, numbers):
    made = [Problem("sums", f"{n} + {n}?", str(2 * n), place) for place, n in enumerate(numbers)]
    path = config.data.validation_files
    write_problems(made, evaluation.Path(path), template="tiny", split="test")


def sampled(folder, asked, by, skip=()):
    """Fill the folder as the stage does; `by` marks who wrote a sample."""
    path = folder / TRAJECTORIES
    done = {(record["index"], record["sample"]) for record in read_finished(path)}
    with path.open("a") as file:
        for index in range(asked.problems):
            for sample in range(asked.k):
                if (index, sample) not in done and (index, sample) not in skip:
                    record = {"index": index, "sample": sample, "by": by, "graded_as": asked.grading}
                    file.write(json.dumps(record) + "\n")
    if not skip:
        (folder / METRICS).write_text(json.dumps({"by": by}))
        (folder / "COMPLETE").write_text(asked.mark + "\n")


def writers(folder):
    return sorted({record["by"] for record in read_finished(folder / TRAJECTORIES)})


def other_policy(config, folder):
    config.policy_path = str(folder / "rl/checkpoints/global_step_2")


def changed_weights(config, folder):
    weights = evaluation.Path(config.policy_path) / "model.safetensors"
    weights.write_text("other")
    os.utime(weights, ns=(1, weights.stat().st_mtime_ns + 1))


def changed_template(config, folder):
    (evaluation.Path(config.policy_path) / "chat_template.jinja").write_text("{{ messages }}")


def set_to(key, value):
    return lambda config, folder: OmegaConf.update(config, key, value)


CHANGES = {
    "policy: ": other_policy,
    "policy:": changed_weights,
    "policy: /": changed_template,
    "temperature: 1.0, now 0.0": set_to("temperature", 0.0),
    "top_p: 1.0, now 0.6": set_to("top_p", 0.6),
    "seed: 1, now 2": set_to("seed", 2),
    "rollout.max_turns: ": set_to("rollout.max_turns", 1),
    "rollout.max_response_tokens: ": set_to("rollout.max_response_tokens", 64),
    "rollout.max_turn_tokens: ": set_to("rollout.max_turn_tokens", 32),
    "rollout.max_observation_tokens: ": set_to("rollout.max_observation_tokens", 33),
    "rollout.after_last_call: end, now text": set_to("rollout.after_last_call", "text"),
    "rollout.error_lines: 10, now 1": set_to("rollout.error_lines", 1),
    "rollout.format: text, now hermes": set_to("rollout.format", "hermes"),
    "rollout.chat_template: the content changed": set_to("rollout.chat_template", "{% for m in messages %}\n" * 9),
    "model.apply_chat_template_kwargs: ": set_to("model.apply_chat_template_kwargs", {"enable_thinking": False}),
    "sandbox.timeout_s: ": set_to("sandbox.timeout_s", 1.5),
    "sandbox.memory_mb: 1024, now 64": set_to("sandbox.memory_mb", 64),
    "toolbox.timeout_s: 30, now 1": set_to("toolbox.timeout_s", 1),
    "data.validation_files: the problems changed": lambda config, folder: problems(config, [0, 1, 9]),
}


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("words", CHANGES)
def test_what_makes_a_sample_another_is_sampled_anew_and_named(config, tmp_path, words, interrupted):
    folder = tmp_path / "eval"
    folder.mkdir()
    asked = asked_for(config)
    assert begin(asked, folder) == []
    sampled(folder, asked, "before", skip={(1, 1)} if interrupted else ())
    assert evaluation.is_complete(asked_for(config), folder) is not interrupted
    CHANGES[words](config, tmp_path)
    again = asked_for(config)
    assert not evaluation.is_complete(again, folder)
    lines = begin(again, folder)
    assert lines[0].startswith("sampled anew") and any(words in line for line in lines[1:]), lines
    assert len(lines) == 3, "one difference, and where the samples are"
    assert not (folder / TRAJECTORIES).exists() and not (folder / METRICS).exists()
    sampled(folder, again, "after")
    assert writers(folder) == ["after"] and evaluation.is_complete(again, folder)
    # Asked for again, the first goes on with its own samples.
    assert "goes on with" in begin(asked, folder)[-1] and writers(folder) == ["before"]
    sampled(folder, asked, "before")
    assert len(read_finished(folder / TRAJECTORIES)) == SOME * 2


def test_what_makes_no_sample_another_leaves_it_complete(config, tmp_path):
    begin(asked_for(config), tmp_path)
    sampled(tmp_path, asked_for(config), "before")
    config.parallel.max_num_seqs, config.sandbox.workers, config.label = 3, 7, "x"
    # The policy under another name, as after the run's folder was moved, with the very same files.
    moved = tmp_path / "moved"
    os.rename(config.policy_path, moved)
    config.policy_path = str(moved)
    # The same problems, written again by `retool prepare`.
    problems(config, range(SOME))
    assert evaluation.is_complete(asked_for(config), tmp_path)


def test_more_samples_and_problems_go_on_and_fewer_are_a_part(config, tmp_path):
    config.problems = 2
    begin(asked_for(config), tmp_path)
    sampled(tmp_path, asked_for(config), "first")
    config.k, config.problems = 3, None
    more = asked_for(config)
    assert not evaluation.is_complete(more, tmp_path)
    assert begin(more, tmp_path) == ["goes on with 4 of 9 samples"]
    sampled(tmp_path, more, "second")
    config.k, config.problems = 1, 2
    fewer = asked_for(config)
    assert begin(fewer, tmp_path) == ["goes on with 2 of 2 samples"]
    assert [record["by"] for record in read_finished(tmp_path / TRAJECTORIES)] == ["first", "first"]
    assert begin(more, tmp_path) == ["goes on with 9 of 9 samples"], "what was beyond k was kept"


def test_another_answer_rule_grades_again_and_samples_nothing(config, tmp_path):
    begin(asked_for(config), tmp_path)
    sampled(tmp_path, asked_for(config), "before")
    config.answer, config.decimals = "final_line", "rounded"
    again = asked_for(config)
    assert not evaluation.is_complete(again, tmp_path)
    told = "grades them again: the rule was boxed, exact, and is final_line, rounded"
    assert begin(again, tmp_path) == ["goes on with 6 of 6 samples", told]
    assert writers(tmp_path) == ["before"]


def test_samples_of_an_older_version_are_of_nobody_knows_what(config, tmp_path):
    (tmp_path / TRAJECTORIES).write_text('{"index": 0, "sample": 0}\n')
    lines = begin(asked_for(config), tmp_path)
    assert "what made them was not recorded" in lines[1] and not (tmp_path / TRAJECTORIES).exists()
    (tmp_path / MADE_FROM).write_text('{"samples"')  # half written
    (tmp_path / TRAJECTORIES).write_text('{"index": 1, "sample": 0}\n')
    assert begin(asked_for(config), tmp_path)[0].startswith("sampled anew, because the 1 samples")
    kept = list(tmp_path.glob("earlier/*/trajectories.jsonl"))
    assert len(kept) == 1 and len(read_finished(kept[0])) == 2


def test_a_line_that_a_kill_cut_is_sampled_again(config, tmp_path):
    begin(asked_for(config), tmp_path)
    sampled(tmp_path, asked_for(config), "before", skip={(2, 1)})
    with (tmp_path / TRAJECTORIES).open("a") as file:
        file.write('{"index": 2, "sam')
    assert begin(asked_for(config), tmp_path) == ["goes on with 5 of 6 samples"]
    assert len(read_finished(tmp_path / TRAJECTORIES)) == 5


def test_a_file_that_a_tool_reads_counts_by_its_content(config, tmp_path):
    index = tmp_path / "index.json"
    index.write_text("[]")
    config.toolbox.use = [{"path": "mine.Search", "args": {"files": [str(index)]}}]
    first = asked_for(config)
    index.write_text("[1]")
    assert asked_for(config).mark != first.mark and len(rows_of(config.data.validation_files)) == SOME
