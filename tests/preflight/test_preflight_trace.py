import pytest

from retool_mcore.errors import UserError
from retool_mcore.preflight import machine


def test_tracing_that_is_off_needs_nothing(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    machine.check_trace("none")
    with pytest.raises(UserError, match=r"needs mlflow, which is not installed: `pip install -e .\[trace\]"):
        machine.check_trace("mlflow")


def test_what_is_installed_passes(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    machine.check_trace("mlflow")


def test_a_logger_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    machine.check_loggers(["console", "tensorboard"])
    with pytest.raises(
        UserError, match=r"train.loggers=wandb needs wandb, .*`pip install -e .\[wandb\].*without it\.$"
    ):
        machine.check_loggers(["console", "wandb"])
