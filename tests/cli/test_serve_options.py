"""`retool serve` refuses what it could not serve, before an engine starts."""

import pytest

from retool_mcore.cli import main, serve
from retool_mcore.cli.serve import who_runs_tools
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.errors import UserError
from retool_mcore.gateway.access import KEY, check_key


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "node7"])
def test_other_machines_need_a_key(host):
    with pytest.raises(UserError, match=KEY):
        check_key(host, None)
    with pytest.raises(UserError, match=KEY):
        check_key(host, "")
    check_key(host, "secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_none(host):
    check_key(host, None)


@pytest.mark.parametrize("key", ["two words", "tab\t", "umläut", "line\n"])
def test_a_key_that_no_header_holds_is_refused(key):
    with pytest.raises(UserError, match="printable ASCII"):
        check_key("127.0.0.1", key)


def test_the_tools_may_be_named_as_an_option_or_as_a_word():
    assert who_runs_tools("server", ["top_p=0.7"]) == ("server", ["top_p=0.7"])
    assert who_runs_tools("server", ["tools=client", "top_p=0.7"]) == ("client", ["top_p=0.7"])
    with pytest.raises(UserError, match="expected server or client"):
        who_runs_tools("both", [])


def test_refusals_are_sentences_and_exit_code_2(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    model = str(make_tiny_model(tmp_path / "model", seed=1))
    for words in ([str(tmp_path / "no")], [model, "--host", "0.0.0.0"], [model, "--tools", "both"], [model, "tools=x"]):
        assert main.main(["serve", *words]) == 2
        assert capsys.readouterr().err.count("retool: ") == 1


def test_the_server_gets_the_configuration_of_an_evaluation_and_its_own_section(tmp_path, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    model, found = str(make_tiny_model(tmp_path / "model", seed=1)), []
    monkeypatch.setattr(serve, "become", lambda module, config, folder: found.append((module, config)))
    words = [model, "rollout.format=hermes", f"runs_dir={tmp_path}", "tools=client", "--port", "0", "--context", "700"]
    assert main.main(["serve", *words]) == 0
    module, config = found[0]
    assert module == "retool_mcore.train.serve" and config.policy_path == model and config.rollout.format == "hermes"
    assert dict(config.serve) == {
        "tools": "client", "host": "127.0.0.1", "port": 0, "raw": False, "context": 700, "timeout_s": 600.0
    }  # fmt: skip
