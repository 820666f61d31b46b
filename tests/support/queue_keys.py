"""A TransferQueue in Ray, with or without a job's key, and a stranger who sends each of its ports a pickle.

`run` puts and fetches batches of three sizes, then sends every port a pickle that makes a file, by a socket that has no
key and the identity which storage units ask for.
"""

import json
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS, COLUMNS = 64, (128, 4096, 65_536)  # int64
ATTEMPTS = 5
WAIT_S = 3.0  # for the file; without a key it is there in milliseconds
PICKLED = b"\xc1\xfe\xed"  # a first frame with which TransferQueue 0.1.11 unpickles the second
IDENTITY = b"TQ_STORAGE_x"


class Exploit:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def attacked(ip: str, port: int) -> bool:
    """Whether one message from a socket without a key ran code in the process that listens there."""
    import zmq

    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        mark = Path(folder) / "mark"
        socket.identity, socket.linger = IDENTITY, 0
        socket.connect(f"tcp://{ip}:{port}")
        socket.send_multipart([PICKLED, pickle.dumps(Exploit(mark))])
        end = time.monotonic() + WAIT_S
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.05)
        return mark.exists()


def use_queue() -> tuple[list[dict], list[tuple[str, str, int]]]:
    """In an actor: ([{megabytes, put_s, get_s}], [(part of TransferQueue, name of its socket, port)])."""
    import ray
    import torch
    import transfer_queue
    from omegaconf import OmegaConf
    from tensordict import TensorDict

    from retool_mcore.backends.verl import private_sockets

    private_sockets.assert_in_force()
    storage = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 2}}
    transfer_queue.init(OmegaConf.create({"backend": storage}))
    rows = []
    for columns in COLUMNS:
        sent = TensorDict({"x": torch.randint(0, 9, (ROWS, columns))}, batch_size=ROWS)
        times = []
        for attempt in range(ATTEMPTS):
            keys = [f"{attempt}-{row}" for row in range(ROWS)]
            begun = time.perf_counter()
            transfer_queue.kv_batch_put(keys=keys, fields=sent, partition_id="p", tags=[{}] * ROWS)
            put = time.perf_counter()
            came = transfer_queue.kv_batch_get(keys=keys, partition_id="p")
            times.append((put - begun, time.perf_counter() - put))
            assert torch.equal(torch.stack([*came["x"]]), sent["x"])
            transfer_queue.kv_clear(keys=keys, partition_id="p")
        put_s, get_s = map(min, zip(*times, strict=True))
        rows.append({"megabytes": sent["x"].nbytes / 1e6, "put_s": round(put_s, 4), "get_s": round(get_s, 4)})
    config = ray.get(transfer_queue.interface._TQ_CONTROLLER.get_config.remote())
    parts = [config.controller.zmq_info, *config.backend.SimpleStorage.zmq_info.values()]
    return rows, [(part.id, name, port) for part in parts for name, port in part.ports.items()]


def child() -> None:
    """Prints {rows, executed} as its last line; the environment says whether there is a secret."""
    import ray

    from retool_mcore.backends.env import ray_runtime_env

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, runtime_env=ray_runtime_env())
    rows, ports = ray.get(ray.remote(use_queue).remote())
    address = ray.util.get_node_ip_address()
    executed = {f"{part}, {name}": attacked(address, port) for part, name, port in ports}
    ray.shutdown()
    print(json.dumps({"rows": rows, "executed": executed}))


def run(secret: str | None) -> dict:
    """{rows, executed} of a Ray on this machine's loopback. Raises CalledProcessError when data does not pass."""
    from retool_mcore.backends.env import stage_env

    # A stage does not search the working folder, where this module is.
    env = stage_env({"parallel": {"device": "cpu"}}) | {"RETOOL_TEMPLATE": "off", "PYTHONPATH": str(ROOT)}
    env |= {"RAY_AUTH_TOKEN": secret} if secret else {"RAY_AUTH_MODE": "disabled"}
    if secret is None:
        del env["RAY_AUTH_TOKEN"]
    command = [sys.executable, "-m", "tests.support.queue_keys", "child"]
    done = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    child()
