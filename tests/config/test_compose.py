"""How a configuration is composed: defaults of the classes, presets, overrides, verl's defaults."""

import shutil
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from retool_mcore.config import CONFIG_DIR, compose, config_hash
from retool_mcore.config.load import resolve
from retool_mcore.config.models import Rl
from retool_mcore.config.overrides import parse
from retool_mcore.errors import UserError


def refusal(stage: str, *overrides: str, config_dir: Path = CONFIG_DIR) -> str:
    with pytest.raises(UserError) as error:
        compose(stage, overrides, config_dir=config_dir)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    """A copy of the presets, to be changed."""
    for group in ("model", "parallel", "toolbox", "data", "sandbox", "recipe", "pipeline", "correction", "environment"):
        shutil.copytree(CONFIG_DIR / group, tmp_path / "configs" / group)
    return tmp_path / "configs"


def test_overrides_and_references_are_resolved():
    config = compose("prepare", ["name=other", "runs_dir=/x", "rollout.max_response_tokens=5000", "data=math"])
    assert (config.run_dir, config.rollout.max_turn_tokens) == ("/x/other", 5000)
    assert config.data.train_files == "/x/other/data/dapo_math_17k/train.parquet"
    assert "${" not in OmegaConf.to_yaml(config)
    assert compose("rl", ["recipe=dapo", "recipe.max_turns=${seed}"]).rollout.max_turns == 1


def test_the_typed_configuration_has_the_same_values():
    plain, typed, _ = resolve("rl", ["recipe=dapo", "train.lr=2e-6"])
    assert isinstance(typed, Rl)
    assert typed.train.lr == plain["train"]["lr"] == 2e-6 and typed.recipe.critic.lr == pytest.approx(1e-5)
    assert typed.recipe.lambda_ == plain["recipe"]["lambda"] == 1.0


def test_a_section_can_be_overridden_by_a_mapping():
    rollout = compose("prepare", ["rollout={max_turns: 4, error_lines: 3}"]).rollout
    assert (rollout.max_turns, rollout.error_lines) == (4, 3)
    assert "rollout.max_turn;" in refusal("prepare", "rollout={max_turn: 4}")


def test_a_preset_starts_from_others_and_chooses_other_groups(presets):
    (presets / "parallel" / "mine.yaml").write_text("defaults: [cpu-pp2]\nmax_num_seqs: 8\n")
    (presets / "parallel" / "earlier.yaml").write_text("defaults: [/parallel_base@_here_, cpu-pp2, _self_]\ntp: 1\n")
    mine, earlier = (compose("prepare", [f"parallel={name}"], presets).parallel for name in ("mine", "earlier"))
    assert (mine.pp, mine.max_num_seqs, mine.rollout.weight_bucket_mb, earlier.pp) == (2, 8, 16, 2)
    (presets / "data" / "mine.yaml").write_text("defaults: [arithmetic, {toolbox: replay}]\nname: mine\n")
    assert compose("prepare", ["data=mine"], presets).toolbox.use[0].path.endswith("ReplayTable")
    assert compose("prepare", ["data=mine", "toolbox=code"], presets).toolbox.use[0].path.endswith("CodeInterpreter")


def test_an_unknown_key_in_a_preset_names_the_nearest(presets):
    (presets / "recipe" / "mine.yaml").write_text("name: mine\npaper: none\nfilters: {all_equals: true}\n")
    message = "unknown key recipe.filters.all_equals in a preset; the nearest valid key is recipe.filters.all_equal."
    assert refusal("rl", "recipe=mine", config_dir=presets) == message


def test_a_function_in_a_preset_is_refused(presets):
    (presets / "recipe" / "mine.yaml").write_text("name: mine\npaper: none\nbatch: ${or:${data.rl.batch},512}\n")
    message = refusal("rl", "recipe=mine", config_dir=presets)
    assert message.startswith("the value of recipe.batch cannot be worked out: ${or:${data.rl.batch},512} holds a ref")


def test_a_broken_preset_is_named(presets):
    (presets / "recipe" / "mine.yaml").write_text("a: [1\n")
    assert "recipe/mine.yaml cannot be read" in refusal("rl", "recipe=mine", config_dir=presets)


def test_verl_defaults_lie_under_our_values():
    config = compose("sft").verl
    assert config.optim.lr == 2e-3
    assert config.optim._target_ == "verl.workers.config.McoreOptimizerConfig"  # engine and optimizer are Megatron's
    assert config.engine.override_transformer_config.masked_softmax_fusion is False
    assert config.engine.override_transformer_config.recompute_num_layers is None  # verl's own, still there
    assert config.engine.use_distributed_optimizer is True
    assert config.data.format == "text"


