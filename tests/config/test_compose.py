"""Composition over small trees of our own; the real files are in test_real_configs.py."""

from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from retool_mcore.config import compose, config_hash
from retool_mcore.config.overrides import parse
from retool_mcore.errors import UserError

FILES = {
    "base.yaml": """
defaults: [{recipe: retool}, _self_]
name: default
run_dir: runs/${name}
seed: 1
share: 0.5
flag: true
sources: [a, b]
limit: null
rollout: {max_turns: 2, total: "${add:${rollout.max_turns},3}"}
""",
    "prepare.yaml": "defaults: [base, _self_]\n",
    "sft.yaml": """
defaults: [base, _self_]
per_rank: ${divide:${verl.data.train_batch_size},2}
verl:
  data: {train_batch_size: 8, format: text}
  optim: {lr: 1.0e-5}
  engine:
    override_transformer_config: {masked_softmax_fusion: false}
""",
    "rl.yaml": """
defaults: [base, _self_]
verl:
  data: {max_prompt_length: 77}
  actor_rollout_ref: {actor: {clip_ratio_high: "${recipe.clip_high}"}}
""",
    "recipe/retool.yaml": "clip_high: 0.28\n",
    "recipe/dapo.yaml": "clip_high: 0.3\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "configs"


def refusal(tree: Path, stage: str, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        compose(stage, overrides, config_dir=tree)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_overrides_and_interpolations_are_resolved(tree):
    config = compose("prepare", ["name=other", "rollout.max_turns=5", "recipe=dapo", "sources=[c]"], config_dir=tree)
    assert (config.run_dir, config.rollout.total, config.sources) == ("runs/other", 8, ["c"])
    assert compose("rl", ["recipe=dapo"], config_dir=tree).recipe.clip_high == 0.3
    assert "${" not in OmegaConf.to_yaml(config)


def test_a_section_can_be_overridden_by_a_mapping(tree):
    assert compose("prepare", ["rollout={max_turns: 4}"], config_dir=tree).rollout.total == 7
    assert "rollout.max_turn;" in refusal(tree, "prepare", "rollout={max_turn: 4}")


def test_verl_defaults_lie_under_our_values(tree):
    config = compose("sft", config_dir=tree).verl
    assert config.optim.lr == 1.0e-5
    assert config.optim._target_ == "verl.workers.config.McoreOptimizerConfig"  # engine and optimizer are Megatron's
    assert config.engine.override_transformer_config.masked_softmax_fusion is False
    assert config.engine.override_transformer_config.attention_backend == "flash"  # verl's own, still there
    assert config.data.format == "text"


def test_verl_values_that_follow_others_follow_ours(tree):
    config = compose("rl", ["recipe=dapo", "verl.data.max_response_length=99"], config_dir=tree).verl
    assert config.actor_rollout_ref.rollout.prompt_length == 77
    assert config.actor_rollout_ref.rollout.response_length == 99
    assert config.actor_rollout_ref.actor.clip_ratio_high == 0.3
    assert config.actor_rollout_ref.actor.strategy == "megatron"


def test_a_verl_key_that_our_file_lacks_can_be_set(tree):
    assert compose("sft", ["verl.trainer.save_freq=7"], config_dir=tree).verl.trainer.save_freq == 7


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("rollout.max_turn=3", "rollout.max_turns"),
        ("max_turns=3", "rollout.max_turns"),
        ("naem=x", "name"),
        ("verl.optim.lrr=3", "verl.optim.lr"),
        ("verl.train_batch_size=3", "verl.data.train_batch_size"),
        ("verl.trainer.save_freqq=3", "verl.trainer.save_freq"),
        ("seed.x=3", "seed"),
    ],
)
def test_an_unknown_key_names_the_nearest(tree, override, named):
    key = override.split("=")[0]
    assert refusal(tree, "sft", override) == f"unknown key {key}; the nearest valid key is {named}."


def test_an_unknown_key_in_the_file_names_the_nearest(tree):
    (tree / "sft.yaml").write_text("defaults: [base, _self_]\nverl: {trainer: {save_freqq: 3}}\n")
    assert "verl.trainer.save_freqq; the nearest valid key is verl.trainer.save_freq." in refusal(tree, "sft")


def test_free_sections_take_any_key(tree):
    overrides = ["verl.engine.override_transformer_config.a=1", "+verl.engine.override_transformer_config.b=2"]
    free = compose("sft", overrides, config_dir=tree).verl.engine.override_transformer_config
    assert (free.a, free.b) == (1, 2)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=abc", "seed must be a number, not 'abc'."),
        ("seed=1.5", "seed must be a whole number, not 1.5."),
        ("seed=true", "seed must be a number, not True."),
        ("share=much", "share must be a number, not 'much'."),
        ("flag=1", "flag must be true or false, not 1."),
        ("rollout=3", "rollout must be a section (its keys are set one by one), not 3."),
        ("sources=a", "sources must be a list: [a,b], not 'a'."),
        ("verl.trainer.save_freq=often", "verl.trainer.save_freq must be a number, not 'often'."),
        ("verl.trainer=3", "verl.trainer must be a section (its keys are set one by one), not 3."),
    ],
)
def test_a_value_of_another_type_is_refused(tree, override, expected):
    assert refusal(tree, "sft", override) == expected


