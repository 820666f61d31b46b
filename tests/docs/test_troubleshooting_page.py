"""The messages of docs/troubleshooting.md are said by the code, in these words."""

import ast
import re
from pathlib import Path

import pytest
import yaml

import retool_mcore

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"


def messages() -> list[str]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [re.match(r"\| `(.+?)` \|", line)[1] for line in lines]


@pytest.fixture(scope="module")
def said() -> str:
    """Every text of the package and of the set-up script, one a line; … is what a run fills in."""
    texts = [(ROOT / "launch" / "setup.sh").read_text().replace("\n", " ")]
    for path in Path(retool_mcore.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    for path in Path(retool_mcore.__file__).parent.rglob("*.yaml"):
        texts += [re.sub(r"\{[^{}]*\}", "…", text) for text in strings(yaml.safe_load(path.read_text()))]
    return "\n".join(text.replace("\n", " ") for text in texts)


def strings(tree) -> list[str]:
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [tree] if isinstance(tree, str) else [text for part in parts for text in strings(part)]


def pattern(message: str) -> str:
    return "[^\n]*?".join(map(re.escape, message.split("…")))


@pytest.mark.parametrize("message", messages())
def test_the_code_says_it(message, said):
    assert re.search(pattern(message), said), f"nothing says {message!r}"


def test_a_message_that_nothing_says_is_found(said):
    assert len(messages()) > 40
    assert not re.search(pattern("unknown key …; the nearest valid word is"), said)