def test_verl_values_that_follow_others_follow_ours():
    config = compose("rl", ["recipe=dapo", "verl.data.max_response_length=99"]).verl
    assert config.actor_rollout_ref.rollout.prompt_length == 64
    assert config.actor_rollout_ref.rollout.response_length == 99
    assert config.actor_rollout_ref.actor.clip_ratio_high == 0.28
    assert config.actor_rollout_ref.actor.strategy == "megatron"


def test_a_verl_key_can_be_set_and_follow_ours():
    config = compose("sft", ["verl.trainer.save_freq=7", "verl.trainer.test_freq=${train.batch}"])
    assert (config.verl.trainer.save_freq, config.verl.trainer.test_freq) == (7, 32)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("rollout.max_turn=3", "rollout.max_turns"),
        ("eval_ever=3", "train.eval_every"),
        ("naem=x", "name"),
        ("verl.optim.lrr=3", "verl.optim.lr"),
        ("verl.train_batch_size=3", "verl.data.train_batch_size"),
        ("verl.trainer.save_freqq=3", "verl.trainer.save_freq"),
        ("seed.x=3", "seed"),
    ],
)
def test_an_unknown_key_names_the_nearest(override, named):
    key = override.split("=")[0]
    assert refusal("sft", override) == f"unknown key {key}; the nearest valid key is {named}."


def test_free_sections_take_any_key():
    section = "parallel.megatron.override_transformer_config"
    verl = compose("sft", [f"{section}.a=1", f"+{section}.b=2"]).verl.engine.override_transformer_config
    assert (verl.a, verl.b) == (1, 2)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=abc", "seed must be a number, not 'abc'."),
        ("seed=1.5", "seed must be a whole number, not 1.5."),
        ("seed=true", "seed must be a number, not True."),
        ("train.lr=much", "train.lr must be a number, not 'much'."),
        ("predict_observations=1", "predict_observations must be true or false, not 1."),
        ("rollout=3", "rollout must be a section (its keys are set one by one), not 3."),
        ("train.loggers=a", "train.loggers must be a list: [a,b], not 'a'."),
        ("verl.trainer.save_freq=often", "verl.trainer.save_freq must be a number, not 'often'."),
        ("verl.trainer=3", "verl.trainer must be a section (its keys are set one by one), not 3."),
    ],
)
def test_a_value_of_another_type_is_refused(override, expected):
    assert refusal("sft", override) == expected


def test_values_that_fit_are_kept_as_typed():
    overrides = ["train.weight_decay=1", "data.curriculum.retire=30", "name=007", "seed=null", "train.lr=1e-4"]
    config = compose("sft", overrides)
    found = (config.train.weight_decay, config.data.curriculum.retire, config.name, config.seed, config.train.lr)
    assert found == (1, 30, "007", None, 1e-4)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("recipe=grpoo", "recipe has no choice 'grpoo'; choose one of: artist, "),
        ("recipe=dapo,retool", "several values"),
        ("recipe@x=dapo", "not supported"),
        ("+new.key=1", "+new.key would add a key that nothing reads"),
        ("++new=1", "+new would add a key that nothing reads"),
        ("+verl.trainer.new=1", "+verl.trainer.new would add"),
        ("~name", "cannot be deleted"),
        ("name", "cannot read the override 'name': write key=value"),
        ("=3", "cannot read the override '=3'"),
        ("name=[a", "cannot read the override 'name=[a': its value opens a list or a section"),
        ("name={a: [b}", "its value opens a list or a section"),
        ("name=[draft].jsonl", "the whole, where it is a text: 'name=\"[draft].jsonl\"'"),
        ("name=a#1,b", "several values"),
        ("train.lr=a(1)", "train.lr must be a number, not 'a(1)'"),
        ("verl=3", "verl is a section"),
        ("name=${nothing}", "the value of name cannot be worked out: Interpolation key 'nothing' not found."),
        ("name=${run_dir}", "the value of run_dir cannot be worked out: it follows itself by run_dir, name."),
        ("train.batch=${divide:8,2}", "cannot be worked out: Interpolation key 'divide:8,2' not found."),
        ("train.lr=null", "train.lr=null: expected a number."),
    ],
)
def test_a_bad_override_is_one_sentence(override, words):
    assert words in refusal("rl", override)


