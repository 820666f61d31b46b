"""What a stage starts from is what was asked for, and what is complete is what was asked for."""

import json
import os

import pytest
from omegaconf import OmegaConf

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.runner.inputs import check_start, completion, is_complete, settle_policy, stage_dir
from retool_mcore.state import checkpoints
from retool_mcore.train import prepare
from retool_mcore.train.prepare import changed_input, check_prepared, read_evaluation


def whole(stage_dir, step):
    folder = stage_dir / f"checkpoints/global_step_{step}"
    (folder / "model/huggingface").mkdir(parents=True)
    checkpoints.mark_complete(folder)
    return folder


@pytest.mark.parametrize("link", ["policy", "policy_best"])
def test_rl_starts_from_no_sft_that_has_not_ended(tmp_path, link):
    checkpoint = whole(tmp_path / "sft", 20)
    if link == "policy_best":
        (tmp_path / "sft/policy_best").symlink_to(checkpoints.policy_folder(checkpoint))
    config = OmegaConf.create({"run_dir": str(tmp_path), "init_from": f"{tmp_path}/sft/{link}"})
    with pytest.raises(UserError) as refused:
        check_start("rl", config)
    words = "step 20 of sft, which has not come to its end: run `retool sft` until it is complete, or give init_from="
    assert words in str(refused.value) and "\n" not in str(refused.value)
    named = OmegaConf.create({**config, "init_from": str(checkpoints.policy_folder(checkpoint))})
    check_start("rl", named)  # the checkpoint itself is asked for
    (tmp_path / "sft/COMPLETE").touch()
    check_start("rl", config)
    (tmp_path / "sft/COMPLETE").unlink()
    whole(tmp_path / "rl", 1)
    check_start("rl", config)  # it goes on from its own checkpoint


@pytest.fixture
def exported(tmp_path):
    """Returns a function that exports as the stage does: it leaves COMPLETE and what is read of the export's report."""

    def export(*words):
        config = compose("export", ["name=x", f"runs_dir={tmp_path}", *words])
        settle_policy("export", config)
        done = is_complete("export", config)
        if not done:
            output, folder = tmp_path / "x/export/policy", stage_dir("export", config)
            output.mkdir(parents=True, exist_ok=True)
            from retool_mcore.state.identity import policy_files

            files = policy_files(checkpoints.Path(config.policy_path))
            (output / "export.json").write_text(json.dumps({"policy_files": files}))
            (folder / "COMPLETE").write_text(completion("export", config) + "\n")
        return done

    return export


def test_an_export_is_of_what_the_link_names_now(tmp_path, exported):
    run = tmp_path / "x"
    for step in (1, 2):
        folder = whole(run / "rl", step)
        (folder / "model/huggingface/model.safetensors").write_text(f"step {step}")
        (folder / "model/huggingface/config.json").write_text("{}")
    checkpoints._link(run / "rl/policy", checkpoints.policy_folder(run / "rl/checkpoints/global_step_1"))
    checkpoints._link(run / "rl/policy_best", checkpoints.policy_folder(run / "rl/checkpoints/global_step_1"))
    assert [exported(), exported()] == [False, True]
    checkpoints.link_policy(run / "rl")  # more steps
    assert [exported(), exported()] == [False, True]
    assert [exported("policy=rl-best"), exported("policy=rl-best"), exported()] == [False, True, False]
    weights = run / "rl/policy/model.safetensors"
    weights.write_text("changed in place")
    assert [exported(), exported()] == [False, True]
    (run / "export/policy/export.json").unlink()  # the export was removed
    assert [exported(), exported()] == [False, True]


def test_the_policy_is_settled_as_the_folder_that_the_link_names(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    link = tmp_path / "policy"
    link.symlink_to(first)
    config = OmegaConf.create({"policy": "rl", "policy_path": str(link)})
    settle_policy("eval", config)
    os.replace(_other_link(tmp_path, second), link)
    assert config.policy_path == str(first)
    missing = OmegaConf.create({"policy": "rl", "run_dir": str(tmp_path), "policy_path": str(tmp_path / "none")})
    settle_policy("eval", missing)
    assert missing.policy_path == str(tmp_path / "none")
    newest = whole(tmp_path / "rl", 7)  # of an older version, which linked at the stage's end alone
    (tmp_path / "rl/policy").unlink()
    settle_policy("eval", missing)
    assert missing.policy_path == str(checkpoints.policy_folder(newest))


def _other_link(folder, target):
    (folder / "part").symlink_to(target)
    return folder / "part"


def test_edited_files_are_prepared_again(tmp_path):
    rows = [tmp_path / "mine.jsonl", tmp_path / "traces"]
    rows[0].write_text('{"question": "1 + 1?", "answer": "2"}\n')
    rows[1].mkdir()
    (rows[1] / "a.jsonl").write_text("{}\n")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Now: {question}")
    words = ["data=file", f"data.file.train={rows[0]}", f"data.file.sft={rows[1]}", f"data.prompt={prompt}"]
    config = compose("prepare", [*words, f"runs_dir={tmp_path}/r"])

    def record():
        parts = prepare.listed_parts(config.data)
        prepare._record(config, {part.folder: prepare._digests(prepare.inputs_of(part, config)) for part in parts})

    record()
    assert changed_input(config) is None
    for path, text in ((rows[0], "{}\n"), (rows[1] / "a.jsonl", "[]\n"), (prompt, "Well: {question}")):
        path.write_text(path.read_text() + text if path != prompt else text)
        assert changed_input(config) == f"{path} changed"
        record()
        assert changed_input(config) is None
    (rows[1] / "b.jsonl").write_text("{}\n")
    assert changed_input(config) == f"{rows[1] / 'b.jsonl'} changed"
    (rows[0]).unlink()
    assert changed_input(config) == f"{rows[0]} changed"


def test_problems_that_were_edited_after_they_were_prepared_are_refused(tmp_path, capsys):
    mine, prompt = tmp_path / "mine.jsonl", tmp_path / "prompt.txt"
    mine.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    prompt.write_text("Now: {question}")
    words = ["data=file", f"data.file.eval={mine}", f"data.prompt={prompt}", "name=x", f"runs_dir={tmp_path}"]
    read_evaluation(compose("prepare", words))
    config = compose("eval", [*words, "prepare=false"])
    check_prepared(config)
    check_prepared(compose("eval", ["data=file", "name=x", f"runs_dir={tmp_path}"]))  # names no file
    for path, text in ((mine, '{"question": "1 + 1?", "answer": "3"}\n'), (prompt, "Well: {question}")):
        before = path.read_text(), path.stat().st_mtime_ns
        path.write_text(text)
        with pytest.raises(UserError, match="has changed since `retool prepare` read it: run `retool prepare` again"):
            check_prepared(config)
        path.write_text(before[0])
        os.utime(path, ns=(before[1], before[1]))
        check_prepared(config)
    mine.unlink()
    check_prepared(config)
