"""The episodes of a rollout worker, on verl's client of its vLLM servers; and the scoring of what they wrote."""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from omegaconf import OmegaConf
from verl.utils import hf_tokenizer
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.replica import TokenOutput

from retool_mcore.backends.verl.turn import ABORTED, sample_turn
from retool_mcore.data.formats import get_format
from retool_mcore.environments.repository import RepositoryEnvironment
from retool_mcore.environments.repository_episode import in_repository
from retool_mcore.environments.stages import Stages
from retool_mcore.errors import ALIKE, UserError
from retool_mcore.recipes.outcome import compute_score
from retool_mcore.rollout.episode import Generation, Limits, run_episode
from retool_mcore.rollout.samples import ARRAYS, Sample
from retool_mcore.rollout.sampling import turn_params
from retool_mcore.rollout.seeds import DRAW, request_seed
from retool_mcore.rollout.trajectory import Trajectory, answer_text
from retool_mcore.rollout.turn_beats import TURNS
from retool_mcore.rollout.wire import from_wire, to_wire
from retool_mcore.sandbox.base import Sandbox, Status
from retool_mcore.sandbox.create import create_sandbox
from retool_mcore.tools.toolbox import Toolbox, create_toolbox

_TRAJECTORY_ARRAYS = (*ARRAYS, "logprobs")


