"""A stop that comes while a validation runs is acted upon then: the step's checkpoint counts."""

import threading

from retool_mcore.state import checkpoints, stop
from retool_mcore.train.saves import Saves


def test_asked_is_called_once_and_only_for_a_request(tmp_path, monkeypatch):
    monkeypatch.setattr(stop, "LOOK_S", 0.01)
    calls, called = [], threading.Event()
    with stop.watched(tmp_path, lambda: calls.append(called.set())):
        assert not called.wait(0.1)
        stop.request(tmp_path)
        assert called.wait(10)
    with stop.watched(tmp_path, lambda: None):
        pass
    assert len(calls) == 1
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("(watch)")]


def test_the_checkpoint_of_a_step_that_is_validated_counts_at_a_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(stop, "LOOK_S", 0.01)
    saves = Saves(tmp_path, {"keep_last": 2}, flush=lambda: None)
    saves.write(3, 3, lambda folder: (folder / "actor/model/huggingface").mkdir(parents=True))
    root = tmp_path / "checkpoints"
    with stop.watched(tmp_path, saves.recorded):
        assert checkpoints.latest(root) is None
        stop.request(tmp_path)
        while saves.marking is None:
            pass
        saves.marking.result(60)
        assert checkpoints.step_of(checkpoints.latest(root)) == 3, "a kill in the validation loses nothing of it"
    saves.recorded()  # the step's own end
    saves.finish(blocking=True)
    assert saves.report()["checkpoint/bytes"] == 0
