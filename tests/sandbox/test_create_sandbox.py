import asyncio

import pytest

from retool_mcore.errors import UserError
from retool_mcore.sandbox import create
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.create import create_sandbox, probe
from retool_mcore.sandbox.fusion import FusionSandbox
from retool_mcore.sandbox.local import LocalSandbox


def test_all_kinds():
    assert isinstance(create_sandbox({"kind": "local", "timeout_s": 3, "workers": 2}), LocalSandbox)
    assert isinstance(create_sandbox({"kind": "fusion", "url": "http://localhost:8080"}), FusionSandbox)
    pool = create_sandbox({"kind": "pool", "hosts": ["http://a:1", "http://b:2/run_code"], "hosts_from": None})
    assert pool.host_list.read() == ("http://a:1", "http://b:2")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "sandbox.kind"),
        ({"kind": "docker"}, "docker"),
        ({"kind": "local", "url": "http://x"}, "sandbox.url"),
        ({"kind": "local", "timeout": 3}, "sandbox.timeout "),
        ({"kind": "local", "timeout_s": 0}, "above 0"),
        ({"kind": "local", "memory_mb": "much"}, "sandbox.memory_mb"),
        ({"kind": "local", "min_isolation": "total"}, "total"),
        ({"kind": "local", "max_isolation": "total"}, "max_isolation is 'total'"),
        ({"kind": "local", "session_idle_s": 0}, "session_idle_s"),
        ({"kind": "fusion"}, "sandbox.url"),
        ({"kind": "pool"}, "sandbox.hosts"),
        ({"kind": "pool", "hosts": []}, "sandbox.hosts_from"),
        ({"kind": "pool", "hosts": "http://a:1"}, "must be a list"),
        ({"kind": "pool", "hosts": ["node1:80"]}, "'node1:80' is not the http:// address"),
        ({"kind": "pool", "hosts": ["http://a:1"], "max_output_bytes": 5}, "sandbox.max_output_bytes"),
        ({"kind": "pool", "hosts": ["http://a:1"], "patience_s": 0}, "sandbox.patience_s"),
    ],
)
def test_wrong_settings_are_refused_by_name(config, words):
    with pytest.raises(UserError, match=words):
        create_sandbox(config)


def test_probe_passes_a_working_sandbox():
    async def main():
        sandbox = create_sandbox({"kind": "local", "preload": []})
        await probe(sandbox)
        await sandbox.close()

    asyncio.run(main())


def test_probe_refuses_a_wrong_answer():
    class Wrong:
        async def run(self, code, *, timeout_s=None, stdin=""):
            return Result(Status.SUCCESS, "3\n", "", None, 0.0)

    with pytest.raises(UserError, match="sandbox is down"):
        asyncio.run(probe(Wrong()))


@pytest.mark.parametrize("kind", ["fusion", "pool"])
def test_probe_names_a_service_that_is_not_there(kind, unused_port, monkeypatch):
    monkeypatch.setattr(create, "PROBE_PATIENCE_S", 0.2)
    url = f"http://127.0.0.1:{unused_port}"
    config = {"kind": kind} | ({"url": url} if kind == "fusion" else {"hosts": [url]})
    with pytest.raises(UserError, match=f"127.0.0.1:{unused_port}"):
        asyncio.run(probe(create_sandbox(config)))


def test_probe_says_where_no_service_has_registered(tmp_path, monkeypatch):
    monkeypatch.setattr(create, "PROBE_PATIENCE_S", 0.2)
    with pytest.raises(UserError, match=f"no host is known in sandbox.hosts_from={tmp_path}"):
        asyncio.run(probe(create_sandbox({"kind": "pool", "hosts_from": str(tmp_path)})))


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        yield listener.getsockname()[1]
