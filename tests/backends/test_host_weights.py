"""Weights reach every rollout worker bit by bit, whatever their types and sizes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch

from retool_mcore.backends.verl import host_weights
from retool_mcore.backends.verl.host_weights import HostWeights

WEIGHTS = [
    ("embedding", torch.randn(50, 30)),
    ("norm", torch.arange(7, dtype=torch.bfloat16)),
    ("transposed", torch.randn(4, 6).T),
    ("scalar", torch.tensor(3.0)),
    ("counts", torch.tensor([1, -2], dtype=torch.int64)),
]


@pytest.mark.parametrize("bucket_size", [1, 1000, 10**6])
def test_every_worker_receives_what_rank_zero_sends(monkeypatch, bucket_size):
    monkeypatch.setattr(host_weights.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    actors, engines = ([HostWeights(bucket_size) for _ in range(2)] for _ in range(2))
    metadata = [worker.prepare() for worker in (*actors, *engines)]
    listening = {link.laddr for link in psutil.Process().net_connections("tcp") if link.status == psutil.CONN_LISTEN}
    assert {*metadata} <= listening, "a store listens elsewhere than where it is told"
    of_actors, of_engines = HostWeights.build_topology(2, 2, metadata)
    assert of_actors["rank"] == [0, -1] and of_engines["rank"] == [1, 2]

    def work(worker, arguments, place):
        worker.init_process_group(**{name: values[place] for name, values in arguments.items()})
        if worker in actors:
            return asyncio.run(worker.send_weights(iter(WEIGHTS), global_steps=1))

        async def receive():
            return [(name, weight) async for name, weight in worker.receive_weights(global_steps=1)]

        return asyncio.run(receive())

    workers = [(worker, of_actors, n) for n, worker in enumerate(actors)]
    workers += [(worker, of_engines, n) for n, worker in enumerate(engines)]
    with ThreadPoolExecutor(len(workers)) as pool:
        sent, idle, *received = pool.map(lambda one: work(*one), workers)
    assert sent == {"push/bytes": sum(weight.nbytes for _, weight in WEIGHTS)} and idle == {}
    for weights in received:
        assert [name for name, _ in weights] == [name for name, _ in WEIGHTS]
        for (_, weight), (_, expected) in zip(weights, WEIGHTS, strict=True):
            assert weight.dtype == expected.dtype and torch.equal(weight, expected)
    for worker in (*actors, *engines):
        worker.finalize()


def test_what_comes_through_the_network_is_never_unpickled():
    """gloo takes what any process says that reaches its port."""
    assert "pickle" not in vars(host_weights)
