"""What every result file begins with: where its figures come from. One schema, `made`, which tests/config checks.

    {"made": {"commit": ..., "date": ..., "command": ..., "machine": {...}, "versions": {...}}, ...the figures}

A value that nobody noted is null, never a guess: so are the commits of the files of before this schema.
"""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FIELDS = ("commit", "date", "command", "machine", "versions")
MACHINE = ("device", "devices", "cores", "memory_gb", "kernel", "python", "load")


def made(packages: Iterable[str], words: Iterable[str] | None = None, device: tuple[str, int] | None = None) -> dict:
    """The head of a result file; call it before the run, whose load is not the machine's.

    packages: distributions whose versions matter, those that are not installed left out. words: the command's words,
    sys.argv's unless given. device: name and number of accelerators; None: the CPU.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    name, number = device or (None, None)
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": command(sys.argv[1:] if words is None else words),
        "machine": {
            "device": name,
            "devices": number,
            "cores": os.cpu_count(),
            "memory_gb": round(memory / 2**30, 1),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load": round(os.getloadavg()[0], 2),
        },
        "versions": versions(packages),
    }


def command(words: Iterable[str]) -> str:
    """The command that runs this program with `words`."""
    spec = sys.modules["__main__"].__spec__
    return shlex.join(["python", "-m", spec.name if spec else Path(sys.argv[0]).stem, *words])


def without(words: Sequence[str], *, flags: Set[str] = frozenset(), valued: Set[str] = frozenset()) -> list[str]:
    """`words` without `flags`, and without the options `valued` and their values: folders mean nothing elsewhere."""
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if word not in flags | valued and before not in valued]


def commit() -> str | None:
    """The checkout's commit, with + where files differ from it; None outside a checkout."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
    if head.returncode != 0:
        return None
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout
    return head.stdout.strip() + ("+" if changed else "")


def versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def gpus() -> tuple[str, int] | None:
    """`device` of `made`, as torch sees it."""
    import torch

    return (torch.cuda.get_device_name(0), torch.cuda.device_count()) if torch.cuda.is_available() else None


def write(path: str | Path, head: Mapping, figures: Mapping) -> Path:
    """Write a result file; `path`: a name under benchmarks/results, or a path that ends in .json."""
    path = Path(path) if str(path).endswith(".json") else RESULTS / f"{path}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_text({"made": dict(head)} | dict(figures)))
    return path


def as_text(result: Mapping) -> str:
    """Return a result file's text: JSON with an entry a line, but a list of plain values on one line."""

    def on_one_line(found: re.Match) -> str:
        return "[" + re.sub(r",\n\s+", ", ", found[1]) + "]"

    # Texts hold no line breaks in JSON; a list with a bracket in a text keeps its lines.
    return re.sub(r"\[\n\s+([^\[\]{}]*?)\n\s*\]", on_one_line, json.dumps(result, indent=1)) + "\n"
