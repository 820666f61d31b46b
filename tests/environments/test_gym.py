"""Environments with reset and step as tools: docs/rewards.md's own, in verl's agent loop, and OpenEnv's form."""

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from lone_episodes import TOKENIZER, build
from omegaconf import OmegaConf
from recipe_samples import sample as make_sample
from verl.workers.rollout.replica import TokenOutput

from retool_mcore.config import compose
from retool_mcore.data.schema import rows_of
from retool_mcore.environments.gym import GymEnvironment, write_rows
from retool_mcore.errors import UserError
from retool_mcore.preflight.data import check_ability
from retool_mcore.recipes.outcome import compute_score
from retool_mcore.rewards.registry import find_reward
from retool_mcore.tools.base import Episode
from retool_mcore.tools.toolbox import create_toolbox

PAGES = [Path(__file__).parents[2] / f"docs/{page}.md" for page in ("rewards", "environments")]
PATH = "retool_mcore.environments.gym.GymEnvironment"


@pytest.fixture(autouse=True)
def page(tmp_path, monkeypatch):
    """The modules that the pages show, where Python finds them; the script's text."""
    text = "\n".join(page.read_text() for page in PAGES)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    named = ("def brief(", "class Guess:", "write_rows(guess,")
    reward, environment, script = (next(block for block in blocks if name in block) for name in named)
    (tmp_path / "brief_reward.py").write_text(reward)
    (tmp_path / "guess_env.py").write_text(environment)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield script
    for name in ("brief_reward", "guess_env"):
        sys.modules.pop(name, None)
    find_reward.cache_clear()


def entry(name="guess", make="guess_env.Guess", **args):
    return {"path": PATH, "args": {"make": make, "name": name, **args}}


def test_the_pages_reward():
    brief = find_reward("brief_reward.brief")
    right = make_sample(acc=1.0)
    assert brief(right) == pytest.approx(1.0 - 0.1 * len(right.calls))


class Server:
    def __init__(self, *turns):
        self.turns = list(turns)

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        ids = [*TOKENIZER.encode(self.turns.pop(0), add_special_tokens=False), TOKENIZER.eos_token_id]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields={})


def call(action, name="guess"):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'action': action}})}\n</tool_call>"


def episode(row, *turns):
    server = Server(*turns)
    use = [entry(), entry("other", "guess_env.Guess")]
    limits = {"max_turns": 9, "max_turn_tokens": 400, "max_observation_tokens": 200}
    own = {"format": "hermes", "limits": limits, "toolbox": {"use": use, "timeout_s": 20}}
    loop = build(server, own, {"prompt_length": 3000, "response_length": 3000})
    place = {"index": 0, "session_id": 0, "global_steps": 1, "extra_info": row["extra_info"]}
    return asyncio.run(loop.run({"temperature": 1.0}, raw_prompt=row["prompt"], **place))


def test_an_episode_of_a_rollout_worker_and_its_reward(page, tmp_path):
    exec(page, {})
    rows = rows_of(str(tmp_path / "guess/train.parquet"))
    assert len(rows) == 512 and {row["data_source"] for row in rows} == {"guess"}
    row = rows[3]
    assert row["prompt"][0]["content"].endswith("\n\nGuess a number from 1 to 20.")
    import guess_env

    mine = guess_env.Guess()
    mine.reset(seed=3)
    wrong = mine.number - 1 if mine.number > 1 else 2
    output = episode(row, call("no number"), call(str(wrong)), call(str(mine.number)))
    record = output.notes
    assert [one["status"] for one in record["calls"]] == ["error", "success", "success"]
    assert record["calls"][1]["stdout"] == f"The number is {'larger' if wrong < mine.number else 'smaller'}."
    assert [one["value"] for one in record["calls"]] == [None, "0.0", "1.0"]
    assert output.sample.finish == "tool"
    recipe = compose("rl", ["recipe.answer=environment", "recipe.reward.name=environment"]).recipe
    scored = compute_score("guess", "", "environment", output.facts, OmegaConf.to_container(recipe), 3000)
    assert (scored["score"], scored["acc"]) == (1.0, 1.0)
    lost = compute_score("guess", "", "environment", episode(row, call(str(wrong)), "I give up.").facts, recipe, 3000)
    assert (lost["score"], lost["acc"]) == (0.0, 0.0)
    file = [tmp_path / "guess/train.parquet"]
    check_ability(file, recipe)
    with pytest.raises(
        UserError, match="recipe.answer=boxed.* are episodes of an environment .* go with recipe.answer=environment"
    ):
        check_ability(file, compose("rl").recipe)


def test_a_row_sees_only_the_tool_of_its_environment(tmp_path):
    toolbox = create_toolbox({"use": [entry(), entry("other")]})
    for tool in toolbox.tools.values():
        write_rows(tool, tmp_path / f"{tool.name}.parquet", seeds=[1], instructions="Play.")
    for name in ("guess", "other"):
        (row,) = rows_of(str(tmp_path / f"{name}.parquet"))
        assert list(toolbox.for_row(row["extra_info"]).tools) == [name] and row["data_source"] == name
    guess, other = toolbox.tools.values()
    write_rows(guess, tmp_path / "both.parquet", seeds=[1], instructions="Play.", beside=[other])
    (row,) = rows_of(str(tmp_path / "both.parquet"))
    assert list(toolbox.for_row(row["extra_info"]).tools) == ["guess", "other"] and row["data_source"] == "guess"


@dataclass
class Move:
    place: int


@dataclass
class Seen:
    observation: dict
    reward: float | None
    done: bool


class Board:
    """OpenEnv's form: results and actions are objects; here coroutines, as its clients have them."""

    closed = 0

    async def reset(self):
        return Seen({"board": [0, 0]}, None, False)

    async def step(self, move):
        return Seen({"board": [move.place, 1]}, move.place / 2, move.place > 1)

    def close(self):
        Board.closed += 1


def test_openenvs_results_and_actions():
    schema = {"type": "object", "properties": {"place": {"type": "integer"}}, "required": ["place"]}
    made = entry("board", "test_gym.Board", parameters=schema, action_type="test_gym.Move")
    toolbox = create_toolbox({"use": [made]})
    sys.modules["test_gym"].Board.closed = 0

    async def play():
        episode = Episode({"index": 4})
        first = await toolbox.call("board", {"place": 1}, episode)
        last = await toolbox.call("board", {"place": 2}, episode)
        await toolbox.release(episode)
        return await toolbox.tools["board"].begin(0), first, last

    (_, text), first, last = asyncio.run(play())
    assert text == '{"board": [0, 0]}'
    assert (first.text, first.value, first.ends) == ('{"board": [1, 1]}', "0.5", False)
    assert (last.value, last.ends, sys.modules["test_gym"].Board.closed) == ("1.0", True, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [("nowhere.Env", "cannot be loaded"), ("random.Random", "random.Random has no reset and no step")],
)
def test_what_is_no_environment_is_refused(make, words):
    with pytest.raises(UserError, match=words):
        GymEnvironment(make, "x")
