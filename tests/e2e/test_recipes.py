"""Recipes of different machinery, three RL steps each on real engines with the tiny policy."""

import pytest
from e2e_runs import succeed, whole_steps
from recipe_cases import EVERY_CHANGE, NIGHTLY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

STEPS = 3
CASES = [
    *EVERY_CHANGE.items(),
    *(pytest.param(name, overrides, marks=pytest.mark.nightly) for name, overrides in NIGHTLY.items()),
]


@pytest.mark.parametrize(("recipe", "overrides"), CASES)
def test_three_steps(fork_of_cold_start, recipe, overrides):
    size = (f"data.rl.steps={STEPS}", f"data.rl.save_every={STEPS}")
    run = succeed("rl", fork_of_cold_start, f"recipe={recipe}", *size, *overrides)
    check(recipe, whole_steps(run, STEPS), run)


def check(recipe, metrics, run):
    """What only this recipe leaves behind."""
    every = list(metrics.values())
    if recipe == "zerotir":
        oldest = [values["training/off_policy/trajectory_staleness_worst/max"] for values in every]
        assert oldest == [0, 1, 1], "what the first step cut off went on in the second"
        assert {"overlong_wrong", "repetition", "faked_output"} <= {
            name.removeprefix("filters/samples/") for name in every[0] if name.startswith("filters/samples/")
        }
    if recipe == "simpletir":
        # Of each group at least one sample has no void turn; where one called, an output is predicted.
        assert all(values["filters/samples/void_turn"] <= 12 for values in every)
        assert any(values["actor/observation_loss"] > 0 for values in every)
        assert [{"mismatch/mean", "actor/entropy"} <= values.keys() for values in every] == [True, False, True]
        assert all(values["audit/misaligned_log_probs"] == 0 for values in every)
    if recipe == "torl":
        config = (run / "rl/config.yaml").read_text()
        assert "adv_estimator: rloo" in config and "max_observation_chars: 256" in config
        assert "after_last_call: text" in (run / "rl/episode.yaml").read_text()
