"""Programs whose files are fetched: that must be the run's own file, not what a link in its folder points to."""

from tests.support.hostile.hostile_case import ERROR, PROCESS_ONLY, SUCCESS, Case


def no_secret(result) -> str | None:
    return (
        "ESCAPED: fetched the secret"
        if "the secret" in repr(getattr(result, "files", "")) or "dGhlIHNlY3JldA" in repr(getattr(result, "files", ""))
        else None
    )


CASES = [
    Case(
        "fetch_symlink",
        "import os\nos.symlink('{secret}', 'out.txt')",
        SUCCESS | ERROR,
        fetch_files=("out.txt",),
        check=no_secret,
    ),
    Case(
        "fetch_hard_link",
        "import os\ntry: os.link('{secret}', 'out.txt')\nexcept OSError: pass",
        SUCCESS | ERROR,
        fetch_files=("out.txt",),
        check=no_secret,
        open_at=PROCESS_ONLY,
    ),
    Case(
        "fetch_through_folder_link",
        "import os\nos.symlink('{folder}', 'd')",
        SUCCESS | ERROR,
        fetch_files=("d/secret",),
        check=no_secret,
    ),
    Case(
        "fetch_absolute",
        "1",
        SUCCESS | ERROR | frozenset({"sandbox_error"}),
        fetch_files=("{secret}",),
        check=no_secret,
    ),
    Case(
        "fetch_dots",
        "1",
        SUCCESS | ERROR | frozenset({"sandbox_error"}),
        fetch_files=("../" * 12 + "{secret}",),
        check=no_secret,
    ),
    Case("fetch_fifo", "import os\nos.mkfifo('out.txt')", SUCCESS | ERROR, fetch_files=("out.txt",)),
    Case("fetch_device", "import os\nos.symlink('/dev/zero', 'out.txt')", SUCCESS | ERROR, fetch_files=("out.txt",)),
    Case(
        "fetch_sparse_gigabytes",
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\ntry:\n    open('out.txt', 'wb').truncate(60 << 20)\nexcept OSError: pass",
        SUCCESS | ERROR,
        fetch_files=("out.txt",),
        slow=True,
    ),
    Case("fetch_folder", "import os\nos.mkdir('out.txt')", SUCCESS | ERROR, fetch_files=("out.txt",)),
    Case(
        "fetch_unreadable",
        "import os\nopen('out.txt', 'w').close()\nos.chmod('out.txt', 0)",
        SUCCESS | ERROR,
        fetch_files=("out.txt",),
    ),
    Case(
        "fetch_endless_proc_file",
        "import os\nos.symlink('/proc/self/mem', 'out.txt')",
        SUCCESS | ERROR,
        fetch_files=("out.txt",),
    ),
]
