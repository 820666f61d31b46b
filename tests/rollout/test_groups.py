"""Which groups a step takes: the rule of staleness, refill, failure, resume. The rollouts are played."""

import json

import pytest

from retool_mcore.data.curriculum import Curriculum
from retool_mcore.data.prompt_stream import Prompts
from retool_mcore.errors import UserError
from retool_mcore.recipes.filters import GroupFilter
from retool_mcore.rollout.failures import Cause, GroupFailed, cause_of
from retool_mcore.rollout.groups import Groups
from retool_mcore.rollout.samples import Group, Sample
from retool_mcore.state import heartbeat

FILTERS = {"all_equal": True, "accuracy": None, "samples": [], "refill_limit": 2}


class Prompted(Prompts):
    """Prompts over made-up rows, in order."""

    def __init__(self, count=100):
        self.rows = [{"data_source": "made", "prompt": [], "extra_info": {"index": n % 50}} for n in range(count)]
        self.curriculum, self.order = Curriculum(), list(range(count))
        self.epoch = self.position = self.fetched = 0
        self.measured = []

    def measure(self, row, accuracy):
        self.measured.append((row["number"], accuracy))


class Played:
    """Rollouts whose groups end when and how `script` says: {uid number: accuracies, or an exception}."""

    def __init__(self, script=()):
        self.script, self.flying, self.options = dict(script), [], []

    def ask(self, group, **options):
        self.flying.append(group)
        self.options.append(options)

    def ended(self, wait_s):
        if wait_s == 0 or not self.flying:
            return []
        return [self.end(self.flying[0])]

    def end(self, group):
        self.flying.remove(group)
        made = self.script.get(int(group.uid.partition("-")[2]) + 100 * (group.step - 1), [1.0, 0.0])
        if isinstance(made, Exception):
            group.error = GroupFailed([(0, cause_of(made))], 2)
        else:
            group.samples = [sample(group.uid, n, acc) for n, acc in enumerate(made)]
        return group


def sample(group, number, acc, finish="answer"):
    outcome = {"score": acc, "acc": acc, "drop": ""}
    notes = {"calls": [{"status": "sandbox_error", "stderr": "no place"}]}
    return Sample(group, number, [1], [2, 3], [1, 1], [-1, -1], notes, finish, 2, (0, 0), outcome=outcome)


def groups(rollouts, *, batch=2, staleness=0, filters=FILTERS, prompts=None, limit=0.3):
    judge = GroupFilter(filters, limit, batch, n=2)
    options = lambda step: {"keep": f"step {step}"}  # noqa: E731
    return Groups(rollouts, prompts or Prompted(), judge, options, batch=batch, staleness=staleness)


def test_a_synchronous_step_takes_what_it_asked_for_in_that_order():
    rollouts = Played()
    made = groups(rollouts)
    made.ask(1)
    rollouts.flying.reverse()  # the second ends first
    taken, metrics = made.take(1, 2)
    assert [group.uid for group in taken] == ["000001-000000", "000001-000001"]
    assert made.pending == [] and metrics["filters/groups/all_equal"] == 0
    assert rollouts.options[0] == {"keep": "step 1"}


def test_a_synchronous_step_waits_for_all_that_is_in_flight_though_enough_are_ready():
    rollouts = Played({0: [0.0, 0.0]})
    made = groups(rollouts)
    made.ask(1)
    made.take(1, 2)
    assert not rollouts.flying, "a short answer is never preferred"


def test_a_dropped_group_is_replaced_by_one_new_prompt():
    rollouts = Played({0: [0.0, 0.0], 2: [1.0, 1.0]})
    made = groups(rollouts)
    made.ask(1)
    taken, metrics = made.take(1, 2)
    assert [group.uid for group in taken] == ["000001-000001", "000001-000003"]
    assert [group.row["number"] for group in taken] == [1, 3]
    assert metrics["filters/groups/all_equal"] == 2
    made.ask(2)
    assert made.take(2, 2)[1]["filters/groups/all_equal"] == 0, "counted once"


def test_a_failed_group_is_replaced_and_counted(capsys):
    made = groups(Played({1: RuntimeError("the engine aborted turn 0")}))
    made.ask(1)
    taken, metrics = made.take(1, 2)
    assert len(taken) == 2 and metrics["filters/groups/failed"] == 1
    assert (
        "a group of step 1 failed: 1 of 2 rollouts: RuntimeError: the engine aborted turn 0" in capsys.readouterr().out
    )


