import pytest

from retool_mcore.view import server
from retool_mcore.view.source import Source


@pytest.fixture(autouse=True)
def all_steps_are_read_at_once(monkeypatch):
    """However busy the machine is; how they are read little by little has a test of its own."""
    monkeypatch.setattr(Source.refresh, "__defaults__", (600.0, ""))
    monkeypatch.setattr(server, "SOON_S", 600.0)
