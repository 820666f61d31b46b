"""First uses of the preloaded libraries, made before anything is forked.

Libraries import parts of themselves late and fill caches: without this every program that uses them would do so again,
and pay for it. `settle` makes a process cheap to fork.
"""

import contextlib
import gc
import io
import linecache
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path

from retool_mcore.sandbox.isolation.syscalls import collapse_into_huge_pages

# {module: program}
FIRST_USES = {
    name: program
    for section in Path(__file__).with_name("first_uses.txt").read_text().split("\n## ")[1:]
    for name, _, program in [section.partition("\n")]
}


def warm_up(names: list[str]) -> str:
    """Use those of the modules `names` that have a first use; what went wrong, or "".

    Nothing is printed, and the sources of random numbers are not this function's concern: each run seeds them.
    """
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name in names:
            try:
                exec(compile(FIRST_USES.get(name, ""), "<warm>", "exec"), {})
            except Exception as error:
                return f"the module {name!r} does not work ({type(error).__name__}: {error})"
        try:
            raise KeyError("a first traceback")
        except KeyError:
            "".join(traceback.TracebackException(*sys.exc_info()).format())
    return ""


def load_modules(sources: Mapping[str, str]) -> str:
    """Make modules of these names from their sources, in this order, and call their `warm()` if they have one; what
    went wrong, or "". Packages that hold them and that are not there are made empty."""
    for name, source in sources.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            package = ".".join(parts[:depth])
            sys.modules.setdefault(package, types.ModuleType(package)).__dict__.setdefault("__path__", [])
        sys.modules[name] = module = types.ModuleType(name)
        for depth in range(1, len(parts)):  # importing does it for those that are not there yet
            setattr(sys.modules[".".join(parts[:depth])], parts[depth], sys.modules[".".join(parts[: depth + 1])])
        # Where tracebacks, and modules that hand their source on, look for it.
        linecache.cache[f"<{name}>"] = (len(source), None, source.splitlines(keepends=True), f"<{name}>")
        try:
            exec(compile(source, f"<{name}>", "exec"), module.__dict__)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                getattr(module, "warm", lambda: None)()
        except Exception as error:
            return f"the module {name!r} cannot be loaded ({type(error).__name__}: {error})"
    return ""


HUGE_PAGE = 2**21


def settle() -> None:
    """Call when everything that forks shall share is in memory.

    The collector leaves what exists alone, so that forks share its pages for longer. Large anonymous areas move into
    huge pages where the kernel can do so (Linux 6.1): a fork copies, and its end frees, one entry for 512 pages, which
    measured as half of the time that a fork takes.
    """
    gc.collect()
    gc.freeze()
    with open("/proc/self/maps") as file:
        areas = [line.split() for line in file]
    for span, rights, _, _, _, *name in areas:
        if rights == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(bound, 16) for bound in span.split("-"))
            for address in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
                collapse_into_huge_pages(address, HUGE_PAGE)