def test_a_group_that_the_sandbox_spoilt_is_replaced_and_too_many_end_the_run():
    class Spoilt(Played):
        def end(self, group):
            ended = super().end(group)
            ended.samples[0].finish = "sandbox_error"
            return ended

    made = groups(Spoilt(), batch=4)
    made.ask(1)
    with pytest.raises(UserError, match="the sandbox itself failed in .* no place"):
        made.take(1, 4)


def test_a_step_that_drops_more_than_the_limit_ends_the_run():
    made = groups(Played(dict.fromkeys(range(99), [0.0, 0.0])))
    made.ask(1)
    with pytest.raises(UserError, match=r"step 1: 5 groups were dropped \(all_equal 5\)"):
        made.take(1, 2)


@pytest.mark.parametrize("staleness", [1, 2])
def test_rollouts_run_ahead_by_whole_batches_and_no_group_grows_older_than_staleness(staleness):
    rollouts = Played()
    made = groups(rollouts, staleness=staleness)
    for step in range(1, 7):
        made.ask(step)
        assert len(made.pending) == (1 + staleness) * 2
        first = rollouts.flying[0]
        rollouts.flying = [*rollouts.flying[1:], first]  # the oldest always ends last
        taken, _ = made.take(step, 2)
        assert all(step - group.step <= staleness for group in taken)
        assert all(group.step > step - staleness for group in rollouts.flying)


def test_a_part_of_a_step_takes_its_share_and_leaves_the_rest():
    rollouts = Played()
    made = groups(rollouts, batch=4, staleness=1)
    made.ask(1)
    first, second = made.take(1, 2)[0], made.take(1, 2)[0]
    assert [group.uid[-1] for group in first + second] == ["0", "1", "2", "3"]


def test_what_a_checkpoint_says_was_asked_for_is_asked_for_again_under_its_names():
    before = groups(Played(), staleness=1)
    before.ask(1)
    before.take(1, 2)
    pending = before.to_ask_again
    rollouts, prompts = Played(), Prompted()
    prompts.position = before.prompts.position
    after = groups(rollouts, staleness=1, prompts=prompts)
    after.ask_again(pending)
    after.ask(2)
    before.ask(2)
    assert [(g.uid, g.row["number"]) for g in rollouts.flying] == sorted(
        (g.uid, g.row["number"]) for g in before.pending
    )
    assert rollouts.options[0] == {"keep": "step 1"}, "found where step 1 kept it"


def test_the_curriculum_learns_in_an_order_that_no_clock_decides():
    def measured(reverse):
        rollouts, prompts = Played({0: [0.0, 0.0]}), Prompted()
        made = groups(rollouts, prompts=prompts)
        made.ask(1)
        if reverse:
            rollouts.flying.reverse()
        made.take(1, 2)
        return prompts.measured

    assert measured(False) == measured(True) == [(0, 0.0), (1, 0.5), (2, 0.5)]


def test_to_wait_for_groups_that_nobody_asked_for_is_an_error():
    with pytest.raises(RuntimeError, match="none is asked for"):
        groups(Played()).take(1, 2)


def test_a_sample_is_arrays_and_what_is_kept_of_it_gives_it_back():
    made = sample("g", 3, 0.5)
    assert (
        made.response_ids.dtype == "int32" and made.response_mask.dtype == "int8" and made.log_probs.dtype == "float32"
    )
    again = Sample.of_kept("g", 3, json.loads(json.dumps(made.kept())))
    assert again.notes.pop("taken_over") is True
    assert again.kept() == made.kept() and again.length == 3 and again.reward == 0.5


def test_a_group_knows_who_asked_for_it():
    assert Group("000002-000007", {}, 2).samples == []


def test_two_draws_of_one_problem_in_a_step_have_numbers_that_a_resume_keeps():
    rollouts, prompts = Played(), Prompted()
    prompts.order = [3, 53, 4]  # two rows of problem 3
    made = groups(rollouts, batch=3, prompts=prompts)
    made.ask(1)
    assert [group.row["draw"] for group in rollouts.flying] == [0, 1, 0]
    again = groups(Played(), batch=3)
    again.ask_again(made.to_ask_again)
    assert [group.row["draw"] for group in again.pending] == [0, 1, 0]


