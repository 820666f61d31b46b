"""RetoolAgentLoop as AgentLoopWorker makes it: by hydra from a config entry, around a client of the rollout engine."""

import hydra
from chatml_tokenizer import make_tokenizer
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap

TOKENIZER = make_tokenizer()


def build(server, entry=None, trainer=None):
    """entry: over the entry's own keys; trainer: over those of actor_rollout_ref.rollout."""
    entry = {
        "name": "retool",
        "_target_": "retool_mcore.backends.verl.agent_loop.RetoolAgentLoop",
        "format": "text",
        "limits": {"max_turns": 4, "max_turn_tokens": 100, "max_observation_tokens": 64},
        "sandbox": {"kind": "local", "workers": 1},
        "timeout_s": 5.0,
        "seed": 1,
        **(entry or {}),
    }
    rollout = {"prompt_length": 200, "response_length": 300, "full_determinism": False, **(trainer or {})}
    return instantiate(entry, rollout, server)


def instantiate(entry, rollout, server):
    """The loop of `entry`, as verl makes one for each trajectory."""
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    return hydra.utils.instantiate(
        config=OmegaConf.create([entry])[0],
        trainer_config=DictConfigWrap(config),
        server_manager=server,
        tokenizer=TOKENIZER,
        processor=None,
        hf_model_type="qwen2",
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
        tools=ToolListWrap([]),
    )
