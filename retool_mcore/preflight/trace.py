"""Libraries that a run asks for and a plain installation lacks: of tracing and of loggers."""

from collections.abc import Iterable
from importlib.util import find_spec

from retool_mcore.errors import UserError

EXTRAS = {"mlflow": "trace", "wandb": "wandb"}


def check_trace(backend: str, key: str = "trace.backend", off: str = "trace.backend=none") -> None:
    """Raises UserError for a library that `key` names and that is not installed; `off`: how to do without."""
    if backend in EXTRAS and find_spec(backend) is None:
        raise UserError(
            f"{key}={backend} needs {backend}, which is not installed: `pip install -e .[{EXTRAS[backend]}] -c "
            f"launch/constraints-cpu.txt` (or -gpu.txt), or set {off}."
        )


def check_loggers(loggers: Iterable[str]) -> None:
    for name in loggers:
        check_trace(name, "train.loggers", "train.loggers without it")
