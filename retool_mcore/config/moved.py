"""Names of modules as runs of earlier releases wrote them down, and as they are now.

A run's files hold dotted names of ours: config.yaml (which a replay reads), agent_loop.yaml and the hash in COMPLETE.
"""

import re

from retool_mcore.tables import yaml_beside

MOVED: dict[str, str] = yaml_beside(__file__)


def _replace(text: str, table: dict[str, str]) -> str:
    names = "|".join(re.escape(name) for name in sorted(table, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])(?:{names})\b", lambda match: table[match[0]], text)


def to_new(text: str) -> str:
    """`text` of an earlier release with our names of today."""
    return _replace(text, MOVED)


def to_old(text: str) -> str:
    """`text` as an earlier release would have written it."""
    return _replace(text, {new: old for old, new in MOVED.items()})
