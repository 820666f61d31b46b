"""What a run keeps in a node's memory: the arithmetic, and what is refused."""

import json

import pytest
from omegaconf import OmegaConf
from refused import refusal

from retool_mcore.cluster import node_verdicts
from retool_mcore.config import compose
from retool_mcore.planner.memory import GIB
from retool_mcore.planner.shape import SHAPES
from retool_mcore.preflight import machine, memory


@pytest.fixture
def folder(tmp_path):
    shape = SHAPES["qwen2.5-32b"]
    config = {
        "model_type": "qwen2",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocab,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def large(folder, *overrides):
    names = ("parallel=2x8-80g", "data=math", "model=qwen2.5-32b", f"init_from={folder}")
    return compose("rl", [*names, *overrides])


def test_the_32b_on_two_nodes_by_hand(folder):
    needs = memory.node_needs(large(folder), folder)
    gib = {name: size / GIB for name, size in needs.parts.items()}
    # 2.05e9 parameters a rank: 3.8 GiB of bf16 weights in one buffer of 4, on eight ranks.
    assert gib["weights"] == 32
    # Three fp32 copies. Of a layer on TP8, in MiB: qkv 17.5, output 12.5, gate and up 135, down 67.5, which torch
    # rounds up to 32, 16, 256 and 128; 32 layers and 371 of the embedding, rounded up to 512.
    assert gib["optimizer"] == 8 * 3 * (32 * (32 + 16 + 256 + 128) + 512) / 1024 == 336
    assert gib["trajectories"] == pytest.approx(512 * 16 * (2048 + 16384) * 72 / 2 / GIB)
    assert 430 < needs.total / GIB < 450


def test_what_stays_on_the_gpus_is_not_in_host_memory_and_a_critic_lies_beside_the_policy(folder):
    stays = ("parallel.megatron.param_offload=false", "parallel.megatron.optimizer_offload=false")
    assert not {"weights", "optimizer"} & memory.node_needs(large(folder, *stays), folder).parts.keys()
    one, two = (
        memory.node_needs(large(folder, *words), folder).parts["optimizer"] for words in ((), ("recipe.advantage=gae",))
    )
    assert two == 2 * one


def test_a_node_with_too_little_is_refused_in_a_sentence(folder):
    needs = memory.node_needs(large(folder), folder)
    memory.check(needs, memory=500 * GIB)
    message = refusal(memory.check, needs, memory=400 * GIB)
    assert "optimizer 336 GiB" in message and "400 GiB are available" in message


def test_the_node_check_wants_the_same_of_every_node(folder):
    config = large(folder)
    report = {"node": "n1", "errors": {}, "memory_available": 400 * GIB, "shm_free": 2**20}
    found = {verdict.check: verdict for verdict in node_verdicts.verdicts([report], config)}
    assert not found["memory"].ok and "needed" in found["memory"].detail
    assert not found["shared memory"].ok
    found = node_verdicts.verdicts([report | {"memory_available": 500 * GIB, "shm_free": 64 * GIB}], config)
    assert all(verdict.ok for verdict in found)


def test_the_tiny_model_needs_what_it_needed(tmp_path):
    config = compose("rl")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "something new"}))
    assert memory.node_needs(config, tmp_path).total == machine.MIN_CPU_MEMORY_BYTES
    report = {"node": "n1", "errors": {}, "memory_available": 6 * GIB, "shm_free": 2 * GIB}
    assert all(verdict.ok for verdict in node_verdicts.verdicts([report], OmegaConf.to_container(config)))
