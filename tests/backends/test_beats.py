"""Where a training beats besides the phases of its loop: rank 0's micro-batches, a rollout worker's turns."""

from types import SimpleNamespace

import pytest
import torch
from verl.utils import tensordict_utils

from retool_mcore.backends.megatron.beats import MicroBatches
from retool_mcore.backends.megatron.engine import CriticEngine, Engine, _Packs
from retool_mcore.rollout import turn_beats
from retool_mcore.rollout.turn_beats import Turns
from retool_mcore.state import heartbeat


@pytest.fixture
def read_beats(tmp_path, monkeypatch):
    """Reads the beats of this process."""
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    monkeypatch.setattr(heartbeat, "_writers", {})
    monkeypatch.setenv(heartbeat.VARIABLE, str(heartbeat.prepare(tmp_path)))
    return lambda: heartbeat.read(tmp_path)


def test_micro_batches_are_counted_as_they_are_taken(read_beats, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    given = [tensordict_utils.get_tensordict({"x": torch.ones(1)}, {"num_micro_batch": 3}) for _ in range(3)]
    counter, batches, shares = MicroBatches(), iter(given), []
    counter.begin(forward_only=True)
    counter.begin(forward_only=False)
    for batch in given:
        assert next(counter.taken(batches)) is batch
        shares.append([read_beats()["rank0"][name] for name in ("done", "total", "updates")])
    assert shares == [[0, 3, 1], [1, 3, 1], [2, 3, 1]]
    monkeypatch.setenv("RANK", "1")
    counter.begin(forward_only=False)
    next(counter.taken(iter(given)))
    assert read_beats()["rank0"]["updates"] == 1


@pytest.mark.parametrize("engine", [Engine, CriticEngine])
def test_the_engines_count_whether_they_pack_or_not(engine, read_beats, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    taken = []
    below = engine.__mro__[engine.__mro__.index(_Packs) + 1 :]

    def forward_step(self, batches, *_, **__):
        taken.append(next(batches))

    def forward_backward_batch(self, data, loss_function, forward_only):
        for _ in data:
            self.forward_step(batches, None)

    for method in (forward_step, forward_backward_batch):
        verls = next(cls for cls in below if method.__name__ in vars(cls))
        monkeypatch.setattr(verls, method.__name__, method)
    given = [tensordict_utils.get_tensordict({"x": torch.ones(1)}, {"num_micro_batch": 2}) for _ in range(2)]
    batches = iter(given)
    one = object.__new__(engine)
    one.engine_config = SimpleNamespace(
        override_mcore_model_config={},
        tensor_model_parallel_size=1,
        context_parallel_size=1,
        dynamic_context_parallel=False,
        use_remove_padding=True,
    )
    one.forward_backward_batch(given, None, forward_only=False)
    assert taken == given and read_beats()["rank0"]["done"] == 1 and read_beats()["rank0"]["total"] == 2


def test_turns_and_trajectories_are_counted(read_beats, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(turn_beats.time, "time", lambda: now[0])
    turns = Turns()

    def episode(step, fails=False):
        with turns.trajectory(step):
            assert turns.live == 1
            now[0] += 10.0
            turns.turn(tokens=300, seconds=10.0, max_tokens=600)
            if fails:
                raise RuntimeError("the engine aborted")

    episode(3)
    with pytest.raises(RuntimeError):
        episode(3, fails=True)
    (seen,) = read_beats().values()
    assert seen["writer"].startswith("agent-") and seen["done"] == 2
    assert (seen["finished"], seen["live"], seen["patience_s"]) == (2, 0, 20.0)
    assert seen["tokens_per_s"] == 30.0
    episode(4)
    assert turns.finished == 1
