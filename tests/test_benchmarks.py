"""benchmarks/: one head for every result, a README that names every script, and no import of a test but of its rigs."""

import ast
import json
import re
from graphlib import TopologicalSorter

import pytest

from benchmarks import provenance

FOLDER = provenance.ROOT / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.rglob("*.py") if 'if __name__ == "__main__":' in path.read_text())
INSIDE = {"noting", "worker"}  # started by another script, not by hand


@pytest.mark.parametrize("path", sorted(provenance.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_says_where_it_comes_from(path):
    made = json.loads(path.read_text())["made"]
    assert tuple(made) == provenance.FIELDS and tuple(made["machine"]) == provenance.MACHINE
    for name, kind in {"commit": str, "date": str, "command": str, "versions": dict}.items():
        assert made[name] is None or isinstance(made[name], kind), name
    assert made["date"] is None or re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"])


def test_what_a_run_writes_has_that_head(tmp_path):
    path = provenance.write(
        tmp_path / "x.json", provenance.made(("numpy", "no-such-package"), words=["--n", "a b"]), {"n": 1}
    )
    found = json.loads(path.read_text())
    made = found["made"]
    assert found["n"] == 1 and tuple(made) == provenance.FIELDS and tuple(made["machine"]) == provenance.MACHINE
    assert list(made["versions"]) == ["numpy"] and made["command"].endswith("--n 'a b'")
    assert made["machine"]["cores"] >= 1 and made["machine"]["device"] is None


def test_a_list_of_plain_values_takes_one_line_and_nothing_else_changes():
    result = {"made": {}, "steps": [1.5, 2, None], "rows": [{"a": "x, y", "b": ["[", "c,  d"]}, [[], [1, 2]]]}
    text = provenance.as_text(result)
    assert json.loads(text) == result
    assert ' "steps": [1.5, 2, null],\n' in text and "[1, 2]\n" in text and '"a": "x, y",\n' in text


def test_the_readme_names_every_script_and_every_command_exists():
    commands = set(re.findall(r"python -m benchmarks\.([\w.]+)", (FOLDER / "README.md").read_text()))
    named = {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in SCRIPTS if path.stem not in INSIDE}
    assert commands == named


def test_every_result_is_cited_by_a_page():
    """By its file's name, or by the place of its table."""
    text = "".join(
        page.read_text() for page in [provenance.ROOT / "README.md", *(provenance.ROOT / "docs").rglob("*.md")]
    )
    cited = set(re.findall(r"(\w+)\.json\b", text)) | set(re.findall(r"<!-- table (\w+) -->", text))
    assert [path.name for path in provenance.RESULTS.glob("*.json") if path.stem not in cited] == []


def test_no_benchmark_imports_itself_by_way_of_others():
    names = {".".join(path.relative_to(provenance.ROOT).with_suffix("").parts): path for path in FOLDER.rglob("*.py")}
    arrows: dict[str, set[str]] = {}
    for name, path in names.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                # A script may import itself under the name by which other processes find its classes.
                arrows.setdefault(name, set()).update(found & set(names) - {name})
    TopologicalSorter(arrows).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("folder", "above"),
    [
        ("retool_mcore", r"tests|benchmarks"),
        ("docs", r"tests"),
        ("examples", r"tests|benchmarks"),
        ("benchmarks", r"tests(?!\.support\.)"),
        ("tests/support", r"benchmarks"),
    ],
)
def test_arrows_go_from_tests_to_benchmarks_to_rigs_to_the_package(folder, above):
    found = {}
    for path in (provenance.ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [f"{node.module}.{a.name}" for a in node.names] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if wrong := [name for name in names if re.match(rf"(?:{above})(?:\.|$)", name)]:
                found[path] = wrong
    assert not found


def test_mentioned_benchmarks_exist():
    pages = [provenance.ROOT / "README.md", *(provenance.ROOT / "docs").rglob("*.md")]
    text = "".join(page.read_text() for page in pages)
    for module in set(re.findall(r"-m benchmarks\.([\w.]*\w)", text)):
        assert (FOLDER / (module.replace(".", "/") + ".py")).is_file(), module
    for name in set(re.findall(r"(?<!:)benchmarks/([\w/]+\.\w+)", text)):
        assert (FOLDER / name).is_file(), name
