import pytest

from retool_mcore.errors import UserError
from retool_mcore.preflight import trace


def test_tracing_that_is_off_needs_nothing(monkeypatch):
    monkeypatch.setattr(trace, "find_spec", lambda name: None)
    trace.check_trace("none")
    with pytest.raises(UserError, match=r"needs mlflow, which is not installed: `pip install -e .\[trace\]"):
        trace.check_trace("mlflow")


def test_what_is_installed_passes(monkeypatch):
    monkeypatch.setattr(trace, "find_spec", lambda name: object())
    trace.check_trace("mlflow")


def test_a_logger_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(trace, "find_spec", lambda name: None)
    trace.check_loggers(["console", "tensorboard"])
    with pytest.raises(
        UserError, match=r"train.loggers=wandb needs wandb, .*`pip install -e .\[wandb\].*without it\.$"
    ):
        trace.check_loggers(["console", "wandb"])
