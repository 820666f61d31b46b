"""The map of the package, kept true: who may import whom, where other libraries come in, every door that is a string.

Reads source text only (ast): nothing of the package is imported, so it takes seconds and needs no torch.
"""

import ast
import re
import subprocess
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "retool_mcore"
TOP = {
    ".ci", ".dockerignore", ".github", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff",
    "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "benchmarks", "configs", "docker", "docs", "examples",
    "launch", "pyproject.toml", "retool_mcore", "setup.py", "slurm", "tests",
}  # fmt: skip
LARGEST = 1_000_000  # bytes of a tracked file

# What each folder may import, beside BASE; from the command line at the top down to what imports nothing.
BASE = {"errors", "files", "ports", "python_path", "resources", "tables", "temporary"}
EDGES = {
    "(top)": "api config metrics rewards",  # the names of `from retool_mcore import ...`, imported when asked for
    "api": "config runner sandbox",
    "analysis": "data metrics recipes rewards rollout state view",
    "cli": (
        "analysis backends cluster coldstart config explain metrics planner preflight runner sandbox state tools view"
    ),
    "coldstart": "backends data rewards runner sandbox",
    "cluster": "backends config data explain planner preflight recipes runner state",
    "explain": "metrics runner state",
    "runner": "backends config preflight state train",
    "train": "backends config data environments metrics recipes rewards rollout sandbox state tools",
    "gateway": "data rollout sandbox tools",
    "preflight": "config data planner recipes rewards sandbox state tools",
    "backends": "config data environments gateway metrics planner recipes rollout sandbox state tools",
    "recipes": "metrics rewards rollout sandbox",
    "rewards": "data official rollout",
    "rollout": "data sandbox state tools",
    "environments": "data sandbox tools",
    "view": "metrics sandbox state",
    "tools": "data sandbox",
    "planner": "rollout sandbox",
    "metrics": "sandbox",
    "data": "official sandbox",
    "official": "sandbox",
    "state": "",
    "sandbox": "",
    "config": "",
}
# Folders in which a library of another's release is touched.
LIBRARIES = {"verl": {"backends"}, "megatron": {"backends"}, "vllm": {"backends"}}

FOREIGN = {"sandbox/server/sandbox_api.py"}  # paths of other projects that begin like one of ours

HISTORY = {"test_architecture.py", "CHANGELOG.md"}  # speak of names that were or are not

DOTTED = re.compile(rf"(?:(?<![\w./-])|(?<=pkg://)){PACKAGE}(?:\.[A-Za-z_]\w*)+")
# Text in which our dotted names and paths stand; tests and benchmarks name the package's parts, too.
TEXTS = ("*.py", "*.yaml", "*.toml", "*.sh", "*.sbatch", "*.md", "run", "*.txt", "*.yml")
PLACES = (PACKAGE, "configs", "slurm", "launch", "tests", "benchmarks", "examples", "docs", ".ci", ".github", "docker")


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of the package."""
    found = {}
    for path in (ROOT / PACKAGE).rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def imports(path: Path) -> set[str]:
    """Modules that the file imports, anywhere in it; of `from package import name` the module `package.name` if it is
    one."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in modules() else node.module)
    return found


def folder(module: str) -> str:
    """ "train" of retool_mcore.train.rl; "config" of a module at the top."""
    return module.split(".")[1] if "." in module else "(top)"


