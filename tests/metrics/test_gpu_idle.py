import json

import pytest

from retool_mcore.metrics.timeline import BusySampler, chrome_trace, counters, idle_shares


def test_samples_come_once_and_in_order():
    values = iter([0.25, 0.5, 1.0])
    done = []

    def read():
        value = next(values, None)
        if value is None:
            done.append(True)
            raise RuntimeError("the driver is gone")
        return value

    sampler = BusySampler(read, every_s=0.001)
    sampler._thread.join(10)
    taken = sampler.take()
    assert done and [busy for _, busy in taken] == [0.25, 0.5, 1.0] and sampler.take() == []
    assert [moment for moment, _ in taken] == sorted(moment for moment, _ in taken)
    sampler.close()


def test_a_device_that_cannot_be_read_is_told_and_stops_nothing(capsys):
    def read():
        raise ModuleNotFoundError("pynvml")

    sampler = BusySampler(read, every_s=0.001)
    sampler._thread.join(10)
    assert sampler.take() == [] and "gpu_idle is not logged: ModuleNotFoundError: pynvml" in capsys.readouterr().out


def test_idle_is_of_the_step_alone_and_of_every_gpu():
    ranks = [[(9.0, 0.0), (10.0, 1.0), (11.0, 0.5), (30.0, 0.0)], [], [(15.0, 0.0)]]
    found = idle_shares(ranks, 10.0, 20.0)
    assert found == {
        "gpu_idle/rank_0": pytest.approx(0.25),
        "gpu_idle/rank_2": 1.0,
        "gpu_idle/mean": pytest.approx(0.625),
        "gpu_idle/max": 1.0,
    }
    assert idle_shares([[], []], 10.0, 20.0) == {} == idle_shares([], 0, 1)


def test_the_timeline_has_a_track_a_gpu():
    ranks = [[(1001.0, 0.5), (1002.0, 1.0)], [(999.0, 1.0), (1001.5, 0.0)]]
    trace = json.loads(json.dumps(chrome_trace(1, 1000.0, {"step": 3.0, "gen": 1.0}, [], ranks)))
    points = [(e["name"], e["ts"], e["args"]["percent"]) for e in trace["traceEvents"] if e["ph"] == "C"]
    assert points == [("GPU 0 busy", 1_000_000, 50), ("GPU 0 busy", 2_000_000, 100), ("GPU 1 busy", 1_500_000, 0)]
    assert len(counters([[(1000.0 + i, 1.0) for i in range(1500)]], 1000.0, 3)) == 500
