"""The adapter between `run_episode` and verl 0.9.1: the one module of the rollout that touches verl.

verl's AgentLoopWorker makes one instance a trajectory from the entry of `agent_loop_config_path`. That entry is the
registration: verl's `@register` here would replace it, arguments and all, when the class is first imported.

    - name: retool
      _target_: retool_mcore.backends.verl.agent_loop.RetoolAgentLoop
      format: hermes
      limits: {max_turns: 8, max_turn_tokens: 4096, max_observation_tokens: 512}
      sandbox: {kind: local, ...}
      timeout_s: 10
      seed: 1
      toolbox: {use: [{path: package.module.Class, args: {}}], timeout_s: 30}
"""

import functools
import json
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from retool_mcore.backends.verl.turn import ABORTED, sample_turn
from retool_mcore.data.formats import Format, get_format
from retool_mcore.errors import ALIKE, UserError
from retool_mcore.rollout.episode import Generation, Limits, run_episode
from retool_mcore.rollout.sampling import turn_params
from retool_mcore.rollout.seeds import DRAW, request_seed
from retool_mcore.rollout.trajectory import answer_text
from retool_mcore.rollout.turn_beats import TURNS, counted
from retool_mcore.rollout.wire import to_wire
from retool_mcore.sandbox.base import Sandbox
from retool_mcore.sandbox.create import create_sandbox
from retool_mcore.tools.toolbox import Toolbox, create_toolbox


@functools.lru_cache(maxsize=8)
def _shared_format(name: str, tokenizer, template_json: str) -> Format:
    # An agent loop lives for one trajectory, and building the hermes format takes 36 ms of template rendering.
    return get_format(name, tokenizer, json.loads(template_json))


@functools.cache
def _shared_sandbox(config_json: str) -> Sandbox:
    # One a process and config: an agent loop lives for one trajectory, a pool of interpreters must outlive it.
    return create_sandbox(json.loads(config_json))


@functools.cache
def _shared_toolbox(toolbox_json: str, sandbox: Sandbox, timeout_s: float, error_lines: int) -> Toolbox:
    # As the sandbox: a search index or a session with a server is for the process, not for a trajectory.
    return create_toolbox(json.loads(toolbox_json), sandbox=sandbox, timeout_s=timeout_s, error_lines=error_lines)