def file_graph() -> dict[str, set[str]]:
    return {name: {m for m in imports(path) if m.split(".")[0] == PACKAGE} - {name} for name, path in modules().items()}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (Tarjan's strongly connected components of more than one node)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def edges() -> dict[tuple[str, str], str]:
    """(folder, folder it imports) -> one of the files that do."""
    return {
        (folder(name), folder(other)): f"{name} imports {other}"
        for name, others in file_graph().items()
        for other in others
        if folder(name) != folder(other)
    }


def test_the_repository_holds_text_and_pictures_and_nothing_new_at_its_top():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not (ROOT / ".git").exists():
        pytest.skip(f"no checkout that git reads: {listed.stderr}")
    files = listed.stdout.rstrip("\0").split("\0")
    assert {name.partition("/")[0] for name in files} == TOP
    large = [name for name in files if (ROOT / name).is_file() and (ROOT / name).stat().st_size > LARGEST]
    assert not large, "a download, or the result of a run?"


def test_folders_import_what_the_table_allows():
    found = {edge: how for edge, how in edges().items() if edge[1] not in BASE}
    wrong = [how for (one, other), how in found.items() if other not in EDGES.get(one, "").split() and other != "(top)"]
    assert not wrong, f"not in EDGES: {wrong}"
    stale = [(one, other) for one in EDGES for other in EDGES[one].split() if (one, other) not in found]
    assert not stale, f"EDGES allows what nobody needs any more: {stale}"


def test_no_circles():
    assert not (found := circles(file_graph())), f"files that import each other: {found}"
    folders: dict[str, set[str]] = {}
    for one, other in edges():
        folders.setdefault(one, set()).add(other)
    assert not (found := circles(folders)), f"folders that import each other: {found}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_are_touched_where_the_table_says(library):
    touched = {
        name: folder(name) for name, path in modules().items() for m in imports(path) if m.split(".")[0] == library
    }
    wrong = sorted(name for name, where in touched.items() if where not in LIBRARIES[library])
    assert not wrong, f"{library} is imported by {wrong}, outside {sorted(LIBRARIES[library])}"
    assert LIBRARIES[library] == set(touched.values()), "LIBRARIES allows what nobody needs any more"


@cache
def texts() -> list[tuple[Path, str]]:
    paths = [path for place in PLACES for pattern in TEXTS for path in (ROOT / place).rglob(pattern)]
    paths += [*ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    kept = [path for path in paths if path.is_file() and "results" not in path.parts and path.name not in HISTORY]
    return [(path, path.read_text()) for path in kept]


@cache
def names_in(module: str) -> set[str]:
    """What a module defines or imports at its top level, conditional parts included."""
    found = set()
    for node in ast.walk(tree(modules()[module])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def resolves(dotted: str) -> bool:
    """Whether it is a module, or a name (of a name ...) in one."""
    parts = dotted.split(".")
    known = max(count for count in range(1, len(parts) + 1) if ".".join(parts[:count]) in modules())
    rest = parts[known:]
    return not rest or rest[0] in names_in(".".join(parts[:known])) | {"__file__", "__version__"}


def test_every_dotted_name_of_ours_resolves():
    """Doors: external_lib, pkg://, worker_extension_cls, transport_module, entry points, `-m ...`, rewards, tools."""
    found = [(path, dotted) for path, text in texts() for dotted in DOTTED.findall(text)]
    for path, text in texts():  # programs that are strings, too
        for module, names in re.findall(rf"from ({PACKAGE}(?:\.\w+)*) import ([\w, ]+)", text):
            found += [(path, f"{module}.{name.split()[0]}") for name in names.split(",") if name.strip()]
    assert len({path.relative_to(ROOT).parts[0] for path, _ in found}) > 6, "the scan misses places"
    dead = sorted({f"{path.relative_to(ROOT)}: {dotted}" for path, dotted in found if not resolves(dotted)})
    assert not dead, "\n".join(dead)


def test_every_name_that_is_imported_or_used_of_a_module_is_there():
    """In the package, its tests and the benchmarks: `from package.module import name`, and `module.name`."""
    dead = set()
    for path, _ in texts():
        if path.suffix != ".py":
            continue
        bound: dict[str, set[str]] = {}  # a function may import another module under the same name
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    if full in modules():
                        bound.setdefault(alias.asname or alias.name, set()).add(full)
                    elif node.module not in modules() or alias.name not in names_in(node.module):
                        dead.add(f"{path.relative_to(ROOT)}: {full}")
        stored = {n.id for n in ast.walk(tree(path)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        stored |= {n.arg for n in ast.walk(tree(path)) if isinstance(n, ast.arg)}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found = bound.get(node.value.id, set()) if node.value.id not in stored else set()
                known = not found or any(f"{m}.{node.attr}" in modules() or node.attr in names_in(m) for m in found)
                if not known and not node.attr.startswith("__"):
                    dead.add(f"{path.relative_to(ROOT)}: {' or '.join(sorted(found))}.{node.attr}")
    assert not dead, "\n".join(sorted(dead))


def test_every_path_of_ours_is_a_file():
    """`train/rl.py` in a comment or a page, with or without `retool_mcore/` before it; of the tests with `tests/`."""
    ours = sorted({path.name for path in (ROOT / PACKAGE).iterdir() if path.is_dir() and path.name != "__pycache__"})
    pattern = re.compile(rf"(?<![\w/.-])(?:{PACKAGE}/|tests/)?((?:{'|'.join(ours)})/[\w/]*\w\.py)\b")
    roots = (ROOT / PACKAGE, ROOT / "tests", ROOT)
    dead = {
        f"{path.relative_to(ROOT)}: {found}"
        for path, text in texts()
        for found in pattern.findall(text)
        if not any((root / found).is_file() for root in roots) and found not in FOREIGN
    }
    assert not dead, "\n".join(sorted(dead))


def test_no_pattern_repeats_a_group_possessively():
    """Python before 3.11.5, which Debian 12 has, matches `(...)*+` wrongly (cpython#106052); `(?>(...)*)` is right."""
    wrong = re.compile(r"(?<!\\)\)[*+?]\+")
    lines = ((path, line) for path in (ROOT / PACKAGE).rglob("*.py") for line in path.read_text().splitlines())
    assert [f"{path.name}: {line.strip()}" for path, line in lines if wrong.search(line)] == []


def test_every_stage_has_its_module():
    """`-m retool_mcore.train.{stage}` is put together at run time: of every stage that the command line knows."""
    sources = {name: path.read_text() for name, path in modules().items()}
    stages = set(re.findall(r'@command\(\s*"(\w+)"', sources[f"{PACKAGE}.cli.stages"])) - {"prepare"}
    assert len(stages) >= 4
    heads = {
        h for text in sources.values() for h in re.findall(rf'f"({PACKAGE}(?:\.\w+)+)\.\{{(?:stage|module)\}}', text)
    }
    assert heads and all(f"{head}.{stage}" in modules() for head in heads for stage in stages)


def test_entry_points_and_package_data_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    points = [*project["project"]["scripts"].values()]
    points += [value for group in project["project"]["entry-points"].values() for value in group.values()]
    assert len(points) >= 3
    for point in points:
        module, _, name = point.partition(":")
        assert module in modules() and (not name or name in names_in(module)), point
    data = re.findall(r'"(retool_mcore[.\w]*)": \[([^]]*)\]', (ROOT / "setup.py").read_text())
    assert len(data) >= 2
    for package, patterns in data:
        folder = "configs" if package == f"{PACKAGE}.configs" else package.replace(".", "/")
        for pattern in re.findall(r'"([^"]+)"', patterns):
            assert list((ROOT / folder).glob(pattern)), (package, pattern)
