"""A function of ours in a library function's place, for a while, where the library has no registry for it."""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType

from retool_mcore.backends.patches import PATCHES, check


class LibraryPatch:
    """The function that the code of `module` calls by `name`; `stock` is the library's.

    Made when our module is imported, so that another release is refused at start-up.
    """

    def __init__(self, module: ModuleType, name: str):
        """Raises RuntimeError when it is not the function that ours was written for (backends/patches.py)."""
        self.module, self.name, self.stock = module, name, getattr(module, name, None)
        place = f"{self.stock.__module__}:{self.stock.__qualname__}" if self.stock else f"{module.__name__}:{name}"
        known = [patch for patch in PATCHES if patch.place == place]
        if not known:
            raise RuntimeError(f"{place} is replaced by ours, and backends/patches.py does not list it.")
        check("cpu", known)

    @contextlib.contextmanager
    def applied(self, function: Callable) -> Iterator[None]:
        """Inside, `function` is called."""
        before = getattr(self.module, self.name)
        setattr(self.module, self.name, function)
        try:
            yield
        finally:
            setattr(self.module, self.name, before)
