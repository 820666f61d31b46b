"""Keeping a program away from everything but its own folder. Imports nothing of the rest of the sandbox.

Levels, from weak to strong; each has what the weaker ones have:
- "none": own session, resource limits, memory and processes watched, no new privileges.
- "process": seccomp filter (which also makes sure that nothing of a run outlives it); no sockets.
- "landlock": sees only the system's libraries and Python's folders, writes only its own folder, signals only its own.
- "namespaces": own user, pid, mount, network, ipc namespaces; read-only root; empty size-limited /tmp in memory. Here
  the seccomp filter allows Unix sockets within the run.
"""

from retool_mcore.sandbox.isolation.levels import LEVELS
from retool_mcore.sandbox.isolation.limits import descendants

__all__ = ["LEVELS", "descendants"]
