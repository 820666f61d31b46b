"""The local back-end: every program is a fork of a warm interpreter on this machine, alone in its own namespaces
where possible. (See isolation/__init__.py for the levels.)

What is covered at every level but "none": wall and processor time, memory (of each process, and of all together),
number of processes and of open files, size of files and of output; everything a program starts ends with it; no
network; a seccomp filter that refuses other ways into the kernel and to other processes; an empty environment. How a
program ended is what its parent saw, but for a session's, which lives on and says it itself. When the trainer is root,
programs run under a user id that owns nothing, where that id can read this Python.
"landlock" adds: no view of the user's files, none written outside of the run's folder, no signal to other processes.
"namespaces" adds: no view of other processes, and a folder in memory that vanishes with the run.

What is NOT covered:
- the kernel itself: what it allows unprivileged processes through the calls that the filter lets pass, and
  what processors leak between processes;
- there is no cgroup: memory that is in no process and no file (socket buffers) counts for nobody, and all processes
  of a run are added up only every 0.1 s; within that time each is still held to the limit;
- fair shares of processor time beyond what the scheduler does between processes;
- level "process": reading and writing the user's files; signals to the user's processes other than the sandbox's;
- level "landlock" before Linux 6.12: such signals too;
- without namespaces: the run's folder is on the host's disk, and its size is summed only every 0.1 s.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retool_mcore.sandbox.local.sandbox import PRELOAD, LocalSandbox

__all__ = ["PRELOAD", "LocalSandbox"]


def __getattr__(name: str):
    # Imported when asked for: the server lives in this package too, and asyncio with all that it brings would be forked
    # with every program.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from retool_mcore.sandbox.local import sandbox

    return getattr(sandbox, name)
