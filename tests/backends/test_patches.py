"""What is replaced of a library is in one table, and another release of the library ends a stage with one sentence."""

import ast
import types
from pathlib import Path

import pytest

from retool_mcore.backends import patches
from retool_mcore.backends.library_patch import LibraryPatch
from retool_mcore.backends.patches import PATCHES, check

FOLDER = Path(patches.__file__).parent
LIBRARIES = ("verl", "megatron", "vllm", "torch", "ray", "importlib")


def test_what_is_installed_is_what_ours_was_written_for():
    check("cpu")
    here = [p for p in PATCHES if any(patches.installed(release.rpartition(" ")[0]) for release in p.sources)]
    assert len(here) > 15


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sources": {"verl 0.9.1": "000000000000"}}, "its source is not the one that ours was written for"),
        (
            {"sources": {"verl 0.9.0": "752484d705ff"}},
            "of verl 0.9.1 is replaced by ours, which was written for verl 0.9.0",
        ),
        (
            {"place": "verl.workers.utils.padding:gone"},
            "padding:gone of verl 0.9.1 is replaced by ours, and is no longer there",
        ),
    ],
)
def test_another_source_or_release_is_one_sentence(change, sentence):
    known = next(patch for patch in PATCHES if patch.place.endswith(":no_padding_2_padding"))
    check("cpu", [known])
    with pytest.raises(RuntimeError, match=sentence) as raised:
        check("cpu", [known._replace(**change)])
    assert "see to backends/megatron/packed_layout.py" in str(raised.value) and "\n" not in str(raised.value)


def test_a_change_of_the_source_changes_its_digest(tmp_path):
    def digest(text: str) -> str:
        (tmp_path / "library").mkdir(exist_ok=True)
        (tmp_path / "library" / "part.py").write_text(text)
        patches._parsed.cache_clear()
        return patches.digest("library.part:A.f", str(tmp_path))

    one = digest("class A:\n    def f(self):\n        return 1\n")
    assert digest("x = 1\n\nclass A:\n\n    def f(self):\n\n        return 1\n") == one
    assert digest("class A:\n    def f(self):\n        return 2\n") != one


def test_what_is_replaced_is_listed():
    """Every file that writes into a module of a library, or registers where nothing may be registered."""
    listed = {patch.by for patch in PATCHES}
    assert all((FOLDER.parent / by).is_file() for by in listed)
    for path in FOLDER.rglob("*.py"):
        if _writes(ast.parse(path.read_text())):
            assert f"backends/{path.relative_to(FOLDER)}" in listed, path
    with pytest.raises(RuntimeError, match="backends/patches.py does not list it"):
        LibraryPatch(types.ModuleType("verl.other"), "part")


def _writes(tree: ast.Module) -> list[str]:
    """Names of libraries' modules, functions and classes of which the file replaces a part."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {(a.asname or a.name).split(".")[0] for a in node.names if a.name.split(".")[0] in LIBRARIES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            bound |= {alias.asname or alias.name for alias in node.names}
    found = []
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for target in (
            inner for outer in targets for inner in (outer.elts if isinstance(outer, ast.Tuple) else [outer])
        ):
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Attribute):
                base = target.value
                while isinstance(base, ast.Attribute):
                    base = base.value
                if isinstance(base, ast.Name) and base.id in bound:
                    found.append(base.id)
    return found
