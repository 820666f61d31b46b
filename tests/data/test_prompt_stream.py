"""The order of RL's prompts: torch's sampler's, over epochs, and after a resume."""

import pytest
import torch
from torchdata.stateful_dataloader.sampler import RandomSampler

from retool_mcore.data import prompt_stream
from retool_mcore.data.curriculum import Curriculum
from retool_mcore.data.prompt_stream import Prompts
from retool_mcore.errors import UserError

ROWS = 7


@pytest.fixture
def prompts(monkeypatch):
    """Makes Prompts over `rows` made-up rows."""

    def make(rows=ROWS, seed=3, curriculum=None):
        made = [{"data_source": "made", "prompt": [n], "extra_info": {"index": n}} for n in range(rows)]
        monkeypatch.setattr(prompt_stream, "rows_of", lambda files: made)
        return Prompts("file", seed, curriculum or Curriculum())

    return make


def numbers(rows):
    return [row["number"] for row in rows]


def test_three_epochs_are_those_of_the_sampler_that_verl_draws_from(prompts):
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(range(ROWS), generator=generator)
    expected = [row for _ in range(3) for row in sampler]
    assert numbers(prompts().take(3 * ROWS)) == expected


def test_a_row_is_what_an_episode_reads(prompts):
    row = prompts().row(2)
    assert row["raw_prompt"] == [2] and row["index"] == 2 and row["number"] == 2


@pytest.mark.parametrize("taken", [3, ROWS, 2 * ROWS + 4])
def test_a_resumed_stream_goes_on_where_the_checkpoint_was(prompts, tmp_path, taken):
    first = prompts()
    first.take(taken)
    asked = [("000001-000002", 1, 4, 0)]
    first.save(tmp_path, asked)
    again = prompts()
    assert again.load(tmp_path) == asked
    assert numbers(again.take(9)) == numbers(first.take(9))


def test_rows_that_led_to_an_alarm_are_left_out_with_what_was_asked_for(prompts, tmp_path):
    first = prompts()
    first.take(2)
    first.save(tmp_path, [("000001-000000", 1, 0, 0)])
    expected = numbers(first.take(8))[3:]
    again = prompts()
    assert again.load(tmp_path, left_out=3) == []
    assert numbers(again.take(5)) == expected


def test_a_checkpoint_of_verls_data_loader_says_where_it_was_by_the_rows_offered(prompts, tmp_path):
    first = prompts()
    first.take(ROWS + 2)
    first.curriculum.save(tmp_path)
    again = prompts()
    assert again.load(tmp_path) == [] and numbers(again.take(9)) == numbers(first.take(9))


def test_what_an_earlier_release_saved_with_rollouts_in_progress_is_refused(prompts, tmp_path):
    (tmp_path / "transfer_queue").mkdir()
    with pytest.raises(UserError, match="earlier release with rollouts in progress"):
        prompts().load(tmp_path)


def test_other_data_than_the_checkpoints_are_refused(prompts, tmp_path):
    prompts().save(tmp_path, [])
    with pytest.raises(UserError, match=f"had {ROWS} rows, and they have 5 now"):
        prompts(rows=5).load(tmp_path)


def test_rows_that_the_curriculum_passes_over_are_counted_as_fetched(prompts):
    curriculum = Curriculum(problems=["made/1", "made/2"])
    made = prompts(curriculum=curriculum)
    assert {row["index"] for row in made.take(2)} == {1, 2}
    assert made.fetched == made.position > 2 or made.epoch > 0
    assert made.metrics()["curriculum/passed_over"] == made.fetched - 2
    assert made.metrics()["curriculum/passed_over"] == 0


def test_a_resumed_run_draws_what_its_curriculum_would_have_drawn(prompts, tmp_path):
    def curriculum():
        return Curriculum(weights=True, retire=2, seed=5, problems=[f"made/{n}" for n in range(1, 40)])

    def measured(made, count):
        """The problems of the next `count` prompts; each is measured at once, by its number."""
        found = []
        for _ in range(count):
            (row,) = made.take(1)
            found.append(row["index"])
            made.measure(row, min(row["index"] / 20, 1.0))
        return found

    first = prompts(rows=40, curriculum=curriculum())
    before = measured(first, 70)
    assert first.fetched > 70 and first.curriculum.passed_over == first.fetched - 70
    assert 0 not in before  # outside of the problems that may be drawn
    first.save(tmp_path, [])
    assert first.curriculum.retired and {int(name[5:]) for name in first.curriculum.retired} <= set(range(20, 40))
    second = prompts(rows=40, curriculum=curriculum())
    second.load(tmp_path)
    after = measured(first, 90)
    assert measured(second, 90) == after and second.curriculum.rates == first.curriculum.rates
    assert sum(8 <= n <= 12 for n in after) > 3 * sum(n in (1, 2, 18, 19) for n in after)
