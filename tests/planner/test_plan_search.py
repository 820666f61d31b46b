"""Search, table, written configuration and the command line."""

import io
import re
from dataclasses import replace

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from retool_mcore.cli import plan as command
from retool_mcore.config import CONFIG_DIR, compose
from retool_mcore.errors import UserError
from retool_mcore.planner import MACHINES, SHAPES, Batch, Layout, parallel, search
from retool_mcore.planner.machine import find_machine
from retool_mcore.planner.memory import GIB
from retool_mcore.planner.search import Problem
from retool_mcore.planner.settings import switches
from retool_mcore.planner.table import check_target, config_text, print_plans

MACHINE = replace(MACHINES["H100-80"], gpus_per_node=4)
SMALL = Problem(SHAPES["qwen2.5-7b"], 2, MACHINE, Batch.spread(64, 8192, 2048))


@pytest.fixture(scope="module")
def found():
    return search.search(SMALL)


def test_what_is_found_fits_uses_all_gpus_and_passes_the_checks_of_a_run(found):
    assert found.plans and found.tried == len(found.plans) + sum(found.refused.values())
    for plan in found.plans:
        layout = plan.layout
        assert layout.world == 8 and plan.gpu_bytes <= 0.98 / 1.03 * MACHINE.memory
        dp = parallel.check_layout(
            SMALL.shape,
            nodes=2,
            gpus_per_node=4,
            tp=layout.tp,
            pp=layout.pp,
            cp=layout.cp,
            vpp=layout.vpp,
            sequence_parallel=layout.shards_sequence,
        )
        assert dp == layout.dp
        parallel.check_micro_batch(longest=8192, micro_batch_tokens=layout.micro_batch_tokens, cp=layout.cp)
        assert plan.rollout.cache_tokens >= 8 * 8192 and 0 < plan.rollout.utilisation <= 0.9


def test_the_quickest_come_first_and_the_choice_is_the_simplest_of_those_alike(found):
    steps = [plan.step for plan in found.plans]
    assert steps == sorted(steps)
    chosen = found.chosen
    assert chosen.step <= search.NEAR * steps[0]
    near = [plan for plan in found.plans if plan.step <= search.NEAR * steps[0]]
    assert chosen.layout.mechanisms == min(plan.layout.mechanisms for plan in near)
    shown = found.shown(5)
    assert shown[0] is chosen and len(shown) == 5
    assert len({(plan.layout.tp, plan.layout.pp, plan.layout.cp) for plan in shown}) == 5


def test_less_memory_leaves_fewer_layouts_and_says_why(found):
    tight = Problem(SMALL.shape, 2, replace(MACHINE, memory=40 * GIB), SMALL.batch)
    less = search.search(tight)
    assert len(less.plans) < len(found.plans) and less.tried == found.tried
    assert less.refused["the update does not fit"] > found.refused["the update does not fit"]


def test_nothing_fits_is_one_sentence_with_what_came_closest():
    with pytest.raises(UserError, match=r"no layout of this model fits 1 x 1 GPUs of 80 GiB.* needs \d+\.\d GiB"):
        search.search(Problem(SMALL.shape, 1, replace(MACHINE, gpus_per_node=1), SMALL.batch))


def test_refusals_of_the_checks_are_counted_by_their_reason():
    odd = Problem(SHAPES["qwen2.5-7b"], 1, replace(MACHINES["H200-141"], gpus_per_node=8), SMALL.batch)
    assert search.search(odd).refused["tp does not divide the attention heads"] > 0


def test_tensor_parallelism_stays_within_a_node():
    problem = Problem(SHAPES["qwen2.5-1.5b"], 3, replace(MACHINES["H200-141"], gpus_per_node=4), SMALL.batch)
    assert {plan.layout.tp for plan in search.search(problem).plans} == {1, 2, 4}


def test_the_table_names_the_choice_and_its_memory(found):
    console = Console(record=True, width=150, file=io.StringIO())
    print_plans(SMALL, found, top=3, console=console)
    text = console.export_text()
    chosen = found.chosen
    assert f"{chosen.gpu_bytes / GIB:.1f}" in text and "activations" in text and "layouts tried" in text
    first = next(line for line in text.splitlines() if re.match(r"│ *1 *│", line))
    cells = [cell.strip() for cell in first.strip("│").split("│")]
    assert cells[1:6] == [str(getattr(chosen.layout, name)) for name in ("tp", "pp", "vpp", "cp", "dp")]


