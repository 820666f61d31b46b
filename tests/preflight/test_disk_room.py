"""Room on the disk at a first start and at requeues, of a chain of stages and of an export."""

import shutil
from types import SimpleNamespace

import pytest
from refused import refusal

from retool_mcore.config import compose
from retool_mcore.preflight import disk, machine
from retool_mcore.state import checkpoints

PARAMETERS = 32_763_876_352
CHECKPOINT = 14 * PARAMETERS  # 459 GB: bfloat16 weights, float32 weights and two moments
BIG = ["model=qwen2.5-32b", "parallel=2x8-80g", "data=math", "model.path=/shared/m"]


@pytest.fixture
def big_run(tmp_path, monkeypatch):
    """A run of the 32B model on storage of 1.9 TB, of which its whole checkpoints take their full size."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1.9e12 - used[0]))
    used = [0.0]

    def start(stage, *words, whole=0, half=0.0, sft=0):
        """whole: checkpoints of the stage; half: bytes of one that a killed trainer left; sft: checkpoints of SFT."""
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        for name, count in ((stage, whole), ("sft", sft)):
            for step in range(count):
                made(tmp_path / "run" / name, step + 1)
        if half:
            (tmp_path / "run" / stage / "checkpoints" / "global_step_99").mkdir(parents=True)
        used[0] = (whole + sft) * CHECKPOINT + half
        monkeypatch.setattr(checkpoints, "folder_bytes", sized(half))
        config = compose(stage, [f"runs_dir={tmp_path}", "name=run", *BIG, *words])
        disk.check_checkpoints(stage, config, PARAMETERS)

    return start


def sized(half):
    def size(folder):
        if folder.name == "global_step_99":
            return half
        return CHECKPOINT * 6 / 7 if folder.name == "optimizer" else 0

    return size


def made(stage_dir, step):
    folder = stage_dir / "checkpoints" / f"global_step_{step}"
    (folder / "model" / "huggingface").mkdir(parents=True)
    (folder / "optimizer").mkdir()
    checkpoints.mark_complete(folder)
    (stage_dir / "COMPLETE").touch()


@pytest.mark.parametrize("stage", ["sft", "rl"])
@pytest.mark.parametrize("whole", [0, 1, 2, 3])
def test_what_is_there_counts_at_a_requeue(big_run, stage, whole):
    """2 last, the best and one that is written: 1.84 TB, whatever of it lies there already."""
    big_run(stage, whole=whole)


def test_the_half_checkpoint_of_a_killed_trainer_is_room(big_run):
    """It is removed before the trainer starts."""
    for whole in (0, 1, 2, 3):
        big_run("rl", whole=whole, half=0.9 * CHECKPOINT)


def test_more_checkpoints_than_stay_are_no_more_room(big_run):
    assert "lower train.keep_checkpoints" in refusal(big_run, "rl", "train.keep_checkpoints=1", whole=4)


def test_room_that_lacks_is_refused_with_what_would_make_some(big_run):
    message = refusal(big_run, "rl", sft=3)
    assert "the run needs about 1709.8 GiB" in message and "train.thin_sft=true, which removes 1098.5 GiB" in message
    assert "thin_sft" not in refusal(big_run, "rl", "train.keep_checkpoints=3")
    assert "thin_sft" not in refusal(big_run, "sft", "train.keep_checkpoints=3")
    message = refusal(big_run, "rl", "train.thin_sft=true", sft=3)
    assert "needs about 611.3 GiB" in message and "thin_sft" not in message  # 196 GB of policies, 1.84 TB of RL's
    big_run("rl", "train.thin_sft=true", "train.keep_checkpoints=1", sft=3)


def test_thinning_needs_the_room_of_one_before_anything_goes(big_run):
    assert "needs about 428.2 GiB" in refusal(
        big_run, "rl", "train.thin_sft=true", "train.keep_checkpoints=1", "train.keep_best=null", sft=4
    )


def test_size_follows_dtype_adapters_and_a_critic():
    for words, size in (([], 14), (["model.dtype=float32", "parallel=cpu-1"], 16), (["model.lora.rank=8"], 2)):
        config = compose("rl", [*BIG, *words])
        assert disk.checkpoint_bytes(config, 1000) == 1000 * size
    assert disk.checkpoint_bytes(compose("rl", [*BIG, "recipe.advantage=gae"]), 1000) == 2 * 14000


@pytest.mark.parametrize("dtype, size", [("bfloat16", 65.5e9), ("float32", 131e9)])
def test_an_export_needs_the_weights_alone_where_it_writes_them(tmp_path, monkeypatch, dtype, size):
    free = {"": 0.0}
    monkeypatch.setattr(machine, "free_bytes", lambda folder: free[""] if str(folder) == "/other/it" else 0.0)
    config = compose("export", [f"runs_dir={tmp_path}", *BIG, f"model.dtype={dtype}", "output=/other/it"])
    free[""] = size + 2e9
    disk.check_export(config, PARAMETERS)
    free[""] = size
    message = refusal(disk.check_export, config, PARAMETERS)
    assert message.startswith("output /other/it has") and "give another output=FOLDER" in message


def test_a_chain_is_the_most_that_lies_there_at_a_time():
    def chain(*words):
        configs = {"sft": compose("sft", BIG), "rl": compose("rl", [*BIG, *words])}
        return disk.chain_line(configs, PARAMETERS)

    assert "3,211 GB, with 1,376 GB that stay of sft; train.thin_sft=true saves 1,179 GB" in chain()
    thinned = chain("train.thin_sft=true")
    assert "2,031 GB, with 197 GB that stay of sft once" in thinned and "saves" not in thinned
    few = ["train.thin_sft=true", "train.keep_checkpoints=1", "train.keep_best=null"]
    assert "one after the other: 1,835 GB, with" in chain(*few), "what SFT had, and then has with one of RL's"