class RetoolAgentLoop(AgentLoopBase):
    """One trajectory of the policy with its tools.

    Arguments beyond verl's own: `format` is a name for `get_format`; `limits` the fields of `Limits`, of which
    `max_response_tokens` is verl's `rollout.response_length` unless given; `sandbox` a config for `create_sandbox`;
    `timeout_s` the seconds that one program may run; `toolbox` a config for `create_toolbox`, None for the code
    interpreter alone; `seed` the run's: every turn is sampled with a seed of its own (rollout/seeds.py). Raises
    UserError for limits beyond verl's response length, an unknown format or an unfit chat template.
    """

    def __init__(
        self,
        *args,
        format: str,
        limits: Mapping,
        sandbox: Mapping,
        timeout_s: float,
        seed: int,
        toolbox: Mapping | None = None,  # not `tools`, which verl passes to every agent loop
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        budget = self.rollout_config.response_length
        self.limits = Limits(**{"max_response_tokens": budget, **limits})
        if self.limits.max_response_tokens > budget:
            raise UserError(
                f"limits.max_response_tokens is {self.limits.max_response_tokens}, more than "
                f"actor_rollout_ref.rollout.response_length={budget}: lower the one or raise the other."
            )
        template_json = json.dumps(dict(self.apply_chat_template_kwargs), sort_keys=True)
        self.format = _shared_format(format, self.tokenizer, template_json)
        self.sandbox_json = _as_json(sandbox)
        self.toolbox_json = "null" if toolbox is None else _as_json(toolbox)
        self.timeout_s = timeout_s
        self.seed = seed
        trajectories = self.config.data.get("train_batch_size", ALIKE) * self.rollout_config.get("n", 1)
        workers = self.rollout_config.get("agent", {}).get("num_workers", 1)
        self.alike = max(2, min(ALIKE, trajectories // workers))

    @counted
    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs) -> AgentLoopOutput:
        """Roll out `kwargs["raw_prompt"]` (list of messages) and return verl's output.

        `extra_fields` has the same keys for every sample: the engine's (weight versions), `policy_text` and `prefill`
        (what the reward reads), `trajectory` (`Trajectory.to_record` as text, rollout/wire.py, since TransferQueue
        carries strings unchanged), `finish`, `num_calls`, `response_length` in tokens, and `training_step`. Raises
        UserError when the prompt is longer than `rollout.prompt_length`, RuntimeError when the engine aborts a turn.
        """
        # Under full determinism verl names the request itself; it arrives as a numpy integer.
        priority = int(priority)
        request_id = f"det-{priority}" if self.rollout_config.get("full_determinism", False) else uuid4().hex
        row = kwargs.get("extra_info") or {}
        tools = self._tools(row)
        prompt_ids = self.format.prompt_ids(kwargs["raw_prompt"], tools.schemas if tools else None)
        if len(prompt_ids) > self.rollout_config.prompt_length:
            raise UserError(
                f"A prompt has {len(prompt_ids)} tokens, more than rollout.prompt_length="
                f"{self.rollout_config.prompt_length}: filter it out or raise data.max_prompt_length."
            )
        outputs = []
        known, resent = 0, [0, 0]  # tokens that later turns sent again, and those of them that the cache no longer had
        place = (self.seed, int(kwargs["global_steps"]), int(kwargs["index"]), int(kwargs["session_id"]))
        draw = int(kwargs.get(DRAW, 0))

        async def generate(ids: list[int], max_tokens: int) -> Generation:
            def params(done: int) -> dict[str, Any]:
                # A new dict for every request: verl's server pops keys from the one it gets.
                seed = request_seed(*place, len(outputs), done, draw=draw)
                return turn_params(sampling_params, self.format, max_tokens=max_tokens - done, seed=seed)

            clock = time.monotonic()
            output, versions = await sample_turn(
                self.server_manager,
                # One id for all turns, so that each goes to the server that holds the prefix in its cache.
                request_id=request_id,
                prompt_ids=ids,
                params=params,
                decode=self.format.decode,
                priority=priority,
            )
            if output.stop_reason in ABORTED:
                raise RuntimeError(f"The engine aborted turn {len(outputs)} of a trajectory.")
            outputs.append(output)
            nonlocal known
            if known and (cached := output.extra_fields.get("num_cached_tokens")) is not None:
                resent[0] += known
                resent[1] += max(0, known - cached)
            known = len(ids) + len(output.token_ids)
            TURNS.turn(len(output.token_ids), time.monotonic() - clock, self.limits.max_turn_tokens)
            logprobs = list(output.log_probs) if output.log_probs else None
            return Generation(list(output.token_ids), logprobs, versions)

        trajectory = await run_episode(
            prompt_ids,
            generate=generate,
            sandbox=None,
            fmt=self.format,
            tokenizer=self.tokenizer,
            limits=self.limits,
            timeout_s=self.timeout_s,
            tools=tools,
            row=row,
        )
        last = outputs[-1].extra_fields
        preempted = [output.num_preempted for output in outputs if output.num_preempted is not None]
        return AgentLoopOutput(
            prompt_ids=trajectory.prompt_ids,
            response_ids=trajectory.response_ids,
            response_mask=trajectory.response_mask,
            response_logprobs=trajectory.logprobs or None,
            # The engine records the experts of all tokens before a turn as well, so the last turn's record is whole.
            routed_experts=outputs[-1].routed_experts,
            num_turns=1 + len(trajectory.spans),
            metrics=AgentLoopMetrics(
                generate_sequences=trajectory.generate_s,
                tool_calls=trajectory.tool_s,
                num_preempted=sum(preempted) if preempted else -1,
            ),
            extra_fields={
                **outputs[0].extra_fields,
                # The oldest weights wrote the first turn, the newest the last: verl's staleness control needs both.
                **{key: last[key] for key in ("global_steps", "max_global_steps") if key in last},
                "policy_text": answer_text(trajectory, self.tokenizer),
                "prefill": self.format.prefill(prompt_ids),
                "trajectory": to_wire(trajectory.to_record()),
                "finish": trajectory.finish,
                "num_calls": len(trajectory.calls),
                "response_length": len(trajectory.response_ids),
                "resent": resent,
                "training_step": place[1],  # which asked for it; the engine's `global_steps` counts its weights
            },
        )

    def _tools(self, row: Mapping) -> Toolbox | None:
        if self.format.name == "none" and not row.get("environment"):
            return None
        sandbox: Any = _shared_sandbox(self.sandbox_json)
        toolbox = _shared_toolbox(self.toolbox_json, sandbox, self.timeout_s, self.limits.error_lines)
        toolbox.alike = self.alike
        return toolbox.for_row(row)


def _as_json(section: Mapping) -> str:
    plain = OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else section
    return json.dumps(plain, sort_keys=True)
