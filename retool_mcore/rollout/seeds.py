"""The seed of every request to the rollout engine, so that a resumed run samples what an undisturbed one would have."""

import hashlib


def request_seed(seed: int, step: int, index: int, sample: int, turn: int, done: int = 0) -> int:
    """A 31-bit seed for one turn of one trajectory: the run's seed, training step, problem, sample in group, turn.

    done: tokens of the turn that exist already, where the engine was interrupted in it.
    """
    place = f"{seed}/{step}/{index}/{sample}/{turn}" + (f"/{done}" if done else "")
    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4], "big") >> 1
