"""The steps that shut one program in, in the only order that works."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from retool_mcore.sandbox.isolation import landlock, limits, namespaces, seccomp
from retool_mcore.sandbox.isolation.syscalls import MACHINE, drop_privileges, set_dumpable

# Enough for a pool of 16. All forks of the warm interpreter share the kernel's locks of its memory: a fork bomb of 64
# processes kept its neighbours waiting seven times as long.
MAX_PROCESSES = 32
MAX_FILES = 256
FILE_MB = 64
# Of a run's folder: what the tmpfs of level "namespaces" takes, and what the others are stopped at.
FOLDER_MB = 64
FOLDER_FILES = 8192
TMP_OPTIONS = f"size={FOLDER_MB}m,nr_inodes={FOLDER_FILES},mode=700"


@dataclass(frozen=True)
class Confinement:
    """Limits that all programs of a server share. `folders`: what they may read in addition to the system's libraries,
    except the folders `hidden` in them; `protected`: process ids that they may not signal where they could see them."""

    level: str
    folders: list[str]
    protected: tuple[int, ...] = ()
    hidden: Sequence[str] = ()
    filter: seccomp.Filter | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, level: str, folders: list[str], protected: tuple[int, ...] = (), hidden: Sequence[str] = ()
    ) -> "Confinement":
        in_namespaces = level == "namespaces"
        if level == "none":
            return cls(level, folders, protected, hidden)
        program = seccomp.filter_program(MACHINE, in_namespaces, protected)
        return cls(level, folders, protected, hidden, seccomp.Filter(program))

    def enter(self, init: int | None, work_dir: str) -> None:
        """Shut this process in. `init`: pidfd of the init whose namespaces to join. Raises OSError."""
        if self.level == "namespaces":
            namespaces.join(init)
        else:
            os.chdir(work_dir)
        os.setsid()
        # Without a user namespace the user's other tasks count too; a fork bomb is faster than the server's next look.
        others = 0 if self.level == "namespaces" else limits.tasks()
        limits.set_fixed_limits(FILE_MB, MAX_FILES, others + MAX_PROCESSES)
        drop_privileges()
        if self.level == "landlock":
            landlock.restrict(work_dir, self.folders, self.hidden)
        # The server looks into programs to count their memory; where nothing else keeps neighbours with the same user
        # id from doing so too, nobody may.
        set_dumpable(self.level in ("namespaces", "landlock"))
        if self.filter:
            self.filter.install()
