"""Tracing of episodes: a known backend that is installed."""

from importlib.util import find_spec

from retool_mcore.errors import UserError

BACKENDS = ("none", "mlflow")


def check_trace(backend: str, prompts: int | None) -> None:
    """Raises UserError for another backend, one that is not installed, or `prompts` below 1 (None: all)."""
    if backend not in BACKENDS:
        raise UserError(f"trace.backend={backend}: expected {' or '.join(BACKENDS)}.")
    if prompts is not None and prompts < 1:
        raise UserError(f"trace.prompts={prompts}: expected at least 1, or null for all; trace.backend=none is off.")
    if backend == "mlflow" and find_spec("mlflow") is None:
        raise UserError(
            "trace.backend=mlflow needs MLflow, which is not installed: `pip install -e .[trace] -c "
            "launch/constraints-cpu.txt` (or -gpu.txt), or set trace.backend=none."
        )
