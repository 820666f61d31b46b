"""A Megatron-backed trainer for tool-integrated reinforcement learning (ReTool, arXiv 2504.11536).

What a script or a notebook uses (docs/python.md) is imported when it is first asked for: `import retool_mcore` alone is
quick.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retool_mcore.api import Sandbox, evaluate
    from retool_mcore.config import compose
    from retool_mcore.metrics.records import read_step
    from retool_mcore.rewards.equivalence import equivalent

_NAMES = {
    "compose": "retool_mcore.config",
    "evaluate": "retool_mcore.api",
    "read_step": "retool_mcore.metrics.records",
    "Sandbox": "retool_mcore.api",
    "equivalent": "retool_mcore.rewards.equivalence",
}
__all__ = ["Sandbox", "compose", "equivalent", "evaluate", "read_step"]


def __getattr__(name: str):
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_NAMES)}")
    return getattr(importlib.import_module(_NAMES[name]), name)
