"""`retool bundle`: what a report of a bug needs of a run in one file; no weights, data, trajectories or secrets."""

import io
import os
import platform
import re
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote

from retool_mcore import resources
from retool_mcore.errors import UserError, no_run
from retool_mcore.files import tail
from retool_mcore.preflight import machine

# Files below the run's folder: of stages, of evaluations, and of the jobs that Slurm ran.
KEPT = (
    "*/config*.yaml",
    "*/episode.yaml",
    "*/attempts.jsonl",
    "*/failures.jsonl",
    "*/silences.json",
    "*/heartbeat/*.json",
    "*/metrics/*.jsonl",
    "*/log.txt",
    "*/stacks/**/*",
    "*/COMPLETE",
    "*/STOPPED",
    "*/checkpoints/*/COMPLETE",
    "eval/*/config*.yaml",
    "eval/*/log.txt",
    "eval/*/*.json",
    "slurm/*.out",
    "slurm/*.yaml",
    "slurm/*.log",
    "slurm/*-ray/**/*",
)
MOST = 4 << 20  # bytes of one file, its last
_NAMES = "key|token|secret|password|passwd|credentials?|authorization|headers"  # words in the names of secrets
_VARIABLE = re.compile(rf"({_NAMES})(_|$)", re.IGNORECASE)
# Patterns of secrets, and what replaces each: values that are called a secret, bearers, a URL's credentials, and tokens
# that are known by their beginning.
_SECRETS = (
    (
        re.compile(
            rf"""(?i)\b(\w*(?:{_NAMES})["']?\s*[:=]\s*["']?(?:bearer\s+|basic\s+)?)[^\s"',;)\]}}]{{6,}}""".encode()
        ),
        rb"\1***",
    ),
    (re.compile(rb"(?i)\b(bearer\s+)[\w.~+/=-]{6,}"), rb"\1***"),
    (re.compile(rb"""://[^/\s@"']{1,200}@"""), b"://***@"),
    (re.compile(rb"\b(?:hf_|sk-|ghp_|github_pat_|glpat-|xox[bp]-|AKIA)[\w-]{12,}"), b"***"),
)


def masked(text: bytes) -> bytes:
    """`text` without the values of this environment's secrets, and without what looks like one."""
    for name, value in os.environ.items():
        if _VARIABLE.search(name):
            # A list of headers holds a secret each: NAME=SECRET,NAME=SECRET.
            secrets = [value, *(unquote(one.partition("=")[2]) for one in value.split(","))]
            for secret in (one for one in secrets if len(one) >= 6):
                text = text.replace(secret.encode(), b"***")
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def environment() -> str:
    """Versions, machine and GPUs, a line each."""
    packages = sorted({f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions()}, key=str.lower)
    free = resources.available_memory_bytes() / machine.GIB
    memory = f"{resources.processors()} processors, {free:.1f} GiB of memory available"
    about = [platform.platform(), f"Python {platform.python_version()}", memory, *machine.gpu_names()]
    return "\n".join([*about, *packages, ""])


def parts(run: Path) -> Iterator[tuple[str, bytes]]:
    """Name and masked content of each file; the end of a long one, from a whole line on."""
    for path in sorted({path for pattern in KEPT for path in run.glob(pattern)}):
        if path.is_symlink() or not path.is_file():
            continue
        text = tail(path, MOST)
        yield str(path.relative_to(run)), masked(text[text.find(b"\n") + 1 :] if path.stat().st_size > MOST else text)


def write(run: Path, out: Path | None = None) -> None:
    """Writes `out`, by default RUN's name in this folder, and says what to look at. Raises UserError where `run` is no
    run, or `out` is there."""
    out = out or Path(f"bundle-{run.resolve().name}.tar.gz")
    files = dict(parts(run)) if run.is_dir() else {}
    if not files:
        raise no_run(run)
    if out.exists():
        raise UserError(f"{out} is there already: remove it, or give another by --out.")
    with tarfile.open(out, "w:gz") as archive:
        for name, content in {"environment.txt": environment().encode(), **files}.items():
            info = tarfile.TarInfo(f"{run.resolve().name}/{name}")
            info.size, info.mode = len(content), 0o600
            archive.addfile(info, io.BytesIO(content))
    size = out.stat().st_size / 2**20
    print(f"{out}: {len(files) + 1} files, {size:.1f} MiB: configurations, logs, metrics and stacks.")
    print(
        "Keys, tokens and passwords are masked where they look like it. Logs may quote prompts and paths: look first."
    )
