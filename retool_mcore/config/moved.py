"""Names of modules as runs of earlier releases wrote them down, and as they are now.

A run's files hold dotted names of ours: config.yaml (which a replay reads), agent_loop.yaml and the hash in COMPLETE.
"""

import re

# Old -> new; the longest that fits counts.
MOVED = {
    "retool_mcore.algo": "retool_mcore.recipes",
    "retool_mcore.algo.losses": "retool_mcore.backends.verl.losses",
    "retool_mcore.reward": "retool_mcore.rewards",
    "retool_mcore.rollout.agent_loop": "retool_mcore.backends.verl.agent_loop",
    "retool_mcore.rollout.tracing": "retool_mcore.backends.verl.tracing",
    "retool_mcore.rollout.worker": "retool_mcore.backends.verl.agent_loop_worker",
    "retool_mcore.tasks.agent_loop.RepositoryAgentLoop": (
        "retool_mcore.backends.verl.repository_loop.RepositoryAgentLoop"
    ),
    "retool_mcore.tasks.agent_loop.RepositoryTools": "retool_mcore.environments.tools.RepositoryTools",
    "retool_mcore.tools.replay": "retool_mcore.tools.recorded",
    "retool_mcore.train.host_weights": "retool_mcore.backends.verl.host_weights",
    "retool_mcore.train.push_receiver": "retool_mcore.backends.verl.weight_sync_vllm",
    "retool_mcore.train.reward_fn": "retool_mcore.backends.verl.reward_fn",
}


def _replace(text: str, table: dict[str, str]) -> str:
    names = "|".join(re.escape(name) for name in sorted(table, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])(?:{names})\b", lambda match: table[match[0]], text)


def to_new(text: str) -> str:
    """`text` of an earlier release with our names of today."""
    return _replace(text, MOVED)


def to_old(text: str) -> str:
    """`text` as an earlier release would have written it."""
    return _replace(text, {new: old for old, new in MOVED.items()})
