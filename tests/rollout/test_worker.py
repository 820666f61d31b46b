"""A rollout worker: groups of episodes, their scores, what it keeps and finds. Episodes and judge are played."""

import asyncio
import copy
import pickle

import pytest

from retool_mcore.errors import UserError
from retool_mcore.rollout.failures import GroupFailed
from retool_mcore.rollout.samples import Sample
from retool_mcore.rollout.worker import JudgeActor, RolloutWorker

ROW = {"data_source": "made", "raw_prompt": [{"content": "2+2"}], "reward_model": {"ground_truth": "4"}}
ROW |= {"extra_info": {"index": 3}, "index": 3}


class Episodes:
    """`failing`: numbers of samples whose episode raises; `finish`: how they end."""

    def __init__(self, failing=(), finish="answer"):
        self.failing, self.finish, self.ran = failing, finish, []
        self.ended = 0

    async def run(self, client, uid, number, row, step, sampling):
        self.ran.append((client, uid, number, step, sampling))
        await asyncio.sleep(0.01 if number in self.failing else 0.02)
        if number in self.failing:
            raise ValueError(f"sample {number} is odd")
        self.ended += 1
        notes = {"spans": [], "calls": [], "finish": self.finish}
        return Sample(uid, number, [1], [2, number], [1, 1], [-1, -0.5], notes, self.finish, 2, (4, 5)), {
            "told": number
        }

    async def scored(self, judge, row, sample, told):
        return await judge.score.remote(row, sample.response_ids, told)


class Judge:
    """A handle of a judge that has this process to itself."""

    def __init__(self):
        self.asked = []
        self.score = self

    async def remote(self, row, response_ids, told):
        self.asked.append(told)
        return {"score": 0.5, "acc": 1.0, "drop": "", "overlong": 0.0, "pred": "4"}


def worker(episodes, judge=None, tokens=None):
    made = RolloutWorker(lambda: episodes, [judge or Judge()], {"longest": 10, "window": 4})
    asyncio.run(made.connect("client", tokens))
    return made


def group(made, keep=None, uid="000001-000000", row=ROW, n=2):
    options = {"n": n, "sampling": {"temperature": 1.0}, "keep": keep and str(keep)}
    return asyncio.run(made.group(uid, copy.deepcopy(row), 1, **options))


def test_a_group_is_its_samples_with_what_the_judge_said():
    episodes, judge = Episodes(), Judge()
    samples = group(worker(episodes, judge))
    assert [sample.number for sample in samples] == [0, 1] and {sample.reward for sample in samples} == {0.5}
    assert episodes.ran[0] == ("client", "000001-000000", 0, 1, {"temperature": 1.0})
    assert sorted(told["told"] for told in judge.asked) == [0, 1]


def test_a_failed_group_waits_for_its_siblings_and_raises_what_failed():
    episodes = Episodes(failing=[1])
    with pytest.raises(GroupFailed, match="1 of 3 rollouts: ValueError: sample 1 is odd") as error:
        group(worker(episodes), n=3)
    assert [number for number, _ in pickle.loads(pickle.dumps(error.value)).failures] == [1]
    assert episodes.ended == 2, "no episode goes on behind its group"


def test_what_an_attempt_finished_is_neither_generated_nor_judged_again(tmp_path):
    with pytest.raises(GroupFailed, match="odd"):
        group(worker(Episodes(failing=[1])), keep=tmp_path / "step")
    episodes, judge = Episodes(), Judge()
    samples = group(worker(episodes, judge), keep=tmp_path / "step")
    assert [ran[2] for ran in episodes.ran] == [1] and len(judge.asked) == 1
    assert samples[0].notes["taken_over"] and "taken_over" not in samples[1].notes
    assert samples[0].response_ids.tolist() == [2, 0] and samples[0].versions == (4, 5) and samples[0].reward == 0.5


@pytest.mark.parametrize("other", [{"uid": "000001-000001"}, {"row": ROW | {"reward_model": {"ground_truth": "5"}}}])
def test_another_groups_trajectories_are_not_taken_for_its_own(tmp_path, other):
    group(worker(Episodes()), keep=tmp_path / "step")
    episodes = Episodes()
    group(worker(episodes), keep=tmp_path / "step", **other)
    assert len(episodes.ran) == 2


def test_what_the_sandbox_spoilt_is_not_kept(tmp_path):
    group(worker(Episodes(finish="sandbox_error")), keep=tmp_path / "step")
    episodes = Episodes()
    group(worker(episodes), keep=tmp_path / "step")
    assert len(episodes.ran) == 2


def test_scoring_that_raises_fails_a_group_while_nothing_was_scored_and_is_never_kept(tmp_path):
    class Broken(Judge):
        errors = ["KeyError: 'x' (own.py, line 7, in reward)", "", "", "KeyError: 'x' (own.py, line 7, in reward)"]

        async def remote(self, row, response_ids, told):
            return await super().remote(row, response_ids, told) | {"error": self.errors[len(self.asked) - 1]}

    made = worker(Episodes(), Broken())
    with pytest.raises(GroupFailed, match=r"KeyError: 'x' \(own.py, line 7, in reward\)"):
        group(made, keep=tmp_path / "step")
    samples = group(made, keep=tmp_path / "other")
    assert [sample.outcome["error"] for sample in samples] == ["", Broken.errors[0]], "counted, now that one has worked"
    episodes = Episodes()
    group(worker(episodes), keep=tmp_path / "other")
    assert len(episodes.ran) == 1


def test_a_users_error_ends_the_run_as_it_is():
    class Wrong(Judge):
        async def remote(self, row, response_ids, told):
            raise UserError("no such reward")

    with pytest.raises(UserError, match="no such reward"):
        group(worker(Episodes(failing=[0]), Wrong()))


def test_no_more_episodes_are_at_work_than_the_caches_hold():
    class Counted(Episodes):
        most = live = 0

        async def run(self, *arguments):
            self.live += 1
            self.most = max(self.most, self.live)
            result = await super().run(*arguments)
            self.live -= 1
            return result

    episodes = Counted()
    group(worker(episodes, tokens=4), n=6)
    assert 1 <= episodes.most < 6


def test_a_judge_scores_in_a_thread():
    class Scorer:
        def score(self, row, response_ids, told):
            return {"score": len(response_ids) + told["more"]}

    assert asyncio.run(JudgeActor(Scorer).score({}, [1, 2], {"more": 1})) == {"score": 3}
