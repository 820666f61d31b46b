"""A function of ours in a library function's place, for a while, where the library has no registry for it."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType


class LibraryPatch:
    """The function that the code of `module` calls by `name`; `stock` is the library's.

    Made when our module is imported, so that another release is refused at start-up.
    """

    def __init__(self, module: ModuleType, name: str, parameters: str):
        """`parameters`: the names that the library's function takes, in order.

        Raises:
            RuntimeError: it is not the function that ours was written for.
        """
        self.module, self.name, self.stock = module, name, getattr(module, name, None)
        found = " ".join(inspect.signature(self.stock).parameters) if self.stock else None
        if found != parameters:
            raise RuntimeError(
                f"{module.__name__} has {f'{name}({found})' if self.stock else f'no {name}'}, expected "
                f"{name}({parameters}): install the versions that pyproject.toml pins."
            )

    @contextlib.contextmanager
    def by(self, function: Callable) -> Iterator[None]:
        """Inside, `function` is called."""
        before = getattr(self.module, self.name)
        setattr(self.module, self.name, function)
        try:
            yield
        finally:
            setattr(self.module, self.name, before)
