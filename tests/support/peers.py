"""Runs two peers' own tests against our service: SandboxFusion's of Python and isolation, verl's of its sandbox client.

    python -m tests.support.peers --sandboxfusion CHECKOUT --verl CHECKOUT

Neither package on PyPI holds them, so each is a checkout that you give; nothing is copied out of it but into a
temporary folder. SandboxFusion's tests talk to an app in their own process: stand-ins for the names that they import
send the requests to our service instead. Ends with 1 when anything but the intended differences below fails, or one of
these passes. tests/sandbox/test_peers.py holds the same behaviours in our own words, and runs everywhere.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES = {
    "sandboxfusion": (Path("sandbox", "tests", "runners"), ["test_python.py", "test_isolation.py"]),
    "verl": (Path("tests", "utils", "reward_score", "reward_score"), ["test_sandbox_fusion_on_cpu.py"]),
}
INTENDED = {
    "test_python_fetch_files": "a file outside of the program's folder, /mnt/b, is neither written nor fetched",
    "test_isolation_network_server_127": "programs have no sockets but those of their own processes",
    "test_isolation_network_server_localhost": "programs have no sockets but those of their own processes",
    "test_isolation_network_server_port_conflict": "programs have no sockets but those of their own processes",
    "test_isolation_network_external_access": "programs reach no network",
    "test_integration_compile_error": "C++: Python is the only language",
}
CONFTEST = """
import os, sys, types
import pytest, requests

class Names:
    def __getattr__(self, name):
        return name

class Client:
    def __init__(self, app=None):
        pass
    def post(self, path, json):
        return requests.post(os.environ["SERVICE"] + path, json={k: v for k, v in json.items() if v is not None})

class Request(dict):
    def __init__(self, **fields):
        super().__init__(fields)
    def model_dump(self):
        return dict(self)

class Reply(types.SimpleNamespace):
    def __init__(self, **fields):
        super().__init__(**{k: Reply(**v) if isinstance(v, dict) and k != "files" else v for k, v in fields.items()})
    def model_dump_json(self, indent=None):
        return repr(self)

api = dict(RunCodeRequest=Request, RunCodeResponse=Reply, RunStatus=Names())
for name, held in {
    "sandbox": {}, "sandbox.runners": {"CommandRunStatus": Names()}, "sandbox.server": {},
    "sandbox.server.sandbox_api": api, "sandbox.server.server": {"app": None},
    "fastapi": {}, "fastapi.testclient": {"TestClient": Client},
}.items() if os.environ["SUITE"] == "sandboxfusion" else ():
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(held)

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    import asyncio, inspect
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        asyncio.run(pyfuncitem.obj())
        return True
"""


def run(suite: str, checkout: Path, url: str) -> dict[str, str]:
    """{test: "passed" | "failed" | "skipped"} of one suite."""
    with tempfile.TemporaryDirectory() as folder:
        inside, names = SUITES[suite]
        for name in names:
            shutil.copy(checkout / inside / name, folder)
        (Path(folder) / "conftest.py").write_text(CONFTEST)
        environment = {**os.environ, "SERVICE": url, "SANDBOX_FUSION_URL": f"{url}/run_code", "SUITE": suite}
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=line", "-p", "no:cacheprovider", "."]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=-1, text=True)
    found = re.findall(r"^(PASSED|FAILED|SKIPPED|ERROR) \S*?::(\S+)", done.stdout, re.MULTILINE)
    if not found:
        raise SystemExit(f"no test of {suite} ran:\n{done.stdout[-2000:]}")
    return {test: outcome.lower() for outcome, test in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for suite in SUITES:
        parser.add_argument(f"--{suite}", type=Path, help="a checkout of it")
    parser.add_argument("--workers", type=int, default=None, help="programs at once; the service's default")
    arguments = parser.parse_args()
    surprises = []
    config = {"workers": arguments.workers} if arguments.workers else {}
    serve = [sys.executable, "-m", "tests.support.serve_plainly", json.dumps(config)]
    service = subprocess.Popen(serve, stdout=-1, text=True, cwd=ROOT)
    try:
        url = service.stdout.readline().split()[2]
        for suite in SUITES:
            checkout = getattr(arguments, suite)
            if checkout is None:
                continue
            outcomes = run(suite, checkout, url)
            failed = [test for test, outcome in outcomes.items() if outcome not in ("passed", "skipped")]
            surprises += [test for test in failed if test.split("[")[0] not in INTENDED]
            surprises += [test for test in outcomes if test in INTENDED and test not in failed]
            revision = subprocess.run(
                ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"], stdout=-1, text=True
            )
            found = {"revision": revision.stdout.strip(), "tests": len(outcomes), "failed": failed}
            found["passed"] = sum(outcome == "passed" for outcome in outcomes.values())
            found["intended"] = {test: INTENDED[test] for test in failed if test in INTENDED}
            print(suite, json.dumps(found, indent=1), flush=True)
    finally:
        service.terminate()
        service.wait()
    print("surprises:", ", ".join(surprises) or "none")
    return int(bool(surprises))


if __name__ == "__main__":
    sys.exit(main())
