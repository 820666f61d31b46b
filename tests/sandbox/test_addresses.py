"""Addresses: IPv6 stands in brackets wherever one is printed or built, and no message holds a token."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retool_mcore.errors import UserError
from retool_mcore.files import shown, without_secrets
from retool_mcore.ports import bare, host_of, host_port
from retool_mcore.sandbox.create import create_sandbox
from retool_mcore.sandbox.service.hosts import HostList, clean_url
from retool_mcore.sandbox.service.serve import probe_url, serve


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("node1", "node1:80"),
        ("127.0.0.1", "127.0.0.1:80"),
        ("::1", "[::1]:80"),
        ("[::1]", "[::1]:80"),
        ("2001:db8::5", "[2001:db8::5]:80"),
        ("fe80::1%eth0", "[fe80::1%25eth0]:80"),
    ],
)
def test_an_ipv6_address_stands_in_brackets(host, written):
    assert host_port(host, 80) == written
    assert bare(bare(host)) == host.strip("[]")
    assert host_of(written).partition("%")[0] == bare(host).partition("%")[0]
    assert clean_url(f"http://{written}/run_code") == f"http://{written}"


BAD = [
    "http://retool:s3cret@::1:8471",
    "http://retool:s3cret@2001:db8::5:8471",
    "http://retool:s3cret@[::1:8471",
    "http://retool:s3cret@::1]:8471",
    "http://retool:s3cret@node:http",
    "http://retool:s3cret@node:99999",
    "http://retool:s3cret@:8471",
    "http://retool:s3cret@",
    "http://retool:s3cret@no de:8471",
    "ftp://retool:s3cret@node:8471",
    "retool:s3cret@node:8471",
    "http://retool:s3/cret@::1:8471",
    "http://retool:s3@cret@::1:8471",
]


@pytest.mark.parametrize("url", BAD)
def test_what_is_no_address_is_refused_without_its_token(url, tmp_path):
    (tmp_path / "host").write_text(url + "\n")
    for refuse in (
        lambda: clean_url(url),
        lambda: HostList(path=tmp_path).read(),
        lambda: HostList([url]),
        lambda: asyncio.run(probe_url(url)),
        lambda: create_sandbox({"kind": "pool", "hosts": [url]}),
        lambda: create_sandbox({"kind": "fusion", "url": url}),
    ):
        with pytest.raises(UserError) as refused:
            refuse()
        assert "s3" not in str(refused.value) and "cret" not in str(refused.value)
        assert "address of a" in str(refused.value)
    if url.count(":") > 3 and "[" not in url and "]" not in url:
        assert "brackets" in str(pytest.raises(UserError, clean_url, url).value)


@pytest.mark.parametrize("token", ["s3cret", "s3/cret", "s3%2Fcret", "s3@cret"])
def test_an_error_that_quotes_an_address_loses_its_token(token):
    url = f"http://retool:{token}@[::1]:8471"
    assert shown(url) == "http://[::1]:8471"
    for text in (f"Invalid URL: {url}/run_code", f"of {token}", f"'{url}' and http://x:{token}@y"):
        found = without_secrets(text, url)
        assert token not in found and "cret" not in found.replace("secret", ""), found
    assert without_secrets("it did not answer in time", "http://node:8080") == "it did not answer in time"


def test_a_service_that_cannot_listen_names_the_place_in_brackets():
    with pytest.raises(UserError, match="give --register"):
        asyncio.run(serve({}, host="2001:db8::5"))
    config = {"kind": "local", "preload": [], "workers": 1, "min_isolation": "none"}
    os.environ["RETOOL_SANDBOX_TOKEN"] = "t"
    try:
        with pytest.raises(UserError, match=r"Cannot listen on \[2001:db8::5\]:8471"):
            asyncio.run(serve(config, host="[2001:db8::5]", port=8471))
    finally:
        del os.environ["RETOOL_SANDBOX_TOKEN"]


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_service_on_ipv6_is_found_by_the_address_that_it_registers(tmp_path, host):
    code = "import sys; from retool_mcore.cli.main import main; sys.exit(main())"
    words = ["sandbox", "serve", "--host", host, "--port", "0", "--register", str(tmp_path), "sandbox.preload=[]"]
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (files := [path for path in tmp_path.iterdir() if not path.name.startswith(".")]):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        url = Path(files[0]).read_text().strip()
        said = asyncio.run(probe_url(url))
        assert said.startswith(f"{shown(url)}: isolation: ") and "http://[::1]:" in said
    finally:
        process.terminate()
        output = process.communicate()[0]
    assert output.startswith(f"sandbox service: {shown(url)} (isolation")
