"""Single-player games of the package textarena (0.7), as environments that answer every text.

Not installed with this project, and imported only where a game is named.
"""

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from retool_mcore.environments.text import TextEnvironment
from retool_mcore.errors import UserError

# Games draw from the process's random generators, also in the middle of a game: each has states of its own.
_TURN = threading.Lock()


class TextArena(TextEnvironment):
    """One game, for `toolbox.use`.

    game: its name in textarena, as "GuessTheNumber-v0". options: arguments of the game that replace those of its name,
    as {max_number: 50}. name: the data source of its rows, by default the game's name. A row's index is the seed of its
    game. Raises UserError for a game that textarena has not, one for several players, and options that do not fit.
    """

    def __init__(self, game: str, options: Mapping[str, Any] | None = None, name: str | None = None):
        args: dict[str, Any] = {"game": game, "options": dict(options or {})}
        Game(**args).reset(seed=0)
        super().__init__(f"{__name__}.Game", name or game, args)


class Game:
    """A game with Gymnasium's `reset` and `step`. Its reward comes with its last step, and is textarena's: 1 for a
    won game, in most games a part of it for a lost one."""

    def __init__(self, game: str, options: Mapping[str, Any]):
        textarena = _textarena()
        known = textarena.envs.registration.ENV_REGISTRY
        if game not in known:
            near = ", ".join(sorted(name for name in known if name.partition("-")[0] == game.partition("-")[0]))
            raise UserError(
                f"textarena has no game {game!r}: {f'there are {near}' if near else 'see its list of games'}."
            )
        try:
            self.game = textarena.make(game, **options)
        except TypeError as error:
            raise UserError(f"the options of textarena's {game} do not fit: {error}.") from error
        except LookupError as error:  # of nltk, whose own message is a page
            raise UserError(
                f"textarena's {game} needs word lists of nltk that are not here: run `python -m nltk.downloader words "
                "averaged_perceptron_tagger_eng` on a machine with a network, and copy ~/nltk_data."
            ) from error
        except Exception as error:  # some games are written for Python 3.12, some need a key of a judge
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"textarena's {game} cannot be made ({reason}): take another game.") from error
        self.name, self.inner, self.alone = game, self.game, textarena.SinglePlayerState
        self.player = textarena.ObservationType.PLAYER_ACTION
        while isinstance(self.inner, textarena.Wrapper):
            self.inner = self.inner.env
        self.random: Any = None

    def reset(self, seed: int | None = None) -> tuple[str, dict]:
        """(the game's prompt, {}). Raises UserError for a game for several players."""
        with self._own_random(seed):
            try:
                self.game.reset(num_players=1, seed=seed)
                alone = isinstance(self.inner.state, self.alone)
            except (AssertionError, ValueError):
                alone = False
            if not alone:
                raise UserError(f"textarena's {self.name} is a game for several players: take one for a single player.")
            return self._seen(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        """(what the game says then, its reward, whether it has ended, False, {})."""
        with self._own_random():
            done, _ = self.game.step(action=action)
            seen, rewards = self._seen(), {}
            if done:
                rewards, info = self.game.close()
                seen = "\n".join(filter(None, [seen, str(info[0].get("reason") or "")]))
        return seen, float(rewards.get(0, 0.0)), bool(done), False, {}

    @contextmanager
    def _own_random(self, seed: int | None = None) -> Iterator[None]:
        """Python's and NumPy's generators as this game left them, or as `seed` begins them; afterwards as before."""
        with _TURN:
            before = random.getstate(), np.random.get_state()
            if self.random is None or seed is not None:
                random.seed(seed)
                np.random.seed(None if seed is None else seed % 2**32)
            else:
                random.setstate(self.random[0])
                np.random.set_state(self.random[1])
            try:
                yield
            finally:
                self.random = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])

    def _seen(self) -> str:
        """Return the game's text since the last call: the wrappers of textarena repeat all earlier text."""
        _, messages = self.inner.get_observation()
        return "\n".join(text for _, text, kind in messages or () if kind != self.player).strip()


def _textarena() -> Any:
    try:
        import textarena
        import textarena.envs.registration
    except ImportError as error:
        raise UserError(f"textarena cannot be imported ({error}): pip install 'retool_mcore[textarena]'.") from error
    return textarena
