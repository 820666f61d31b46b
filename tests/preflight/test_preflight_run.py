"""Whole stages on the embedded task, prepared as `retool prepare` does but small: good runs pass, bad ones do not."""

import functools
import pickle
import shutil

import pytest
from families import FAMILIES, write_family
from omegaconf import OmegaConf

from retool_mcore import resources
from retool_mcore.config import compose
from retool_mcore.config.models.run import template_text
from retool_mcore.errors import UserError
from retool_mcore.preflight import machine, memory, run
from retool_mcore.train import prepare

pytestmark = pytest.mark.usefixtures("one_start_of_each_sandbox")

SIZES = ["data.arithmetic.sft=96", "data.arithmetic.train=40", "data.arithmetic.validation=40"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A run folder after prepare, with the fresh model standing in for the SFT result."""
    runs = tmp_path_factory.mktemp("runs")
    prepare.run(compose("prepare", [f"runs_dir={runs}", "name=good", *SIZES]))
    (runs / "good" / "sft").mkdir()
    (runs / "good" / "sft" / "policy").symlink_to(runs / "good" / "model")
    return runs / "good"


@pytest.fixture(scope="module")
def family_folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {name: write_family(folder / name, name) for name in FAMILIES}


@pytest.fixture(autouse=True)
def _large_machine(monkeypatch):
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 64 * machine.GIB)


@functools.cache
def composed(stage, *overrides):
    return pickle.dumps(compose(stage, overrides))


GROUPS = ("parallel=", "sandbox=", "policy=", "pipeline=")


def config(stage, folder, *overrides):
    """What other values follow from is composed; plain values are set afterwards, which is quicker."""
    groups = [override for override in overrides if override.startswith(GROUPS)]
    values = [override for override in overrides if override not in groups]
    base = pickle.loads(composed(stage, f"runs_dir={folder.parent}", f"name={folder.name}", *groups))
    return OmegaConf.unsafe_merge(base, OmegaConf.from_dotlist(values))


STAGES = {"sft": run.check_sft_stage, "rl": run.check_rl_stage, "eval": run.check_eval_stage}


def refusal(stage, folder, *overrides) -> str:
    with pytest.raises(UserError) as caught:
        STAGES[stage](config(stage, folder, *overrides))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("stage", "overrides"),
    [
        ("sft", []),
        ("sft", ["parallel=cpu-pp2", "rollout.format=none", "train.steps=null", "train.warmup_steps=0"]),
        ("sft", ["train.batch=50"]),  # more than the 40 rows of the validation, which need fill no batch
        ("rl", []),
        ("rl", ["parallel=cpu-pp2", "rollout.format=none"]),
        ("rl", ["parallel=cpu-1"]),
        ("eval", ["policy=init"]),
        ("eval", ["policy=sft"]),
    ],
)
def test_the_embedded_task_passes(prepared, stage, overrides):
    STAGES[stage](config(stage, prepared, *overrides))


@pytest.mark.parametrize(
    ("stage", "overrides", "words"),
    [
        ("sft", ["data.sft_train_files=/nowhere/x.parquet"], ["/nowhere/x.parquet"]),
        ("sft", ["train.batch=60"], ["data.sft_train_files holds 56 rows", "train.batch=60"]),
        ("sft", ["train.steps=null"], ["train.warmup_steps=20", "1 steps"]),
        ("sft", ["init_from=/nowhere/model"], ["init_from", "/nowhere/model", "retool prepare"]),
        ("sft", ["parallel.tp=3"], ["parallel.tp=3", "attention heads"]),
        ("sft", ["train.max_length=100000"], ["train.max_length=100000"]),
        ("sft", ["data.prompt=retool", "rollout.format=hermes"], ["data.prompt=retool"]),
        ("rl", ["init_from=/nowhere/model"], ["init_from", "retool sft"]),
        ("rl", ["train.batch=41", "train.mini_batch=41"], ["data.train_files holds 40 rows"]),
        ("rl", ["rollout.max_response_tokens=100000"], ["positions"]),
        ("rl", ["parallel.rollout_tp=4"], ["parallel.rollout_tp=4"]),
        ("rl", ["verl.actor_rollout_ref.rollout.quantization=fp8"], ["rollout.quantization=fp8 cannot be used"]),
        ("rl", ["rollout.max_prompt_tokens=5"], ["row", "rollout.max_prompt_tokens=5"]),
        ("rl", ["data.prompt=hermes"], ["data.prompt=hermes", "rollout.format=text"]),
        ("eval", ["policy=rl"], ["policy=rl", "retool rl"]),
        ("eval", ["policy=/nowhere"], ["policy=/nowhere"]),
        ("eval", ["policy=init", "data.validation_files=[]"], ["data.validation_files names no file"]),
        ("eval", ["policy=init", "rollout.max_prompt_tokens=5"], ["data.validation_files", "row"]),
    ],
)
def test_bad_input_is_refused_with_one_sentence(prepared, stage, overrides, words):
    message = refusal(stage, prepared, *overrides)
    assert all(word in message for word in words), message


FORMS = {"text": ["data.prompt=tiny"], "hermes": ["data.prompt=tiny", "rollout.format=hermes"]}


@pytest.mark.parametrize("stage", ["sft", "rl", "eval"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_with_its_groups_template(prepared, family_folders, family, form, stage):
    text = template_text(FAMILIES[family].ours)
    base = config(stage, prepared, *FORMS[form], *(["policy=init"] if stage == "eval" else []))
    base.policy_path = base.init_from = str(family_folders[family])
    base.rollout.max_prompt_tokens = 1900  # bytes are tokens here, and hermes lists its tool
    base.rollout.max_response_tokens = 100
    base.rollout.max_observation_tokens = base.rollout.max_turn_tokens = 50
    base.parallel.rollout.max_num_batched_tokens = 8192
    base.rollout.chat_template = text
    STAGES[stage](base)
    if family in ("qwen3", "mistral"):
        base.rollout.chat_template = None
        with pytest.raises(UserError, match="generation prompt"):
            STAGES[stage](base)


@pytest.mark.parametrize("stage", ["sft", "rl", "eval"])
def test_template_arguments_reach_every_stage(prepared, family_folders, stage):
    """Of Qwen3's own template only enable_thinking=false can be appended to, so that without it preflight refuses."""
    base = config(stage, prepared, *(["policy=init"] if stage == "eval" else []))
    base.policy_path = base.init_from = str(family_folders["qwen3"])
    base.rollout.max_prompt_tokens = 300
    base.model.apply_chat_template_kwargs = {"enable_thinking": False}
    STAGES[stage](base)
    base.model.apply_chat_template_kwargs = {}
    with pytest.raises(UserError, match="generation prompt"):
        STAGES[stage](base)


def test_a_prompt_counts_with_what_the_template_prefills(prepared, family_folders):
    base = config("rl", prepared)
    base.init_from = str(family_folders["qwen3"])
    base.rollout.chat_template = template_text("chatml")
    lengths = []
    for arguments in ({}, {"enable_thinking": False}):
        base.model.apply_chat_template_kwargs = arguments
        base.rollout.max_prompt_tokens = 5
        with pytest.raises(UserError) as caught:
            STAGES["rl"](base)
        lengths.append(int(str(caught.value).split(" has ")[1].split()[0]))
    assert lengths[1] - lengths[0] == len("\n\n\n\n") + 2  # four line breaks, and two tags of one token each


@pytest.mark.parametrize("stage", ["rl", "eval"])
def test_a_sandbox_that_is_down_is_refused_unless_none_is_needed(prepared, stage):
    policy = ["policy=init"] if stage == "eval" else []
    # Port 9 (discard) of this machine: nothing listens there.
    down = ["sandbox=fusion", "sandbox.url=http://127.0.0.1:9/run_code", *policy]
    assert "andbox" in refusal(stage, prepared, *down)
    STAGES[stage](config(stage, prepared, "rollout.format=none", *down))


def test_data_for_another_stage_names_the_missing_column(prepared):
    message = refusal("rl", prepared, f"data.train_files={prepared}/data/sft_train.parquet")
    assert "reward_model" in message or "ability" in message


def test_a_policy_without_a_tokenizer_is_refused(prepared, tmp_path):
    shutil.copytree(prepared / "model", tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refusal("rl", prepared, f"init_from={tmp_path}/bare")


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_weights_are_asked_for_where_they_are_read(prepared, tmp_path, stage):
    shutil.copytree(prepared / "model", tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").unlink()
    init = f"init_from={tmp_path}/bare"
    unsaved = ["train.save_every=-1"] if stage == "rl" else []
    STAGES[stage](config(stage, prepared, init, "model.init=random", *unsaved))
    assert "no model.safetensors" in refusal(stage, prepared, init)
    if stage == "rl":
        assert "train.save_every=-1" in refusal(stage, prepared, init, "model.init=random")
        ppo = ["recipe.advantage=gae", "model.init=random", *unsaved]
        assert "no model.safetensors" in refusal(stage, prepared, init, *ppo)


def test_rollouts_ahead_need_devices_of_their_own(prepared, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ahead = ["pipeline=one_step_off"]
    STAGES["rl"](config("rl", prepared, *ahead))
    message = refusal("rl", prepared, *ahead, "parallel.ray.num_gpus=2")
    assert "trainer's 2" in message and "parallel.ray.num_gpus gives 2" in message
    monkeypatch.setattr(machine, "gpu_memory_bytes", lambda: [None, None])
    gpus = ["parallel.device=cuda", "model.dtype=bfloat16"]
    assert "nvidia-smi lists 2" in refusal("rl", prepared, *ahead, *gpus)
    one = ["parallel.gpus_per_node=1", "parallel.tp=1", "parallel.sequence_parallel=false"]
    STAGES["rl"](config("rl", prepared, *ahead, *gpus, *one))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    STAGES["rl"](config("rl", prepared, *ahead, *gpus))


def test_the_models_beside_the_policy_are_counted(prepared, monkeypatch):
    seen = []
    monkeypatch.setattr(machine, "gpu_memory_bytes", lambda: [80 * machine.GIB])
    monkeypatch.setattr(memory, "check_update", lambda *args, **kwargs: seen.append(kwargs))
    gpu = ["parallel.device=cuda", "model.dtype=bfloat16"]
    STAGES["rl"](config("rl", prepared, *gpu, "recipe.advantage=gae"))
    monkeypatch.setattr(machine, "gpu_memory_bytes", lambda: [80 * machine.GIB] * 3)
    ahead = ["pipeline=one_step_off"]
    STAGES["rl"](config("rl", prepared, *gpu, *ahead, "recipe.kl_loss=true"))
    wanted = [(kwargs["critic"], kwargs["reference"], kwargs["engine"]) for kwargs in seen]
    assert wanted == [(True, False, True), (False, True, False)]


def test_an_a100_is_refused_before_it_is_taken_and_a_plan_is_told(prepared, monkeypatch, capsys):
    gpu = ["parallel.device=cuda", "model.dtype=bfloat16"]
    fused = [*gpu, "parallel.megatron.override_transformer_config.attention_backend=fused"]
    STAGES["rl"](config("rl", prepared, *fused))
    assert "plan: fits 1 x 2 H100-80" in capsys.readouterr().out
    assert "compute capability 8" in refusal("rl", prepared, *fused, "parallel.gpu=A100-80")
    monkeypatch.setattr(machine, "compute_capabilities", lambda: [8.0, 9.0])
    assert "compute capability 8" in refusal("sft", prepared, *fused)
    flash = [*gpu, "parallel.megatron.override_transformer_config.attention_backend=flash"]
    assert "needs flash-attn" in refusal("sft", prepared, *flash)


def test_export_needs_a_stage_that_was_run(prepared):
    run.check_export_stage(config("export", prepared, "policy=sft"))
    with pytest.raises(UserError, match="retool rl"):
        run.check_export_stage(config("export", prepared, "policy=rl"))
    with pytest.raises(UserError, match="only the checkpoints of sft and rl"):
        run.check_export_stage(config("export", prepared, "policy=init"))


def test_check_looks_at_the_machine_first(prepared, monkeypatch):
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 2 * machine.GIB)
    with pytest.raises(UserError, match="2.0 GiB"):
        run.check("sft", config("sft", prepared))
    run.check("prepare", config("prepare", prepared))
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 16 * machine.GIB)
    run.check("sft", config("sft", prepared))
    gpu = config("sft", prepared)
    OmegaConf.update(gpu, "parallel.device", "cuda")
    OmegaConf.update(gpu, "parallel.gpus_per_node", 1000)
    with pytest.raises(UserError, match="parallel.gpus_per_node=1000"):
        run.check("sft", gpu)


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_node_without_memory_for_a_gpu_run_is_refused(prepared, monkeypatch, stage):
    gpu = ["parallel.device=cuda", "model.dtype=bfloat16"]
    STAGES[stage](config(stage, prepared, *gpu))
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 12 * machine.GIB)
    assert "12 GiB are available" in refusal(stage, prepared, *gpu)
