"""docs/measured/cluster.md is what the results say, and its table what a job may ask of it."""

import pytest

from benchmarks.cluster import tables


def test_the_page_is_up_to_date():
    page = tables.PAGE.read_text()
    assert page == tables.render(page), "run `python -m benchmarks.cluster.tables --write` and commit what it writes"


def test_a_page_without_a_place_for_a_table_is_refused():
    with pytest.raises(ValueError, match="0 places for the table faults"):
        tables.render("# On a cluster\n")


def test_a_row_of_faults_and_their_sums():
    row = {"fault": "raylet", "stage": "rl", "hit": "kill -9 of the raylet on n2", "detected_s": 14.3, "load": 7.6}
    row |= {"resumed_s": None, "steps_lost": 1, "steps_doubled": 2, "orphans": 3, "cause": "retool: a `b` | c"}
    row |= {"pipeline": "sync", "commit": None, "date": "2026-11-22", "recorded": "5d22d31"}
    ahead = row | {"pipeline": "async", "commit": "abc", "date": "2026-11-26", "fault": "rank", "hit": "a cut"}
    table = tables.faults({"rows": [ahead, row], "made": {"machine": {"cores": 2}}}).splitlines()
    assert table[0] == (
        "2 faults (0 of SFT, 2 of RL, 1 of these with rollouts that run ahead), 1 of them `kill -9`: 2 lost, "
        "4 doubled, 6 orphans. 2 cores, a load of 8 to 8 at the moments of the faults."
    )
    told = "14 | - | 1 / 2 | 3 | `retool: a 'b' \\| c`"
    assert table[-2] == f"| raylet | rl | {told} | before 5d22d31, 2026-11-22 |"
    assert table[-1] == f"| rank | rl, async | {told} | abc, 2026-11-26 |"


def test_the_rehearsal_tells_what_went_wrong_at_its_end():
    row = {"what": "raylet", "planned": "push", "phase": "save", "step": 3, "detected_s": 9.6, "resumed_s": None}
    row |= {"kept": 16, "orphans": 1, "submitted_again": True, "cause": "retool: gone", "load": 4.0}
    end = {"steps": 4, "steps_missing": [3], "steps_twice": [], "largest_difference": 0.002, "taken_over": 5}
    end |= {
        "trajectories_finished": 20,
        "generated_twice": ["step 3: a"],
        "trained_on_others": [],
        "orphans_at_the_end": 1,
    }
    clock = {"step_s": 30.0, "lead_s": 5.5, "watchdog_s": 16.7, "scale": 108.0}
    result = {
        "rows": [row],
        "end": end,
        "clock": clock,
        "planned": 2,
        "minutes": 3.2,
        "made": {"machine": {"cores": 2}},
    }
    told, _, *table = tables.rehearsal(result).split("\n")
    for words in (
        "1 of 2 planned faults in 3 minutes",
        "missing in the metrics [3], twice []",
        "difference",
        "2.0e-03",
    ):
        assert words in told
    assert "20 trajectories were finished, 1 of them twice" in told and "2 processes were left" in told
    assert table[-1] == "| 3 | save | raylet (given up, submitted again) | 10 | - | 16 | `retool: gone` |"
