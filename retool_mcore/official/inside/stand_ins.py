"""Stand-ins for packages that a grader's package imports and never uses for grading: none has to be installed.

Every name in one is a class that can be called, subclassed and used as a decorator, and that does nothing.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class _Names(type):
    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Nothing(metaclass=_Names):
    def __init__(self, *arguments, **keywords):
        pass

    def __call__(self, *arguments, **keywords):
        return arguments[0] if arguments else self

    def __getattr__(self, name: str):
        return getattr(type(self), name)


class _Module(types.ModuleType):
    __path__: list = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == known or name.startswith(known + ".") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def stand_in(*names: str) -> None:
    """Let `import` find empty modules of these names, and of all below them, whether or not they are installed."""
    sys.meta_path.insert(0, _Finder(names))
