"""A cache in front of a sandbox: the same program with the same limits and input is run once.

Only programs that cannot tell two runs apart are kept: `is_deterministic` looks at the syntax tree and says no to
whatever it does not know. Not covered: addresses that a program prints without "0x", the order of a set of strings
where the sandbox does not fix PYTHONHASHSEED (ours does), and a program so near its time limit that another run would
pass it.
"""
# It wraps whichever sandbox there is, with the methods and the options that this one has.
# mypy: disable-error-code="arg-type, attr-defined"

import ast
import hashlib
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cachetools import LRUCache

from retool_mcore.sandbox.base import Result, Sandbox, Status
from retool_mcore.sandbox.display import MAX_PARSED_CHARS, strip_fences

# Modules without clock, randomness, files or processes; what of them has one of these is forbidden by name below.
MODULES = frozenset((
    "math", "cmath", "fractions", "decimal", "numbers", "itertools", "functools", "operator", "collections", "heapq",
    "bisect", "string", "re", "textwrap", "copy", "dataclasses", "enum", "typing", "abc", "array", "json", "statistics",
    "numpy", "sympy", "scipy", "mpmath", "networkx", "__future__",
))  # fmt: skip
# What reaches outside, runs text as a program, finds names by text, or shows an address; modules that others import.
FORBIDDEN_NAMES = frozenset((
    "open", "input", "exec", "eval", "compile", "globals", "locals", "vars", "breakpoint", "help", "id", "hash",
    "object", "memoryview", "getattr", "attrgetter", "methodcaller", "preview", "test", "source", "rng", "now", "date",
    "rvs", "gc", "sys", "os", "io",
))  # fmt: skip
# Parts of names, so that np.random, randprime, randint, default_rng, time, datetime and the like need no list each.
FORBIDDEN_PARTS = (
    "rand", "seed", "shuffle", "sample", "secret", "uuid", "time", "clock", "today", "file", "load", "save", "memmap",
    "ctypes", "socket", "process", "thread", "environ", "getpid", "config", "info", "plot", "fetch", "lambdify",
    "autowrap", "ufuncify", "anneal", "evolution",
)  # fmt: skip
UNINITIALISED = frozenset(("empty", "empty_like"))
_DUNDER_ALLOWED = frozenset(("__init__", "__name__", "__main__"))
_KEPT = (Status.SUCCESS, Status.ERROR)
_ENTRY_BYTES = 400  # of an entry besides its texts


def is_deterministic(code: str) -> bool:
    """Whether two runs of `code` surely give the same; False when in doubt, and for what does not parse."""
    if len(code) > MAX_PARSED_CHARS:
        return False
    try:
        tree = ast.parse(strip_fences(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(map(_is_harmless, ast.walk(tree)))


def _is_harmless(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return all(_module_is_known(alias.name) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            return level == 0 and _module_is_known(module) and all(_member_is_known(alias.name) for alias in names)
        case ast.Name(id=name):
            return _name_is_known(name)
        case ast.Attribute(attr=name):
            return name == "__init__" or (not name.startswith("_") and _member_is_known(name))
        case ast.Constant(value=str() as text):
            # sympy evaluates text.
            return "__" not in text.replace("__main__", "") and "import" not in text
        case ast.AsyncFunctionDef() | ast.Await():
            return False
    return True


def _module_is_known(name: str) -> bool:
    first, *rest = name.split(".")
    return first in MODULES and all(_name_is_known(part) and not part.startswith("_") for part in rest)


def _member_is_known(name: str) -> bool:
    return name not in UNINITIALISED and _name_is_known(name)


def _name_is_known(name: str) -> bool:
    if name.startswith("__") and name not in _DUNDER_ALLOWED:
        return False
    lower = name.lower()
    return lower not in FORBIDDEN_NAMES and not any(part in lower for part in FORBIDDEN_PARTS)


class CachedSandbox:
    """`inner` with a cache of at most `cache_mb` MB of programs and results, the longest unused of which go first."""

    def __init__(self, inner: Sandbox, cache_mb: float):
        self.inner = inner
        self._kept = LRUCache(int(cache_mb * 2**20), getsizeof=_size)
        self._lock = threading.Lock()  # other threads' loops use the same cache
        self._hits = self._misses = self._uncacheable = 0

    async def run(self, code: str, **options: Any) -> Result:
        """See Sandbox.run. A run of a session is never cached: it depends on the runs before it."""
        given = {name: value for name, value in options.items() if value}
        if options.get("session") is not None or not is_deterministic(code):
            self._uncacheable += 1
            return await self.inner.run(code, **given)
        key = _key(code, given)
        with self._lock:
            found = self._kept.get(key)
        if found is not None:
            self._hits += 1
            return found
        self._misses += 1
        result = await self.inner.run(code, **given)
        if result.status in _KEPT and not _shows_address(result):
            with self._lock, suppress(ValueError):  # of one that is larger than the whole cache
                self._kept[key] = result
        return result

    async def start(self) -> None:
        await self.inner.start()

    async def end_session(self, session: str) -> None:
        await self.inner.end_session(session)

    async def close(self) -> None:
        """Close the sandbox; what is cached stays."""
        await self.inner.close()

    def stats(self) -> dict[str, float]:
        """The inner sandbox's, and cache_hits, cache_misses, cache_uncacheable (runs), cache_hit_rate (hits among all
        runs) and cache_bytes."""
        runs = self._hits + self._misses + self._uncacheable
        return {
            **self.inner.stats(),
            "cache_hits": self._hits,
            "cache_misses": self._misses,
            "cache_uncacheable": self._uncacheable,
            "cache_hit_rate": self._hits / runs if runs else 0.0,
            "cache_bytes": self._kept.currsize,
        }


def _size(result: Result) -> int:
    texts = (result.stdout, result.stderr, result.value or "")
    return _ENTRY_BYTES + sum(len(text.encode()) for text in texts) + sum(map(len, result.files.values()))


def _key(code: str, given: Mapping) -> bytes:
    digest = hashlib.sha256()
    files = sorted((given.get("files") or {}).items())
    rest = [(name, value) for name, value in given.items() if name not in ("files", "fetch_files")]
    for part in (code, repr(rest), repr(list(given.get("fetch_files", ()))), repr(files)):
        text = part.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8) + text)
    return digest.digest()


def _shows_address(result: Result) -> bool:
    return any(" at 0x" in text for text in (result.stdout, result.stderr, result.value or ""))