def test_a_written_configuration_is_a_parallel_group_of_both_stages(tmp_path, found):
    configs = tmp_path / "configs"
    (configs / "parallel").mkdir(parents=True)
    for path in CONFIG_DIR.iterdir():
        if path.name != "parallel":
            (configs / path.name).symlink_to(path)
    plan = found.chosen
    for name in ("cpu-tp2.yaml", "1gpu.yaml"):  # the stages' default, and what the file is laid over
        (configs / "parallel" / name).symlink_to(CONFIG_DIR / "parallel" / name)
    (configs / "parallel/mine.yaml").write_text(config_text(SMALL, plan, "retool plan"))
    written = compose("rl", ["parallel=mine", "model=qwen2.5-7b", "data=math"], configs)
    assert written.parallel.tp == plan.layout.tp and written.parallel.nodes == 2
    actor = written.verl.actor_rollout_ref.actor
    assert actor.megatron.context_parallel_size == plan.layout.cp
    assert actor.ppo_max_token_len_per_gpu == plan.layout.micro_batch_tokens
    compose("sft", ["parallel=mine", "model=qwen2.5-7b", "data=math"], configs)


def test_every_variant_of_a_layout_is_written(found):
    variants = {
        (plan.layout.recompute, plan.layout.param_offload, plan.layout.vpp > 1, plan.layout.cp > 1): plan
        for plan in found.plans
    }
    alone = search.search(Problem(SMALL.shape, 2, MACHINE, SMALL.batch, rl=False)).chosen
    assert len(variants) > 8
    for plan in [*variants.values(), alone]:
        mine = OmegaConf.create(config_text(SMALL, plan, "retool plan"))
        assert mine.megatron.param_offload == plan.layout.param_offload
        kind = mine.megatron.override_transformer_config.recompute_granularity
        expected = {"none": None, "mlp": "selective"}.get(plan.layout.recompute, plan.layout.recompute)
        assert kind == expected
        assert mine.megatron.virtual_pipeline_model_parallel_size == (plan.layout.vpp if plan.layout.vpp > 1 else None)


def test_a_file_is_written_only_where_it_is_found_and_never_over_another(tmp_path):
    (tmp_path / "parallel").mkdir()
    check_target(tmp_path / "parallel/mine.yaml", tmp_path)
    for path in ("mine.yaml", "parallel/mine.yml", "parallel/a b.yaml"):
        with pytest.raises(UserError, match="configs/parallel/"):
            check_target(tmp_path / path, tmp_path)
    (tmp_path / "parallel/mine.yaml").write_text("")
    with pytest.raises(UserError, match="exists"):
        check_target(tmp_path / "parallel/mine.yaml", tmp_path)


def test_the_settings_of_all_gpus_are_what_is_planned_with(capsys, monkeypatch):
    planned = []
    tried = search.search
    monkeypatch.setattr(search, "search", lambda problem: planned.append(problem) or tried(problem))
    command.plan(model="qwen2.5-1.5b", gpus="1x2", gpu_memory=141, max_length=4096, sequences=16, top=1)
    assert "layouts tried" in capsys.readouterr().out
    theirs = compose("rl", ["parallel=1gpu", "model=qwen2.5-1.5b"]).parallel.megatron
    assert planned[0].base == Layout(**switches(theirs)) and planned[0].base.packed
    fused = {"override_transformer_config": {"bias_activation_fusion": True}, "override_ddp_config": None}
    assert switches(fused) == switches({}) | {"fused_swiglu": True}
    assert switches({}, fused_kernels=True)["fused_log_probs"] is True


def test_gpus_are_nodes_times_gpus():
    assert command.parse_gpus("2x8") == (2, 8)
    assert command.parse_gpus("4") == (1, 4)
    for wrong in ("2x", "x8", "0x8", "2x8x2", "eight", "2x0", "-1"):
        with pytest.raises(UserError, match="NODESxGPUS"):
            command.parse_gpus(wrong)


def test_a_machine_is_found_by_its_name_or_its_memory():
    assert find_machine(None, 141).hbm == MACHINES["H200-141"].hbm
    assert find_machine(None, 80).bf16 == MACHINES["H100-80"].bf16
    ampere = find_machine("a100", 40)
    assert ampere.bf16 == MACHINES["A100-80"].bf16 and ampere.memory == 40 * GIB
    with pytest.raises(UserError, match="expected one of H100"):
        find_machine("T4", 16)
    with pytest.raises(UserError, match="--gpu-memory 0"):
        find_machine(None, 0)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"max_length": 0}, "--max-length 0"),
        ({"mean_length": 9000}, "--mean-length 9000: expected 1 to 8192"),
        ({"model": "nobody"}, "--model nobody"),
    ],
)
def test_wrong_options_are_named(change, part):
    options = {"model": "qwen2.5-7b", "gpus": "1x8", "gpu_memory": 80, "max_length": 8192} | change
    with pytest.raises(UserError, match=part):
        command.plan(**options)