class Episodes:
    """Runs single episodes of the policy with its tools; for one process, whose sandbox and toolbox all of them share.

    Args:
        config: verl's, with the section `retool`, whose `episode` is the file that `settings.write_episode` wrote.
        tokenizer: the policy's; None reads it from the policy's folder.

    Raises UserError for limits beyond the rollout's response length, an unknown format or an unfit chat template.
    """

    def __init__(self, config, tokenizer=None):
        rollout, data = config.actor_rollout_ref.rollout, config.data
        self.tokenizer = _policy_tokenizer(config) if tokenizer is None else tokenizer
        # Read here, so that no file holds what stands in the environment.
        self.settings: Any = OmegaConf.to_container(OmegaConf.load(config.retool.episode), resolve=True)
        self.prompt_length, budget = rollout.prompt_length, rollout.response_length
        self.limits = Limits(**{"max_response_tokens": budget, **self.settings["limits"]})
        if self.limits.max_response_tokens > budget:
            raise UserError(
                f"limits.max_response_tokens is {self.limits.max_response_tokens}, more than "
                f"actor_rollout_ref.rollout.response_length={budget}: lower the one or raise the other."
            )
        template = dict(data.get("apply_chat_template_kwargs") or {})
        self.format = get_format(self.settings["format"], self.tokenizer, template)
        self.stages = Stages(self.settings["stages"]) if self.settings["environment"] == "repository" else None
        self.resumes = config.trainer.v1.trainer_mode != "sync"  # a push may interrupt a turn
        trajectories = data.get("train_batch_size", ALIKE) * rollout.get("n", 1)
        self.alike = max(2, min(ALIKE, trajectories // rollout.get("agent", {}).get("num_workers", 1)))

    @functools.cached_property
    def sandbox(self) -> Sandbox:
        """Where the policy's programs run: its pool of interpreters outlives an episode."""
        return create_sandbox(self.settings["sandbox"])

    @functools.cached_property
    def toolbox(self) -> Toolbox:
        """The tools that episodes share, such as a search index or a session with a server."""
        made = create_toolbox(
            self.settings["toolbox"],
            sandbox=self.sandbox,
            timeout_s=self.settings["timeout_s"],
            error_lines=self.limits.error_lines,
        )
        made.alike = self.alike
        return made

    async def run(
        self, client, uid: str, number: int, row: dict, step: int, sampling: dict
    ) -> tuple[Sample, dict[str, Any]]:
        """Return the trajectory without its reward, and what the reward function sees besides.

        client: verl's LLMServerClient. step: which training step asked for it; it seeds the requests with the row's
        index and `number`. Raises UserError where the prompt is longer than the rollout's prompt length, RuntimeError
        where the engine aborts a turn.
        """
        act = functools.partial(self._episode, client, uid, number, row, step, sampling)
        with TURNS.trajectory(step):
            if self.stages is None:
                return await act()
            repository = RepositoryEnvironment(self.sandbox, self.settings["timeout_s"], self.limits.error_lines)
            scored = await in_repository(act, row.get("extra_info") or {}, repository, self.stages)
        sample, facts = scored.result
        sample.stages = scored.stages
        if scored.sandbox_failed:
            sample.finish = str(Status.SANDBOX)
        return sample, facts | {"verdict": scored.verdict, "scoring_error": scored.error}

    async def scored(self, judge, row: dict, sample: Sample, facts: dict) -> dict:
        """The outcome of the trajectory, by the actor `judge`."""
        return await judge.score.remote(row, sample.response_ids, facts)

    def tools(self, row: Mapping) -> Toolbox | None:
        """The tools of an episode on the data set's `row` (its extra_info); None where the policy has none."""
        if self.format.name == "none" and not row.get("environment"):
            return None
        return self.toolbox.for_row(row)

    async def _episode(
        self, client, uid: str, number: int, row: dict, step: int, sampling: dict
    ) -> tuple[Sample, dict[str, Any]]:
        extra = row.get("extra_info") or {}
        tools = self.tools(extra)
        prompt_ids = self.format.prompt_ids(row["raw_prompt"], tools.schemas if tools else None)
        if len(prompt_ids) > self.prompt_length:
            raise UserError(
                f"A prompt has {len(prompt_ids)} tokens, more than rollout.prompt_length="
                f"{self.prompt_length}: filter it out or raise data.max_prompt_length."
            )
        sampler = Sampler(self, client, row, step, number, sampling)
        trajectory = await run_episode(
            prompt_ids,
            generate=sampler.generate,
            sandbox=None,
            fmt=self.format,
            tokenizer=self.tokenizer,
            limits=self.limits,
            timeout_s=self.settings["timeout_s"],
            tools=tools,
            row=extra,
        )
        packed = to_wire(trajectory.to_record())
        first, last = sampler.outputs[0].extra_fields, sampler.outputs[-1].extra_fields
        # The oldest weights wrote the first turn, the newest the last.
        versions = (first.get("min_global_steps", 0), last.get("max_global_steps", 0))
        sample = sample_of(uid, number, trajectory, packed, versions)
        sample.resent = (sampler.resent[0], sampler.resent[1])
        # The engine records the experts of all tokens before a turn as well, so the last turn's record is whole.
        if (experts := sampler.outputs[-1].routed_experts) is not None:
            routed = np.asarray(experts, np.int16)[: sample.length]
            sample.experts = np.zeros((sample.length, *routed.shape[1:]), np.int16)
            sample.experts[: len(routed)] = routed  # the engine has read all but the last turn's last token
        return sample, self.facts(trajectory, packed, step)

    def facts(self, trajectory: Trajectory, packed: str, step: int) -> dict[str, Any]:
        """What the reward function sees of a trajectory besides its response; packed: its record (rollout/wire.py)."""
        return {
            "trajectory": packed,
            "policy_text": answer_text(trajectory, self.tokenizer),
            "prefill": self.format.prefill(trajectory.prompt_ids),
            "response_length": len(trajectory.response_ids),
            "training_step": step,
        }


class Sampler:
    """Samples the turns of one trajectory by verl's client.

    outputs: the engine's, in order. resent: tokens that later turns sent again, and those of them that the cache no
    longer had.
    """

    def __init__(self, episodes: Episodes, client, row: Mapping, step: int, number: int, sampling: Mapping[str, Any]):
        self.episodes, self.client, self.step, self.sampling = episodes, client, step, sampling
        self.place = (episodes.settings["seed"], step, int(row["index"]), number)
        self.draw = int(row.get(DRAW, 0))
        self.session = uuid4().hex  # one for all turns, so that each goes to the server that holds the prefix
        self.outputs: list[TokenOutput] = []
        self.known, self.resent = 0, [0, 0]

    async def generate(self, ids: list[int], max_tokens: int) -> Generation:
        """Sample one turn after `ids`, the next of the trajectory. Raises RuntimeError where the engine aborts it."""
        output, generation = await self.sample(ids, max_tokens, number=len(self.outputs))
        self.outputs.append(output)
        if self.known and (cached := output.extra_fields.get("num_cached_tokens")) is not None:
            self.resent[0] += self.known
            self.resent[1] += max(0, self.known - cached)
        self.known = len(ids) + len(output.token_ids)
        return generation

    async def sample(
        self, ids: list[int], max_tokens: int, *, number: int, branch: str = "", stop: Sequence[str] = ()
    ) -> tuple[TokenOutput, Generation]:
        """Sample a turn. number, branch: seed it (rollout/seeds.py). stop: further texts that end it."""
        fmt, limits = self.episodes.format, self.episodes.limits

        def params(done: int) -> dict[str, Any]:
            # A new dict for every request: verl's server pops keys from the one it gets.
            seed = request_seed(*self.place, number, done, draw=self.draw, branch=branch)
            wanted = turn_params(self.sampling, fmt, max_tokens=max_tokens - done, seed=seed)
            return wanted | {"stop": [*wanted["stop"], *stop]}

        clock = time.monotonic()
        output, versions = await sample_turn(
            self.client,
            request_id=self.session,
            prompt_ids=ids,
            params=params,
            decode=fmt.decode,
            resumes=self.episodes.resumes,
            # A push interrupts all requests, and those of the next step may reach the engine first after it: in the
            # order of arrival a step would wait for its own groups behind them.
            priority=self.step,
        )
        if output.stop_reason in ABORTED:
            raise RuntimeError(f"The engine aborted turn {number} of a trajectory.")
        TURNS.turn(len(output.token_ids), time.monotonic() - clock, limits.max_turn_tokens)
        logprobs = list(output.log_probs) if output.log_probs else None
        return output, Generation(list(output.token_ids), logprobs, versions)


def sample_of(uid: str, number: int, trajectory: Trajectory, packed: str, versions: tuple[int, int]) -> Sample:
    """Return the sample of a trajectory; packed: its record (rollout/wire.py)."""
    return Sample(
        group=uid,
        number=number,
        prompt_ids=trajectory.prompt_ids,
        response_ids=trajectory.response_ids,
        response_mask=trajectory.response_mask,
        log_probs=trajectory.logprobs,
        notes={name: value for name, value in from_wire(packed).items() if name not in _TRAJECTORY_ARRAYS},
        finish=trajectory.finish,
        turns=1 + len(trajectory.spans),
        versions=versions,
    )


class Scorer:
    """Scores trajectories by the recipe's reward; for one process."""

    def __init__(self, config):
        self.tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
        self.compute = functools.partial(compute_score, **config.retool.reward)

    def score(self, row: Mapping, response_ids: list[int], facts: Mapping) -> dict:
        """The outcome (recipes/outcome.py) of a response to the data set's `row`."""
        text = self.tokenizer.decode(response_ids, skip_special_tokens=True)
        known = {**row["extra_info"], **facts}
        return self.compute(str(row["data_source"]), text, row["reward_model"]["ground_truth"], known)


def _policy_tokenizer(config):
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    if model.get("custom_chat_template", None) is not None:
        model.tokenizer.chat_template = model.custom_chat_template
    return model.tokenizer
