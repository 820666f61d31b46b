"""TransferQueue passes its data with the job's key, and a message from a socket without one runs nothing."""

import secrets

import pytest

from tests.support import queue_keys as rig

SOCKETS = 4  # two of the controller, one of each storage unit


@pytest.mark.e2e
@pytest.mark.nightly  # tests/e2e/test_queue_storage.py has the secret's part for every change
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "secret",
    [pytest.param(None, id="without"), pytest.param(secrets.token_hex(32), id="with")],
)
def test_one_message_of_a_stranger_runs_code_only_where_there_is_no_secret(secret):
    found = rig.run(secret)
    assert [row["megabytes"] > 0 for row in found["rows"]] == [True] * len(rig.COLUMNS), "its data did not pass"
    assert list(found["executed"].values()) == [secret is None] * SOCKETS, found["executed"]
