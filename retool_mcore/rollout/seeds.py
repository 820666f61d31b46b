"""The seed of every request to the rollout engine, so that a resumed run samples what an undisturbed one would have."""

import hashlib


def request_seed(seed: int, step: int, index: int, sample: int, turn: int) -> int:
    """A 31-bit seed for one turn of one trajectory: the run's seed, training step, problem, sample in group, turn."""
    digest = hashlib.sha256(f"{seed}/{step}/{index}/{sample}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
