"""Single episodes as a rollout worker runs them (backends/verl/episodes.py), around a client of the rollout engine."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

from chatml_tokenizer import make_tokenizer
from omegaconf import OmegaConf

from retool_mcore.backends.verl.episodes import Episodes

TOKENIZER = make_tokenizer()
SETTINGS = {
    "environment": None,
    "stages": None,
    "format": "text",
    "limits": {"max_turns": 4, "max_turn_tokens": 100, "max_observation_tokens": 64},
    "sandbox": {"kind": "local", "workers": 1},
    "timeout_s": 5.0,
    "toolbox": None,
    "seed": 1,
}
ROLLOUT = {"prompt_length": 200, "response_length": 300}


class Lone:
    """Runs episodes of `made` with the client `server`, one at a time."""

    def __init__(self, made: Episodes, server):
        self.made, self.server = made, server

    async def run(self, sampling, *, raw_prompt, index, session_id, global_steps, **row):
        """The sample's fields, as plain lists, and the facts that its reward sees."""
        row |= {"raw_prompt": raw_prompt, "index": index}
        sample, facts = await self.made.run(self.server, "uid", session_id, row, global_steps, sampling)
        arrays = ("prompt_ids", "response_ids", "response_mask", "log_probs")
        return SimpleNamespace(
            **{name: getattr(sample, name).tolist() for name in arrays}, sample=sample, facts=facts, notes=sample.notes
        )


def build(server, settings=None, rollout=None, *, mode="sync", kind=Episodes) -> Lone:
    """settings, rollout: over those above; mode: of the trainer; kind: the class of the episodes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.yaml"
        path.write_text(OmegaConf.to_yaml(OmegaConf.create(SETTINGS | (settings or {}))))
        config = {
            "actor_rollout_ref": {"rollout": ROLLOUT | (rollout or {})},
            "data": {},
            "retool": {"episode": str(path)},
            "trainer": {"v1": {"trainer_mode": mode}},
        }
        return Lone(kind(OmegaConf.create(config), TOKENIZER), server)
