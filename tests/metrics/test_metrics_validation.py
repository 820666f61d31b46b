"""The figures of a validation against worked values, and when one policy's are better than another's."""

import json
import math
import random
import statistics

import pytest

from retool_mcore.metrics.validation import (
    FILE,
    mean_and_error,
    record,
    set_metrics,
    validation_metrics,
    worse_in_a_row,
)


def test_the_error_is_that_of_the_problems_means():
    # Means 1, 0.5, 0, 0.5: deviations 0.5, 0, -0.5, 0; sum of squares 0.5; 0.5 / (4 * 3) = 1 / 24.
    mean, error = mean_and_error([1.0, 0.5, 0.0, 0.5])
    assert mean == 0.5 and error == pytest.approx(math.sqrt(1 / 24))
    values = [random.Random(1).random() for _ in range(50)]
    assert mean_and_error(values)[1] == pytest.approx(statistics.stdev(values) / math.sqrt(50))
    assert mean_and_error([0.25])[0] == 0.25 and math.isnan(mean_and_error([0.25])[1])


def test_the_error_is_what_a_second_draw_would_differ_by():
    """Over many draws of problems and samples, the spread of the mean is the error that each draw tells of itself."""
    draw = random.Random(7)
    means, errors = [], []
    for _ in range(400):
        easy = [draw.betavariate(0.5, 0.5) for _ in range(64)]
        problems = [sum(draw.random() < p for _ in range(16)) / 16 for p in easy]
        mean, error = mean_and_error(problems)
        means.append(mean)
        errors.append(error)
    assert statistics.stdev(means) == pytest.approx(statistics.mean(errors), rel=0.1)
    independent = math.sqrt(0.25 / (64 * 16))  # what one would claim who counted every sample as a draw
    assert statistics.stdev(means) > 2 * independent


def test_accuracy_is_of_all_problems_and_of_each_data_source():
    found = validation_metrics(["a", "b", "a"], [0.5, 0.5, 0.0])
    assert found["val/accuracy"] == pytest.approx(1 / 3) and found["val/a/accuracy"] == 0.25
    assert found["val/a/accuracy_se"] == pytest.approx(0.25) and math.isnan(found["val/b/accuracy_se"])
    assert found["val/accuracy_se"] == pytest.approx(1 / 6)


HARD = [0.0, 0.1, 0.9, 1.0, 0.3, 0.7, 0.2, 0.8]


def moved(by: float) -> list[float]:
    return [value + by for value in HARD]


def test_a_small_gain_on_every_problem_is_one_though_the_means_overlap():
    better = [value + (0.03 if i % 2 else 0.02) for i, value in enumerate(HARD)]
    assert mean_and_error(better)[0] - mean_and_error(HARD)[0] < mean_and_error(HARD)[1] / 4
    assert worse_in_a_row([HARD, better]) == 0


def test_noise_is_no_gain_and_slow_progress_is():
    noise = [value + (0.2 if i % 2 else -0.18) for i, value in enumerate(HARD)]
    assert sum(noise) > sum(HARD)
    assert worse_in_a_row([HARD, noise]) == 1
    assert worse_in_a_row([HARD]) == 0 and worse_in_a_row([HARD, HARD, HARD]) == 2
    assert worse_in_a_row([HARD, moved(-0.1), moved(-0.05), moved(0.1), moved(0.05)]) == 1
    wobble = [[value + step * 0.02 + 0.03 * ((i + step) % 2) for i, value in enumerate(HARD)] for step in range(6)]
    assert max(worse_in_a_row(wobble[:n]) for n in range(1, 7)) <= 2, "compared with the best, not with the last"


def recorded(folder, step, means):
    return record(folder, step, means, sources=["all"] * len(means), calls=[1.0] * len(means))


def test_the_record_goes_on_from_the_checkpoint_that_was_resumed(tmp_path):
    assert recorded(tmp_path, 5, [0.5, 0.0]) == [[0.5, 0.0]]
    recorded(tmp_path, 10, [0.6, 0.0])
    recorded(tmp_path, 15, [0.7, 0.0])
    # Killed; a second attempt starts from checkpoint 5.
    assert recorded(tmp_path, 10, [0.1, 0.1]) == [
        [0.5, 0.0],
        [0.1, 0.1],
    ]
    assert recorded(tmp_path, 15, [1.0, 1.0, 1.0]) == [[1.0, 1.0, 1.0]]  # of another set of problems
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 15, 10, 15]
    assert lines[0] == {"step": 5, "problems": [0.5, 0.0], "sources": ["all", "all"], "calls": [1.0, 1.0]}


def test_mean_best_and_majority_of_a_set_with_their_errors():
    """Problem a: 2 of 4 right, the right answer has most votes; b: 1 of 4, another answer has; c: none came back."""
    expected = {("x", "a"): 4, ("x", "b"): 4, ("y", "c"): 4}
    uids = ["b", "a", "a", "b", "a", "b", "a", "b"]
    verdicts = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    answers = ["7", "5", "6", "8", "5.0", "8", None, "8"]
    found = set_metrics("evaluation", uids, verdicts, answers, expected, same=lambda a, b: float(a) == float(b))
    assert found["val/evaluation/accuracy"] == pytest.approx((0.5 + 0.25 + 0) / 3)
    assert found["val/evaluation/best@4"] == pytest.approx(2 / 3) and found["val/evaluation/maj@4"] == pytest.approx(
        1 / 3
    )
    assert found["val/evaluation/x/accuracy"] == pytest.approx(0.375) and found["val/evaluation/y/best@4"] == 0.0
    spread = [0.5, 0.25, 0.0]
    assert found["val/evaluation/accuracy_se"] == pytest.approx(mean_and_error(spread)[1])
    assert found["val/evaluation/failed"] == 4


def test_an_even_vote_does_not_depend_on_which_sample_ended_first():
    uids, answers, verdicts = ["a"] * 4, ["1", "2", "2", "1"], [1.0, 0.0, 0.0, 1.0]
    one = set_metrics("e", uids, verdicts, answers, {("x", "a"): 4})
    other = set_metrics("e", uids, verdicts[::-1][1:] + [1.0], answers[::-1][1:] + ["1"], {("x", "a"): 4})
    assert one["val/e/maj@4"] == other["val/e/maj@4"]
