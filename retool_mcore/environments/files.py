"""Operations of a policy on a repository's files: look, search and edit. Pure functions of {path: text}."""

from collections.abc import Mapping, MutableMapping

MAX_FILES = 200
MAX_FILE_CHARS = 200_000
# What a sandbox surely takes: a run that it cannot prepare would count as the sandbox's failure, and void the group.
MAX_CHARS = 2_000_000
MAX_PATH_BYTES, MAX_PATH_PARTS = 200, 16
_MAX_MATCHES = 50


class RepositoryError(Exception):
    """The policy asked for what cannot be done. The message is what it reads."""


def list_files(files: Mapping[str, str]) -> str:
    """List one line a file: path and number of lines."""
    return "\n".join(f"{path} ({len(text.splitlines())} lines)" for path, text in sorted(files.items()))


def view(files: Mapping[str, str], path: str, start: int = 1, end: int | None = None) -> str:
    """Lines `start` to `end` (both inclusive, counted from 1) of a file, each with its number."""
    lines = _read(files, path).splitlines()
    end = len(lines) if end is None else min(end, len(lines))
    if not lines:
        return f"{path} is empty."
    if not 1 <= start <= end:
        raise RepositoryError(f"{path} has lines 1 to {len(lines)}; {start} to {end} is no part of them.")
    return "\n".join(f"{number} {lines[number - 1]}" for number in range(start, end + 1))


def search(files: Mapping[str, str], text: str) -> str:
    """Every line that holds `text`, as path:number: line."""
    if not text:
        raise RepositoryError("the text to search for is empty.")
    matches = [
        f"{path}:{number}: {line.strip()}"
        for path, whole in sorted(files.items())
        for number, line in enumerate(whole.splitlines(), 1)
        if text in line
    ]
    if not matches:
        return f"No line holds {text!r}."
    more = [f"and {len(matches) - _MAX_MATCHES} more"] if len(matches) > _MAX_MATCHES else []
    return "\n".join([*matches[:_MAX_MATCHES], *more])


def replace(files: MutableMapping[str, str], path: str, old: str, new: str) -> str:
    """Replace the only occurrence of `old` in a file by `new`."""
    text = _read(files, path)
    if not old:
        raise RepositoryError("old is empty: give the text to replace, or write the whole file.")
    count = text.count(old)
    if count != 1:
        what = "does not hold" if count == 0 else f"holds {count} times"
        raise RepositoryError(f"{path} {what} the text to replace; give text that stands there exactly once.")
    _write(files, path, text.replace(old, new))
    return f"{path} is changed."


def write(files: MutableMapping[str, str], path: str, text: str) -> str:
    """Make or overwrite a whole file."""
    known = path in files
    _write(files, path, text)
    return f"{path} is {'overwritten' if known else 'made'}."


def _read(files: Mapping[str, str], path: str) -> str:
    if path not in files:
        raise RepositoryError(f"there is no file {path!r}; list_files shows those that there are.")
    return files[path]


def _write(files: MutableMapping[str, str], path: str, text: str) -> None:
    parts = path.split("/")
    if len(path.encode("utf-8", "replace")) > MAX_PATH_BYTES or len(parts) > MAX_PATH_PARTS:
        raise RepositoryError(f"a path may have {MAX_PATH_BYTES} bytes and {MAX_PATH_PARTS} names at most.")
    if not path or path.startswith("/") or "" in parts or ".." in parts or "." in parts or "\0" in path:
        raise RepositoryError(f"{path!r} is no path inside the repository; give one like package/module.py.")
    if any(path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in files):
        raise RepositoryError(f"{path!r} is a folder, or lies inside a file; choose another path.")
    if len(text) > MAX_FILE_CHARS:
        raise RepositoryError(f"a file may have {MAX_FILE_CHARS} characters at most, not {len(text)}.")
    if sum(map(len, files.values())) + len(text) > MAX_CHARS:
        raise RepositoryError(f"a repository may have {MAX_CHARS} characters at most.")
    if path not in files and len(files) >= MAX_FILES:
        raise RepositoryError(f"a repository may have {MAX_FILES} files at most.")
    files[path] = text
