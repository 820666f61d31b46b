"""Links, anchors, paths, dotted names and commands of README.md, CONTRIBUTING.md and docs/ lead somewhere."""

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from retool_mcore import cli
from retool_mcore.config import CONFIG_DIR, compose
from retool_mcore.errors import UserError

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
STAGES = ("prepare", "sft", "rl", "eval", "export", "doctor")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def prose(text: str) -> str:
    """Without blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def code(text: str) -> list[str]:
    """Lines of code: those of blocks and, one each, what stands between backticks; a backslash joins lines."""
    text = re.sub(r"\\\n\s*", " ", text)
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [line for line in prose(text).splitlines() if line.startswith("    ")]
    return [line.strip().removeprefix("$ ") for line in lines] + re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(text))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(page: Path) -> list[str]:
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            found.append(target)
    return found


def parse(words: list[str]) -> None:
    """Raises for a subcommand, option or key that does not exist; runs nothing."""
    command = typer.main.get_command(cli.app)
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            raise UserError(f"no command {words[:1]}")
        command, words = command.commands[words[0]], words[1:]
    name = command.name
    if "--help" in words:
        return
    context = command.make_context(name, list(words))
    overrides = [word for word in words if re.match(r"[\w.+]+=", word) and not word.startswith("--")]
    if name == "submit":
        for stage in [word for word in context.params["words"] if word in STAGES]:
            compose(stage, overrides)
    elif name in STAGES:
        compose(name, overrides)


def commands(page: Path) -> list[str]:
    """`retool ...` of a page, without comments; those with placeholders (capitals, dots) are forms and no commands."""
    found = []
    for line in code(page.read_text()):
        line = re.sub(r"\s+#.*", "", line)
        line = re.sub(r"^(?:watch -n \d+ |\.venv/bin/)", "", line)
        if line.startswith("retool ") and not re.search(r"\.\.\.|\b[A-Z]{3,}\b|=N\b|\bN$|\|", line):
            found.append(line)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    assert not broken_links(page)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_are_understood(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    failed = {}
    for line in commands(page):
        if "unknown key" in page.read_text().partition(line)[2][:200]:  # shown for its error
            continue
        try:
            parse(shlex.split(line)[1:])
        except (UserError, typer.exceptions.TyperException, click.ClickException, SystemExit) as error:
            failed[line] = str(error)
    assert not failed


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_programs_tests_and_files_are_there(page):
    missing = []
    for line in code(page.read_text()):
        for pattern in (r"python (benchmarks/[\w/]+\.py)", r"pytest .*?(tests/[\w/.]+)", r"((?:\./)?launch/\w+\.sh)"):
            missing += [path for path in re.findall(pattern, line) if not (ROOT / path).exists()]
        for path in re.findall(r"^((?:retool_mcore|configs|docs|tests|benchmarks|slurm)/[\w./-]+)$", line):
            if not (ROOT / path).exists() and "NAME" not in path:
                missing.append(path)
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_dotted_names_resolve(page):
    """Modules by their file, without importing them; functions and classes by their definition in it."""
    missing = []
    for name in set(re.findall(r"\bretool_mcore(?:\.\w+)+", page.read_text())):
        parts = name.split(".")
        path = ROOT / parts[0]
        while len(parts) > 1 and (path / parts[1]).is_dir():
            path, parts = path / parts[1], parts[1:]
        if len(parts) > 1 and (path / f"{parts[1]}.py").is_file():
            path, parts = path / f"{parts[1]}.py", parts[1:]
        text = path.read_text() if path.is_file() else (path / "__init__.py").read_text()
        if any(not re.search(rf"^\s*(?:def|class|async def)? ?{part}\b", text, re.MULTILINE) for part in parts[1:]):
            missing.append(name)
    assert not missing


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text() + (ROOT / "docs" / "measured" / "index.md").read_text()
    assert not [
        name
        for name in NAMES
        if name.startswith("docs/") and f"({Path(name).name})" not in index and not name.endswith("index.md")
    ]


def test_configs_cite_pages_that_are_there():
    cited = {
        (path.name, word)
        for path in CONFIG_DIR.rglob("*.yaml")
        for word in re.findall(r"[\w./-]+\.md\b", path.read_text())
    }
    assert not [pair for pair in cited if not (ROOT / pair[1]).is_file()]


def test_what_is_broken_is_found(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("# A page\n[a](#a-page) [b](none.md) [c](#no-such)\n\n    retool rl train.stepp=1\n")
    assert broken_links(page) == ["none.md", "#no-such"]
    assert commands(page) == ["retool rl train.stepp=1"]
    for words in (["rl", "train.stepp=1"], ["rll"], ["plan", "--modell", "x"]):
        with pytest.raises((UserError, typer.exceptions.TyperException, click.ClickException)):
            parse(words)
