"""A logger that would end the run a minute later is refused before the start: no login, or a server that is silent."""

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from retool_mcore.errors import UserError
from retool_mcore.preflight import machine, trackers


@pytest.fixture
def server():
    """A server that refuses everything, which is an answer."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(401)

        def log_message(self, *_):
            pass

    http = HTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()


@pytest.fixture
def silent():
    """An address at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _installed_and_no_login(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def check(folder, **environment):
    trackers.check_trackers(["console", "wandb"], folder, environment)


def test_without_a_login_wandb_is_refused(tmp_path, server):
    with pytest.raises(UserError) as caught:
        check(tmp_path, WANDB_BASE_URL=server)
    said = str(caught.value)
    assert "no login" in said and "WANDB_MODE=offline" in said and "WANDB_API_KEY" in said and "\n" not in said
    trackers.check_trackers(["console", "tensorboard"], tmp_path, {})


@pytest.mark.parametrize("mode", ["offline", "disabled", "dryrun"])
def test_offline_needs_neither(tmp_path, mode):
    check(tmp_path, WANDB_MODE=mode)


def test_every_place_of_a_login_counts(tmp_path, server):
    check(tmp_path, WANDB_BASE_URL=server, WANDB_API_KEY="k" * 40)
    check(tmp_path, WANDB_BASE_URL=server, WANDB_IDENTITY_TOKEN_FILE="token.jwt")
    login = f"machine {server.removeprefix('http://')}\n  login user\n  password {'k' * 40}\n"
    (tmp_path / "home" / ".netrc").write_text(login)
    (tmp_path / "home" / ".netrc").chmod(0o600)
    check(tmp_path, WANDB_BASE_URL=server)
    with pytest.raises(UserError, match="no login for http://elsewhere"):
        check(tmp_path, WANDB_BASE_URL="http://elsewhere")
    (tmp_path / "home" / ".netrc").rename(tmp_path / "netrc")
    check(tmp_path, WANDB_BASE_URL=server, NETRC=str(tmp_path / "netrc"))


def test_settings_files_count(tmp_path, server):
    settings = tmp_path / "home" / ".config" / "wandb" / "settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[default]\nbase_url = {server}\n")
    with pytest.raises(UserError, match=f"no login for {server}"):
        check(tmp_path)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    check(tmp_path)
    check(tmp_path / "elsewhere", WANDB_DIR=str(tmp_path))
    settings.write_text("no section")
    with pytest.raises(UserError, match="cannot be read"):
        check(tmp_path / "elsewhere")


def test_a_server_that_is_silent_is_refused(tmp_path, silent, server):
    with pytest.raises(UserError, match=r"does not answer .*WANDB_MODE=offline here\.$"):
        check(tmp_path, WANDB_BASE_URL=silent, WANDB_API_KEY="k" * 40)
    secret = silent.replace("http://", "http://me:secret@")
    with pytest.raises(UserError) as caught:
        trackers.check_trackers(["mlflow"], tmp_path, {"MLFLOW_TRACKING_URI": secret})
    assert "does not answer" in str(caught.value) and "secret" not in str(caught.value)
    trackers.check_trackers(["mlflow"], tmp_path, {"MLFLOW_TRACKING_URI": server})
    trackers.check_trackers(["mlflow"], tmp_path, {"MLFLOW_TRACKING_URI": "sqlite:///runs.db"})
