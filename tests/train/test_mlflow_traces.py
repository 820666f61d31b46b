"""Episodes in a real MLflow server. Its command is RETOOL_TEST_MLFLOW, or that of the package mlflow."""

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from importlib import metadata

import pytest

mlflow = pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `trace` is not installed")

from test_episode_traces import SETTINGS, TOKENIZER, group, sample  # noqa: E402

from retool_mcore.train.traces import Traces  # noqa: E402

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def command() -> str:
    """Of a server: mlflow-skinny, which has the same command, has none."""
    if named := os.environ.get("RETOOL_TEST_MLFLOW"):
        return named
    try:
        metadata.version("mlflow")
    except metadata.PackageNotFoundError:
        pytest.skip("no MLflow server: pip install mlflow, or name its command in RETOOL_TEST_MLFLOW")
    return shutil.which("mlflow")


@pytest.fixture
def server(tmp_path, monkeypatch):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    places = [f"--backend-store-uri=sqlite:///{tmp_path}/m.db", f"--artifacts-destination={tmp_path}/artifacts"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [command(), "server", *places, "--port", str(port), "--workers", "1"], env=environment, cwd=tmp_path,
        stdout=(tmp_path / "log").open("w"), stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 300
        while not answers(address):
            assert process.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(1)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-mlflow-experiment-id=0")
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def answers(address: str) -> bool:
    try:
        return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200
    except OSError:
        return False


def test_episodes_are_traces_that_its_filters_find(server, monkeypatch):
    monkeypatch.setattr("retool_mcore.train.traces.SEND_S", 60.0)
    monkeypatch.setattr("retool_mcore.train.traces.CLOSE_S", 60.0)
    made = Traces(SETTINGS | {"text": True}, TOKENIZER)
    made.add(group(sample(), sample(number=1)))
    made.add(group(sample("000004-000000"), uid="000004-000000", step=4))
    made.close()
    assert made.metrics() == {"trace/spans_sent": 15, "trace/spans_dropped": 0}
    mlflow.set_tracking_uri(server)

    def found(filter_string):
        traces = mlflow.search_traces(locations=["0"], return_type="list", filter_string=filter_string)
        return sorted(trace.info.trace_metadata["mlflow.trace.session"] for trace in traces)

    assert found("tags.step = '3'") == ["000003-000000_0", "000003-000000_1"]
    assert found("tags.step = '3' AND tags.rollout_n = '1'") == ["000003-000000_1"]
    assert found("tags.sample_index = '9' AND tags.step = '4'") == ["000004-000000_0"]
    assert found("tags.sample_index = '8'") == []
    (trace,) = mlflow.search_traces(locations=["0"], return_type="list", filter_string="tags.step = '4'")
    spans = {(span.name, span.span_type): span for span in trace.data.spans}
    episode = spans["invoke_agent retool", "AGENT"]
    assert episode.inputs[0]["parts"][0]["content"] == "8 9"
    assert spans["execute_tool code_interpreter", "TOOL"].outputs == "42\n"
    assert ("chat tiny", "CHAT_MODEL") in spans and len(trace.data.spans) == 5
