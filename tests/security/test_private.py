"""Files, folders, keys and addresses that only their user may see."""

import asyncio
import os
import stat

import pytest

from retool_mcore.cli.main import main
from retool_mcore.coldstart.client import Client
from retool_mcore.coldstart.config import Model
from retool_mcore.errors import UserError
from retool_mcore.files import own_folder, private_files, shown, write_atomically


@pytest.fixture(autouse=True)
def mask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_what_a_command_writes_is_its_users_alone_unless_shared(tmp_path, monkeypatch):
    monkeypatch.delenv("RETOOL_UMASK", raising=False)
    assert main(["--help"]) == 0
    (tmp_path / "a").mkdir()
    write_atomically(tmp_path / "a" / "b", "x")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o600)
    monkeypatch.setenv("RETOOL_UMASK", "027")
    private_files()
    write_atomically(tmp_path / "c", "x")
    assert mode(tmp_path / "c") == 0o640
    monkeypatch.setenv("RETOOL_UMASK", "yes")
    with pytest.raises(UserError, match="a mask in octal"):
        private_files()


def test_a_folder_whose_name_others_guessed_is_refused(tmp_path):
    own_folder(tmp_path / "new")
    own_folder(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "new")
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").touch(mode=0o600)
    for name in ("link", "open", "file"):
        with pytest.raises(UserError, match="is a link, or belongs to or is open to another user"):
            own_folder(tmp_path / name)
    if os.geteuid() == 0:
        (tmp_path / "foreign").mkdir(mode=0o700)
        os.chown(tmp_path / "foreign", 65534, 65534)
        with pytest.raises(UserError):
            own_folder(tmp_path / "foreign")


def test_a_key_goes_only_where_the_configuration_says_so(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "planted-key")
    monkeypatch.setenv("OTHER_KEY", "other-planted-key")

    def client(**settings):
        return Client(Model(url="http://user:planted@127.0.0.1:9/v1", name="m", **settings), "rewrite", None)

    assert client()._api.api_key == "none"
    with_key = client(api_key_env="OTHER_KEY")
    assert with_key._api.api_key == "other-planted-key"
    assert with_key._masked("you sent other-planted-key") == "you sent ***"
    with pytest.raises(UserError) as raised:
        asyncio.run(client(retries=0).check())
    assert "planted" not in str(raised.value) and "http://127.0.0.1:9/v1" in str(raised.value)


def test_addresses_are_shown_without_credentials():
    assert shown("postgresql://me:secret@db/mlflow?x=1") == "postgresql://db/mlflow?x=1"
    assert shown("/folder/a@b") == "/folder/a@b" and shown("file:///a") == "file:///a"
