"""docs/cluster.md is what the results say, and its table what a job may ask of it."""

import pytest

from benchmarks.cluster import tables


def test_the_page_is_up_to_date():
    page = tables.PAGE.read_text()
    assert page == tables.render(page), "run `python -m benchmarks.cluster.tables --write` and commit docs/cluster.md"


def test_a_page_without_a_place_for_a_table_is_refused():
    with pytest.raises(ValueError, match="0 places for the table faults"):
        tables.render("# On a cluster\n")


def test_a_row_of_faults_and_their_sums():
    row = {"fault": "raylet", "stage": "rl", "hit": "kill -9 of the raylet on n2", "detected_s": 14.3, "load": 7.6}
    row |= {"resumed_s": None, "steps_lost": 1, "steps_doubled": 2, "orphans": 3, "cause": "retool: a `b` | c"}
    table = tables.faults({"rows": [row], "made": {"machine": {"cores": 2}}}).splitlines()
    assert table[0] == (
        "1 faults (0 of SFT, 1 of RL), 1 of them `kill -9`: 1 steps lost, 2 doubled, 3 orphans. 2 cores, "
        "a load of 8 to 8 at the moments of the faults."
    )
    assert table[-1] == "| raylet | rl | 14 | - | 1 / 2 | 3 | `retool: a 'b' \\| c` |"
