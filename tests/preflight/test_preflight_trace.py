"""Are the libraries of trackers and traces installed, and is the receiver of traces one?"""

import pytest

from retool_mcore.errors import UserError
from retool_mcore.preflight import machine, trackers


def test_a_logger_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    machine.check_loggers(["console", "tensorboard"])
    with pytest.raises(
        UserError, match=r"train.loggers=wandb needs wandb, .*`pip install -e .\[wandb\].*without it\.$"
    ):
        machine.check_loggers(["console", "wandb"])
    with pytest.raises(UserError, match=r"train.loggers=mlflow needs mlflow, .*`pip install -e .\[mlflow\]"):
        machine.check_loggers(["mlflow"])


@pytest.mark.parametrize("missing", [None, ModuleNotFoundError])
def test_traces_need_their_library(monkeypatch, missing):
    def find(name):
        if missing:
            raise missing(name)

    monkeypatch.setattr(machine, "find_spec", find)
    with pytest.raises(UserError, match=r"trace.backend=otlp needs opentelemetry.*`pip install -e .\[trace\]"):
        trackers.check_receiver({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "OTEL_EXPORTER_OTLP_ENDPOINT, which is not set"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "OTEL_EXPORTER_OTLP_ENDPOINT, which is not set"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}, "localhost:4318/v1/traces is no address of HTTP"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "grpc://h:1"}, "grpc://h:1 is no address of HTTP"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "TRACES_PROTOCOL is 'http/json'"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "many"}, "OTEL_BSP_MAX_QUEUE_SIZE is 'many': expected a number of 1 or more"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "OTEL_BSP_MAX_QUEUE_SIZE is '0'"),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1.5"}, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is '1.5'"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "0"}, "OTEL_EXPORTER_OTLP_TIMEOUT is '0'"),
        ({"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "inf"}, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT is 'inf'"),
        ({"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "nan"}, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT is 'nan'"),
    ],
)
def test_settings_that_could_not_work_are_refused(variables, message):
    there = {} if message.startswith("OTEL_EXPORTER_OTLP_ENDPOINT") else {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1"}
    with pytest.raises(UserError, match=message):
        trackers.check_receiver(there | variables)


def test_a_receiver_that_is_silent_is_reported_and_stops_nothing(capsys):
    trackers.check_receiver({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:secret@127.0.0.1:9"})
    report = capsys.readouterr().out
    assert "http://127.0.0.1:9/v1/traces does not answer (" in report and "secret" not in report
