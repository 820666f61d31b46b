"""A checkpoint's random states are read by ranks of its own tp and pp; in others they start anew, and it is said."""

from types import SimpleNamespace

import pytest
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject
from verl.utils.megatron_utils import get_extra_dist_checkpoint_path
from verl.workers.engine.megatron import MegatronEngineWithLMHead

from retool_mcore.backends.megatron.engine import Engine

CONTENTS = ["model", "optimizer", "extra"]


def states(pp: int, tp: int, stage: int, rank: int) -> ShardedObject:
    """As verl's manager names those of a rank."""
    return ShardedObject("rng_state", [f"of {stage}, {rank}"], (pp, tp), (stage, rank))


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """One of TP4 PP2."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # Megatron's save asks for a GPU, whatever it saves
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    ranks = {f"{stage} {rank}": states(2, 4, stage, rank) for stage in range(2) for rank in range(4)}
    dist_checkpointing.save(ranks, get_extra_dist_checkpoint_path(str(tmp_path)))
    yield str(tmp_path)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("own", "kept"), [((2, 4, 1, 3), True), ((4, 2, 1, 1), False), ((1, 1, 0, 0), False)])
def test_they_are_read_in_their_own_layout_alone(checkpoint, own, kept, monkeypatch, capsys):
    loaded = []
    monkeypatch.setattr(MegatronEngineWithLMHead, "load_checkpoint", lambda self, *given, **named: loaded.append(given))
    engine = Engine.__new__(Engine)
    manager = SimpleNamespace(rank=0, get_rng_state=lambda: states(*own), checkpoint_load_contents=list(CONTENTS))
    engine.checkpoint_mananager = manager
    engine.load_checkpoint(checkpoint)
    assert loaded == [(checkpoint,)]
    assert manager.checkpoint_load_contents == (CONTENTS if kept else CONTENTS[:2])
    said = "" if kept else f"{checkpoint} is of TP4 PP2, and this run is not: random states start anew.\n"
    assert capsys.readouterr().out == said


def test_nothing_is_looked_up_where_they_are_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(MegatronEngineWithLMHead, "load_checkpoint", lambda self, *given, **named: None)
    engine = Engine.__new__(Engine)
    engine.checkpoint_mananager = SimpleNamespace(checkpoint_load_contents=CONTENTS[:2])
    engine.load_checkpoint(str(tmp_path))
