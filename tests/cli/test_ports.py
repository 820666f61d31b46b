"""Ports from below the ephemeral range."""

import pytest

from retool_mcore import ports


@pytest.mark.parametrize(("text", "first"), [("32768\t60999", 32_768), ("20000 60999", 20_000), ("1024 65535", 32_768)])
def test_where_the_ephemeral_range_begins(tmp_path, monkeypatch, text, first):
    monkeypatch.setattr(ports, "_EPHEMERAL", tmp_path / "range")
    assert ports.first_ephemeral() == 32_768  # there is no such file on this system
    (tmp_path / "range").write_text(text + "\n")
    assert ports.first_ephemeral() == first


def test_ranks_meet_below_it_and_not_always_at_the_same_place():
    found = [ports.meeting_range() for _ in range(50)]
    assert len({first for first, _ in found}) > 10
    for first, end in found:
        assert ports.FIRST_PORT <= first <= end - 1_000 and end == ports.first_ephemeral()
