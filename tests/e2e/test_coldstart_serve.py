"""The cold-start pipeline against a real vLLM server: the transport, with a model that cannot rewrite."""

import json
import socket
import subprocess
import time
import urllib.request

import pytest
from e2e_runs import COMMAND, retool

from retool_mcore.data.tiny_model import make_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
START_S = 420


@pytest.mark.timeout(900)
def test_a_vllm_server_answers_every_row_once(tmp_path):
    model = make_tiny_model(tmp_path / "model", 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rows = [{"p": f"Compute {n} + {n + 1}.", "r": f"\\boxed{{{2 * n + 1}}}", "a": str(2 * n + 1)} for n in range(200)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = tmp_path / "coldstart.json"  # JSON is YAML
    endpoint = {"url": f"http://127.0.0.1:{port}/v1", "name": "tiny", "max_tokens": 16, "concurrency": 16}
    columns = {"problem": "p", "reasoning": "r", "answer": "a"}
    rewrite = {"model": endpoint, "instruction": "Rewrite."}
    source = {"path": str(tmp_path / "rows.jsonl"), "columns": columns}
    config.write_text(json.dumps({"output": str(tmp_path / "out"), "source": source, "rewrite": rewrite}))
    refused = retool("coldstart", "run", str(config), timeout_s=120)
    assert refused.returncode == 2 and "does not answer" in refused.stderr
    arguments = ["--max-model-len", "512", "--enforce-eager", "--dtype", "float32"]
    command = [COMMAND, "coldstart", "serve", str(config), "--checkpoint", str(model), *arguments]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, tmp_path / "server.log")
        first = retool("coldstart", "run", str(config), timeout_s=300)
        stages = json.loads((tmp_path / "out/statistics.json").read_text())
        counts = {stage["stage"]: stage for stage in stages["stages"]}
        # A random model writes no rewrite: every row is refused for its length or its form, and none is lost.
        assert first.returncode == 2 and "no row is left" in first.stderr
        assert counts["rewrite"]["rows_in"] == stages["calls"]["rewrite"]["calls"] == 200
        assert stages["calls"]["rewrite"]["tokens_out"] > 0
        assert len((tmp_path / "out/dropped.jsonl").read_text().splitlines()) == 200
    finally:
        server.terminate()
        server.wait(60)
    again = retool("coldstart", "run", str(config), timeout_s=120)
    assert again.returncode == 2 and "no row is left" in again.stderr


def _wait(url: str, server: subprocess.Popen, log) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-4000:])
