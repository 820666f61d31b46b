import pytest

from retool_mcore.errors import UserError
from retool_mcore.preflight import trace


def test_tracing_that_is_off_needs_nothing(monkeypatch):
    monkeypatch.setattr(trace, "find_spec", lambda name: None)
    trace.check_trace("none", 1)
    with pytest.raises(UserError, match=r"needs MLflow, which is not installed: `pip install -e .\[trace\]"):
        trace.check_trace("mlflow", 1)


@pytest.mark.parametrize(
    ("backend", "prompts", "message"),
    [("weave", 1, "trace.backend=weave: expected none or mlflow"), ("none", 0, "trace.prompts=0: expected at least 1")],
)
def test_other_backends_and_no_prompt_are_refused(backend, prompts, message):
    with pytest.raises(UserError, match=message):
        trace.check_trace(backend, prompts)


def test_what_is_installed_passes(monkeypatch):
    monkeypatch.setattr(trace, "find_spec", lambda name: object())
    trace.check_trace("mlflow", None)