def test_a_restart_asks_for_the_prompts_of_a_step_under_the_same_names():
    """By which it finds what the attempt before had finished of the step."""
    undisturbed = groups(Played())
    for step in (1, 2):
        undisturbed.ask(step)
        undisturbed.take(step, 2)
    restarted = groups(Played())
    restarted.prompts.position = undisturbed.prompts.position
    undisturbed.ask(3)
    restarted.ask(3)
    names = [[(group.uid, group.row["number"]) for group in made.pending] for made in (undisturbed, restarted)]
    assert names[0] == names[1] == [("000003-000000", 4), ("000003-000001", 5)]


def test_a_wait_for_rollouts_beats_when_groups_have_ended_and_says_how_many(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    monkeypatch.setattr(heartbeat, "_writers", {})
    monkeypatch.setenv(heartbeat.VARIABLE, str(heartbeat.prepare(tmp_path)))
    made, seen = groups(Played()), []
    made.ask(1)
    heartbeat.beat(heartbeat.TRAINER, heartbeat.GENERATION)
    for _ in range(2):
        made._receive(1, wait_s=None)
        told = heartbeat.read(tmp_path)["trainer"]
        seen.append([told[name] for name in ("phase", "done", "total", "beats")])
    assert seen == [["generation", 1, 2, 2], ["generation", 2, 2, 3]]
    made._receive(1, wait_s=0)
    assert heartbeat.read(tmp_path)["trainer"]["beats"] == 3, "nothing has ended"


def test_the_curriculum_is_not_told_of_what_the_sandbox_spoilt_or_failed_or_has_no_sample_left():
    class Spoilt(Played):
        def end(self, group):
            ended = super().end(group)
            if group.uid.endswith("0") and group.samples:
                ended.samples[0].finish = "sandbox_error"
            if group.uid.endswith("2"):
                for one in ended.samples:
                    one.outcome["drop"] = "void_turn"
            return ended

    prompts = Prompted()
    filters = FILTERS | {"samples": ["void_turn"]}
    made = groups(Spoilt({1: RuntimeError("no")}), prompts=prompts, batch=4, filters=filters)
    made.ask(1)
    _, metrics = made.take(1, 4)
    assert [metrics[f"filters/groups/{name}"] for name in ("sandbox_error", "failed", "nothing_left")] == [1, 1, 1]
    assert [number for number, _ in prompts.measured] == [3, 4, 5, 6]


def test_the_share_of_the_sandbox_is_of_a_whole_step_at_least():
    """One prompt's two lost trajectories are all that is known at first, and no more than half of a step's four."""

    class Out(Played):
        def end(self, group):
            ended = super().end(group)
            if group.uid == "000001-000000":
                for one in ended.samples:
                    one.finish = "sandbox_error"
            return ended

    made = groups(Out(), limit=0.5)
    made.ask(1)
    assert made.take(1, 2)[1]["sandbox/error_share"] == 2 / 6
    made.ask(2)
    assert made.take(2, 2)[1]["sandbox/error_share"] == 0
    made = groups(Out(), limit=0.3)
    made.ask(1)
    with pytest.raises(UserError, match="the sandbox itself failed in 2 of 2 trajectories"):
        made.take(1, 2)


def test_only_what_was_filtered_asks_for_other_filters():
    place = "own.py, line 3, in reward"
    wrong = [Cause("KeyError", place, f"KeyError: {name!r} ({place})") for name in "xy"]
    causes = [wrong[0], Cause("OSError", "", "OSError: no room"), wrong[1]]

    def end(judge, number):
        group = Group(f"000001-{number:06d}", {}, 1)
        if number < len(causes):
            group.error = GroupFailed([(0, causes[number])], 2)
        else:
            group.samples = [sample(group.uid, n, 1.0) for n in range(2)]
        judge.reason(group)

    judge = GroupFilter(FILTERS | {"refill_limit": 1}, 0.3, 3, n=2)
    for number in range(3):
        end(judge, number)
    judge.check(1)
    end(judge, 3)
    with pytest.raises(UserError) as error:
        judge.check(1)
    assert "failed 3)" in str(error.value) and "loosen recipe.filters" in str(error.value)
    assert "2 with KeyError: 'x' (own.py, line 3, in reward); 1 with OSError: no room" in str(error.value)
    judge = GroupFilter(FILTERS | {"refill_limit": 0}, 0.3, 3, n=2)
    end(judge, 0)
    with pytest.raises(UserError, match=r"\(failed 1\) .*: correct what made rollouts fail") as error:
        judge.check(1)
    assert "recipe.filters" not in str(error.value)
