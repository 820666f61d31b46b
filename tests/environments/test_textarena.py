"""Games of textarena: seeds, several at once, the limit of turns, rewards, and what is refused.

The package is no dependency. Without it a module of the same interface stands in for it; with it, its own games are
played as well.
"""

import asyncio
import random
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

import pytest

from retool_mcore.data.schema import rows_of
from retool_mcore.environments.textarena import Game, TextArena
from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode
from retool_mcore.tools.toolbox import Toolbox, create_toolbox

PATH = "retool_mcore.environments.textarena.TextArena"


def stand_in():
    """textarena's core in a few lines: one random generator for all, wrappers that repeat what was said before."""
    made, registration = types.ModuleType("textarena"), types.ModuleType("textarena.envs.registration")
    kinds = Enum("ObservationType", "PROMPT PLAYER_ACTION GAME_MESSAGE")

    class Wrapper:
        def __init__(self, env):
            self.env, self.seen = env, ""

        def __getattr__(self, name):
            return getattr(self.env, name)

        def get_observation(self):
            player, new = self.env.get_observation()
            self.seen += "".join(text for _, text, _ in new)
            return player, self.seen

    class SinglePlayerState:
        pass

    class Guess:
        def __init__(self, max_number=20, max_turns=3):
            self.max_number, self.max_turns = max_number, max_turns

        def reset(self, num_players, seed=None):
            self.state = SinglePlayerState()
            random.seed(seed)
            self.number, self.new = random.randint(1, self.max_number), [(-1, "Guess.", kinds.PROMPT)]
            self.turn, self.reward, self.reason = 0, None, None

        def step(self, action):
            self.new.append((0, action, kinds.PLAYER_ACTION))
            self.turn += 1
            if action == f"[{self.number}]":
                self.reward, self.reason = 1, "Won."
            elif self.turn == self.max_turns:
                self.reward, self.reason = 0.25, "No turns are left."
            else:
                self.new.append((-1, f"No. Luck is {random.random()}", kinds.GAME_MESSAGE))
            return self.reward is not None, {}

        def get_observation(self):
            found, self.new = self.new, []
            return 0, found

        def close(self):
            return {0: self.reward}, {0: {"reason": self.reason}}

    class Duel(Guess):
        def reset(self, num_players, seed=None):
            assert num_players == 2, "two players"

    class Alone(Guess):
        def reset(self, num_players, seed=None):
            self.state = object()

    class Keyed(Guess):
        def __init__(self):
            raise ValueError("no key")

    class Worded(Guess):
        def __init__(self):
            raise LookupError("a page of nltk")

    games = {"Guess-v0": Guess, "Duel-v0": Duel, "Alone-v0": Alone, "Keyed-v0": Keyed, "Worded-v0": Worded}
    registration.ENV_REGISTRY = games
    made.make = lambda name, **options: Wrapper(games[name](**options))
    made.envs = types.SimpleNamespace(registration=registration)
    made.Wrapper, made.ObservationType, made.SinglePlayerState = Wrapper, kinds, SinglePlayerState
    return {
        "textarena": made,
        "textarena.envs": types.ModuleType("textarena.envs"),
        registration.__name__: registration,
    }


@pytest.fixture
def fake(monkeypatch):
    for name, module in stand_in().items():
        monkeypatch.setitem(sys.modules, name, module)


def said(seed, *actions, **options):
    game = Game("Guess-v0", options)
    return [game.reset(seed=seed)[0], *(game.step(action) for action in actions)]


def test_a_seed_names_the_game_and_leaves_everybody_elses_draws_alone(fake):
    random.seed(5)
    expected = [random.random() for _ in range(4)]
    random.seed(5)
    drawn = [random.random()]
    first = said(3, "[0]", "[0]")
    drawn += [random.random() for _ in range(3)]
    assert drawn == expected
    assert first == said(3, "[0]", "[0]") != said(4, "[0]", "[0]")
    assert first[0] == "Guess." and first[1][0].startswith("No. Luck") and first[1][1:] == (0.0, False, False, {})


def test_games_at_once_do_not_disturb_each_other(fake):
    alone = [said(seed, *["[0]"] * 20, max_turns=50) for seed in range(12)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: said(seed, *["[0]"] * 20, max_turns=50), range(12)))
    assert together == alone


def test_the_reward_is_the_games_and_comes_at_its_end(fake):
    game = Game("Guess-v0", {})
    game.reset(seed=3)
    won = f"[{game.inner.number}]"
    assert said(3, "[0]", won)[-1] == ("Won.", 1.0, True, False, {})
    assert said(3, "[0]", "[0]", "[0]")[-1] == ("No turns are left.", 0.25, True, False, {})


def test_rows_and_an_episode(fake, tmp_path):
    box = create_toolbox({"use": [{"path": PATH, "args": {"game": "Guess-v0", "options": {"max_number": 9}}}]})
    game = box.partners["Guess-v0"]
    game.write_rows(tmp_path / "g.parquet", seeds=range(4), instructions="Play.")
    rows = rows_of(str(tmp_path / "g.parquet"))
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3] and rows[0]["data_source"] == "Guess-v0"
    assert rows[0]["prompt"][0]["content"] == "Play.\n\nGuess."

    async def episode(row):
        own, state = box.for_row(row), Episode(row)
        replies = [await own.answer("[0]", state) for _ in range(3)]
        await own.release(state)
        return [(reply.value, reply.ends) for reply in replies]

    assert asyncio.run(episode(rows[2]["extra_info"])) == [("0.0", False), ("0.0", False), ("0.25", True)]


@pytest.mark.parametrize(
    ("game", "options", "match"),
    [
        ("Guess-v1", {}, "textarena has no game 'Guess-v1': there are Guess-v0"),
        ("Nothing", {}, "no game 'Nothing': see its list"),
        ("Guess-v0", {"max": 3}, "the options of textarena's Guess-v0 do not fit: .*'max'"),
        ("Duel-v0", {}, "Duel-v0 is a game for several players"),
        ("Alone-v0", {}, "Alone-v0 is a game for several players"),
        ("Keyed-v0", {}, r"Keyed-v0 cannot be made \(ValueError: no key\)"),
        ("Worded-v0", {}, "Worded-v0 needs word lists of nltk"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(fake, game, options, match):
    with pytest.raises(UserError, match=match) as refused:
        TextArena(game, options)
    assert "\n" not in str(refused.value)


def test_without_the_package_it_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(UserError, match=r"textarena cannot be imported .*pip install 'retool_mcore\[textarena\]'"):
        TextArena("GuessTheNumber-v0")


@pytest.mark.parametrize("game", ["GuessTheNumber-v0", "Mastermind-v0", "TowerOfHanoi-v0"])
def test_textarenas_own_games(game):
    pytest.importorskip("textarena", reason="pip install 'retool_mcore[textarena]'")
    one, two = (Game(game, {}) for _ in range(2))
    assert one.reset(seed=3) == two.reset(seed=3)
    for action in ("[1]", "[1 2 3 4]", "[A C]", "no"):
        assert one.step(action) == two.step(action)
    box = Toolbox([TextArena(game)])
    assert box.for_row({"environment": game, "tools": "[]"}).partner.name == game
