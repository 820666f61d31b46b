"""Reports of nodes (cluster/node_report.py) that no node has made."""


def gpu(**changes):
    return {"name": "H100", "driver": "580.1", "memory_mb": 81920, "used_mb": 5} | changes


def good(node="n1", **changes):
    found = {
        "node": node,
        "hostname": node,
        "errors": {},
        "python": "3.12.3",
        "packages": {"torch": "2.11.0", "ray": "2.56.1"},
        "code": "abc",
        "run_dir": "/runs/a",
        "run_dir_free": 10**12,
        "scratch": "/tmp",
        "scratch_free": 10**12,
        "model": "def",
        "shm_free": 10**11,
        "memory_available": 10**11,
        "limits": {"RLIMIT_MEMLOCK": -1, "RLIMIT_NOFILE": 10**6},
        "ports_busy": [],
        "token_seen": True,
        "gpus": [gpu() for _ in range(8)],
        "gpu_faults": [],
        "peers": [],
        "infiniband": 8,
        "sandbox": {"found": "isolation: namespaces", "seconds": 0.5},
        "launched": 1000.0,
        "clock_started": 1001.0,
        "clock_ended": 1003.0,
        "received": 1003.1,
    }
    return found | changes