TEXTS = (
    "数据.jsonl", "a#1.jsonl", "a(1).jsonl", "a=1.jsonl", "a==1", "a b.jsonl", "it's.jsonl", '5" disks.jsonl', "é.csv",
    """it's 5".jsonl""", "'a.jsonl", '"a.jsonl', "a&b;c|d>e<f!g^h`i", "a%20b.jsonl", "a]b}.jsonl", "a(b", "(", "a~b",
    "back\\slash\\", "a#\\", 'a#\\"b', "a'b\\", "~nobody-of-that-name/a#1.jsonl", "$5.jsonl", "\U0001f600",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_value_that_the_grammar_cannot_read_is_a_text(text):
    (value,) = parse([f"x={text}"], CONFIG_DIR)[1]
    assert (value.key, value.value, value.text) == ("x", text, text)
    if not {",", "'", '"', "]", "}"} & set(text) and not text.endswith("\\"):
        (value,) = parse([f"x=[{text},{{path: {text}, n: 2}}, 'q, r']"], CONFIG_DIR)[1]
        assert value.value == [text, {"path": text, "n": 2}, "q, r"]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (
            '[{"family": "gcd", "most": {"value": 5, "low": null}}]',
            [{"family": "gcd", "most": {"value": 5, "low": None}}],
        ),
        ('{"a-b": true, "text": "a, [b] \\"q\\""}', {"a-b": True, "text": 'a, [b] "q"'}),
        ('["x", 1.5]', ["x", 1.5]),
    ],
)
def test_a_list_or_a_section_may_be_written_as_json(value, read):
    _, (found,) = parse([f"key={value}"], CONFIG_DIR)
    assert found.value == read


def test_a_quoted_text_keeps_what_a_list_would_divide():
    (value,) = parse(["x='a,b[1].jsonl'"], CONFIG_DIR)[1]
    assert value.value == "a,b[1].jsonl"


def test_the_home_folder_stands_for_its_sign(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    for text in ("~/a.jsonl", "'~/a.jsonl'", "~/数据 (1).jsonl"):
        wanted = "/home/me/" + text.strip("'").removeprefix("~/")
        assert [value.value for value in parse([f"x={text}"], CONFIG_DIR)[1]] == [wanted]
    (value,) = parse(["x=[~/a#1,{path: ~/b, name: c},~]"], CONFIG_DIR)[1]
    assert value.value == ["/home/me/a#1", {"path": "/home/me/b", "name": "c"}, "/home/me"]


def test_a_model_in_the_home_folder_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "模型 (1)").mkdir()
    config = compose("prepare", ["model=~/模型 (1)"])
    assert config.model.path == str(tmp_path / "模型 (1)")


def test_a_stage_without_a_verl_section_takes_no_verl_key():
    assert refusal("prepare", "verl.x=1") == "verl.x: the stage prepare has no verl section."


def test_a_group_that_the_stage_does_not_read():
    message = refusal("export", "recipe=dapo")
    assert message == "the stage export has no group recipe; its groups are: data, model, parallel, sandbox, toolbox."


def test_a_missing_value_is_named(presets):
    (presets / "parallel" / "mine.yaml").write_text("device: cpu\nmicro_batch_tokens: 1\ngpu_memory_utilization: 0.1\n")
    key = "parallel.rollout.max_num_batched_tokens"
    message = refusal("prepare", "parallel=mine", config_dir=presets)
    assert message == f"no value for {key}: give it as an override, KEY=VALUE."
    assert compose("prepare", ["parallel=mine", f"{key}=512"], presets).parallel.rollout.max_num_batched_tokens == 512


def test_a_key_that_the_data_set_does_not_have():
    message = refusal("sft", "data=environment")
    assert message == "the value of train.batch cannot be worked out: this configuration has no data.sft.batch."


def test_an_unknown_stage():
    assert refusal("train").startswith("there is no stage train; the stages are: prepare, sft, rl")


def test_a_batch_that_its_mini_batches_do_not_divide():
    assert compose("rl", ["data.rl.batch=8"]).train.mini_batch == 2
    assert "data.rl.mini_batch cannot be worked out: 7 is not a multiple of 4" in refusal("rl", "data.rl.batch=7")
    assert "7 is not a multiple of 2" in refusal("rl", "pipeline=async", "train.batch=7", "train.mini_batch=2")


def test_hydra_state_is_left_as_it_was():
    before = GlobalHydra.instance().hydra
    compose("sft")
    refusal("sft", "verl.x=1")
    assert GlobalHydra.instance().hydra is before


def test_verl_defaults_do_not_remember_an_earlier_call():
    compose("sft", ["verl.optim.lr=0.5", "verl.model.override_config.a=1"])
    config = compose("sft").verl
    assert config.optim.lr == 2e-3 and "a" not in config.model.override_config


def test_hash_tells_configurations_apart():
    same = [config_hash(compose("sft")) for _ in range(2)]
    assert same[0] == same[1] != config_hash(compose("sft", ["seed=2"]))
