import asyncio

import pytest

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.create import create_sandbox, probe
from retool_mcore.sandbox.fusion import FusionSandbox
from retool_mcore.sandbox.local import LocalSandbox


def test_both_kinds():
    assert isinstance(create_sandbox({"kind": "local", "timeout_s": 3, "workers": 2}), LocalSandbox)
    assert isinstance(create_sandbox({"kind": "fusion", "url": "http://localhost:8080"}), FusionSandbox)


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
        ({"kind": "fusion"}, "sandbox.url"),
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


def test_probe_names_a_service_that_is_not_there(unused_port):
    with pytest.raises(UserError, match=f"127.0.0.1:{unused_port}"):
        asyncio.run(probe(create_sandbox({"kind": "fusion", "url": f"http://127.0.0.1:{unused_port}"})))


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        yield listener.getsockname()[1]
