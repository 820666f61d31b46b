"""Every choice composes and passes the schema, and resolved configurations are those that were written down
(snapshots.py says how to see and to accept a change)."""

import json

import pytest
import snapshots

from retool_mcore.config import CONFIG_DIR

KEPT = json.loads(snapshots.FILE.read_text())


def test_every_combination_has_a_snapshot():
    assert {" ".join(case) for case in snapshots.cases()} == KEPT.keys()
    chosen = {choice for case in snapshots.few() for choice in case[1:]}
    # `site` and `coldstart` are read by cluster/site.py and coldstart/config.py, no part of a stage's configuration.
    groups = {folder.name for folder in CONFIG_DIR.iterdir() if folder.is_dir()} - {"site", "coldstart"}
    assert chosen == {f"{group}={choice}" for group in groups for choice in snapshots.choices(group)}


@pytest.mark.parametrize("case", snapshots.few(), ids=" ".join)
def test_a_configuration_is_as_written_down(case):
    assert snapshots.digest(case) == KEPT[" ".join(case)], "python tests/config/snapshots.py --text FOLDER shows it"


@pytest.mark.nightly
def test_every_configuration_is_as_written_down():
    changed = [name for case in snapshots.cases() if KEPT[name := " ".join(case)] != snapshots.digest(case)]
    assert not changed
