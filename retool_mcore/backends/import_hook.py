"""Hooks that run when a library's module is imported, in a process that may never import it."""

import importlib.abc
import importlib.util


class ImportHook(importlib.abc.MetaPathFinder):
    """Runs one function before, or one on the module after, the first import of a name."""

    def __init__(self, before, after):
        self.before, self.after = before, after

    def find_spec(self, name, path, target=None):
        if name in self.before:
            self.before.pop(name)()
        if name not in self.after:
            return None
        adapt = self.after.pop(name)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            adapt(module)

        spec.loader.exec_module = exec_module
        return spec
