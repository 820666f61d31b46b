"""The cost of the job's key to TransferQueue, and what it holds off: real controller, storage units and client in Ray.

    python -m benchmarks.cluster.queue_keys

Runs tests/support/queue_keys.py twice, without a secret and with one.
"""

import json
import os
import secrets

from benchmarks import provenance
from tests.support.queue_keys import run


def main() -> None:
    os.environ.pop("RAY_AUTH_TOKEN", None)
    head = provenance.made(("TransferQueue", "pyzmq", "ray"))
    found = {"without": run(None), "with": run(secrets.token_hex(32))}
    provenance.write("queue_keys", head, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