def test_values_that_fit_are_kept_as_typed(tree):
    overrides = ["share=1", "limit=30", "name=007", "seed=null", "verl.optim.lr=1e-4"]
    config = compose("sft", overrides, config_dir=tree)
    assert (config.share, config.limit, config.name, config.seed, config.verl.optim.lr) == (1, 30, "007", None, 1e-4)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("recipe=grpoo", "recipe has no choice 'grpoo'; choose one of: dapo, retool."),
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
        ("share=a(1)", "share must be a number, not 'a(1)'"),
        ("verl=3", "verl is a section"),
        ("name=${nothing}", "Interpolation key 'nothing' not found"),
    ],
)
def test_a_bad_override_is_one_sentence(tree, override, words):
    assert words in refusal(tree, "sft", override)


TEXTS = (
    "数据.jsonl", "a#1.jsonl", "a(1).jsonl", "a=1.jsonl", "a==1", "a b.jsonl", "it's.jsonl", '5" disks.jsonl', "é.csv",
    """it's 5".jsonl""", "'a.jsonl", '"a.jsonl', "a&b;c|d>e<f!g^h`i", "a%20b.jsonl", "a]b}.jsonl", "a(b", "(", "a~b",
    "back\\slash\\", "a#\\", 'a#\\"b', "a'b\\", "~nobody-of-that-name/a#1.jsonl", "$5.jsonl", "\U0001f600",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_value_that_the_grammar_cannot_read_is_a_text(tree, text):
    (value,) = parse([f"x={text}"], tree)[1]
    assert (value.key, value.value, value.text) == ("x", text, text)
    if not {",", "'", '"', "]", "}"} & set(text) and not text.endswith("\\"):
        (value,) = parse([f"x=[{text},{{path: {text}, n: 2}}, 'q, r']"], tree)[1]
        assert value.value == [text, {"path": text, "n": 2}, "q, r"]


def test_a_quoted_text_keeps_what_a_list_would_divide(tree):
    (value,) = parse(["x='a,b[1].jsonl'"], tree)[1]
    assert value.value == "a,b[1].jsonl"


def test_the_home_folder_stands_for_its_sign(tree, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    for text in ("~/a.jsonl", "'~/a.jsonl'", "~/数据 (1).jsonl"):
        wanted = "/home/me/" + text.strip("'").removeprefix("~/")
        assert [value.value for value in parse([f"x={text}"], tree)[1]] == [wanted]
    (value,) = parse(["x=[~/a#1,{path: ~/b, name: c},~]"], tree)[1]
    assert value.value == ["/home/me/a#1", {"path": "/home/me/b", "name": "c"}, "/home/me"]


def test_a_model_in_the_home_folder_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "模型 (1)").mkdir()
    config = compose("prepare", ["model=~/模型 (1)"])
    assert config.model.path == str(tmp_path / "模型 (1)")


def test_a_stage_without_a_verl_section_takes_no_verl_key(tree):
    assert refusal(tree, "prepare", "verl.x=1") == "verl.x: the stage prepare has no verl section."


def test_a_group_that_the_stage_does_not_read(tree):
    (tree / "eval.yaml").write_text("name: x\n")
    message = refusal(tree, "eval", "recipe=dapo")
    assert message == "the stage eval has no group recipe; its groups are: none."


def test_a_missing_value_is_named(tree):
    (tree / "prepare.yaml").write_text("defaults: [base, _self_]\nfolder: ???\n")
    assert refusal(tree, "prepare") == "no value for folder: give it as an override, KEY=VALUE."
    assert compose("prepare", ["folder=x"], config_dir=tree).folder == "x"


def test_an_unknown_stage(tree):
    assert "no configuration export.yaml" in refusal(tree, "export")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("${add:1,2,3}", 6),
        ("${multiply:3,4}", 12),
        ("${divide:12,4}", 3),
        ("${abspath:/a/../b}", "/b"),
    ],
)
def test_resolvers(tree, expression, value):
    (tree / "prepare.yaml").write_text(f"x: {expression}\n")
    assert compose("prepare", config_dir=tree).x == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("${divide:7,2}", "7 is not a multiple of 2"),
        ("${divide:7,0}", "7 is not a multiple of 0"),
    ],
)
def test_resolvers_refuse(tree, expression, reason):
    (tree / "prepare.yaml").write_text(f"x: {{y: '{expression}'}}\n")
    message = refusal(tree, "prepare")
    assert message.startswith("the value of x.y cannot be worked out: ") and reason in message


def test_a_division_that_an_override_breaks(tree):
    assert compose("sft", config_dir=tree).per_rank == 4
    assert "7 is not a multiple of 2" in refusal(tree, "sft", "verl.data.train_batch_size=7")


def test_hydra_state_is_left_as_it_was(tree):
    before = GlobalHydra.instance().hydra
    compose("sft", ["recipe=dapo"], config_dir=tree)
    refusal(tree, "sft", "recipe=x")
    assert GlobalHydra.instance().hydra is before


def test_verl_defaults_do_not_remember_an_earlier_call(tree):
    compose("sft", ["verl.optim.lr=0.5", "verl.engine.override_transformer_config.a=1"], config_dir=tree)
    config = compose("sft", config_dir=tree).verl
    assert config.optim.lr == 1.0e-5 and "a" not in config.engine.override_transformer_config


def test_hash_tells_configurations_apart(tree):
    same = [config_hash(compose("sft", config_dir=tree)) for _ in range(2)]
    assert same[0] == same[1] != config_hash(compose("sft", ["seed=2"], config_dir=tree))
