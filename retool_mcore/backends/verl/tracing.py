"""Episodes as spans in MLflow, through verl's own trace hook (verl/utils/rollout_trace.py): the adapter to both.

verl 0.9.1's hook has a span for every generation and knows nothing of our tools and reward. `TracedEpisodes` chooses
the prompts and adds what is missing:

    agent_loop                     tags step, trajectory, problem, sample, reward, finish; text of prompt and response
      LLMServerClient.generate     one a turn, or a part of one between two pushes: token ids, text, sampling parameters
      tool NAME                    one a call: arguments, status, what the policy reads
      reward                       the text that was judged, the expected answer, what the reward function returned

`trajectory` is UID_SAMPLE, by which `retool view` names it, too.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mlflow
from omegaconf import open_dict
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

from retool_mcore.backends.verl.episodes import Episodes
from retool_mcore.errors import UserError
from retool_mcore.files import shown
from retool_mcore.tools.toolbox import Toolbox

FOLDER = "mlflow"  # in the stage's folder
PROJECT = "retool"  # MLflow's experiment


def enable(verl, *, name: str, prompts: int | None) -> None:
    """Trace the episodes of `prompts` prompts (None: all) a step and rollout worker of the run `name`.

    verl: its configuration, which is changed.
    """
    rollout = verl.actor_rollout_ref.rollout
    with open_dict(rollout):
        rollout.trace.backend = "mlflow"
        rollout.trace.token2text = True
        rollout.trace.project_name = PROJECT
        rollout.trace.experiment_name = name
        rollout.trace.max_samples_per_step_per_worker = prompts


class TracedEpisodes(Episodes):
    """Episodes with traces of a step's first prompts: spans of the calls and the reward, and tags."""

    def __init__(self, config, tokenizer=None):
        name_store(Path(config.retool.stage_dir) / FOLDER)
        super().__init__(config, tokenizer)
        settings = config.actor_rollout_ref.rollout.trace
        RolloutTraceConfig.init(settings.project_name, settings.experiment_name, settings.backend, settings.token2text)
        self.prompts = settings.max_samples_per_step_per_worker
        self.traced: dict[int, set[str]] = {}  # groups, by step

    @asynccontextmanager
    async def trace(self, uid: str, number: int, row: dict, step: int) -> AsyncIterator[None]:
        chosen = self.traced.setdefault(step, set())
        # Step 0 is validation, whose requests are all of it.
        traced = step > 0 and (self.prompts is None or uid in chosen or len(chosen) < self.prompts)
        if traced:
            chosen.add(uid)
        attributes = {"step": step, "sample_index": row["index"], "rollout_n": number, "validate": step == 0}
        with rollout_trace_attr(**attributes, name="agent_loop", trace=traced):
            yield
        if traced:  # here, because Ray ends a worker without its exit handlers
            await asyncio.to_thread(mlflow.flush_trace_async_logging)

    def tools(self, row):
        tools = super().tools(row)
        return tools and TracedToolbox(tools)

    async def scored(self, judge, row, sample, facts):
        outcome = await span(
            "reward",
            lambda: super(TracedEpisodes, self).scored(judge, row, sample, facts),
            lambda found: {"reward": found["score"]} | {name: found[name] for name in found if name != "score"},
            answer=facts.get("policy_text"),
            expected=dict(row.get("reward_model") or {}).get("ground_truth"),
        )
        names = {"uid": sample.group, "session_id": sample.number} | {
            name: row[name] for name in ("data_source", "index")
        }
        describe(sample.prompt_ids, sample.response_ids, names, outcome["score"], sample.finish, self.tokenizer)
        return outcome


class TracedToolbox(Toolbox):
    """The tools of `inner`, each call in a span."""

    def __init__(self, inner: Toolbox):
        vars(self).update(vars(inner))

    async def call(self, name, arguments, *args, **kwargs):
        call = super().call
        return await span(
            f"tool {name}",
            lambda: call(name, arguments, *args, **kwargs),
            lambda reply: {"status": reply.status, "text": reply.text, "seconds": reply.duration_s},
            arguments=arguments,
        )


async def span(name: str, work: Callable[[], Awaitable], show: Callable[[Any], dict], **inputs) -> Any:
    """The result of `work()`, awaited inside a span of verl's hook with `inputs`, and `show(result)` as its outputs.

    Without a span where verl does not trace the episode.
    """
    kept = []

    async def traced(self, **inputs):
        kept.append(await work())
        return show(kept[0])

    traced.__qualname__ = name  # what the hook calls the span
    await rollout_trace_op(traced)(None, **inputs)
    return kept[0]


def describe(prompt_ids, response_ids, sample: Mapping, reward: float, finish: str, tokenizer) -> None:
    """Tag the current trace, if there is one, with the trajectory that it is of: sample `session_id` of group `uid`."""
    current = mlflow.get_current_active_span()
    if current is None:
        return
    tags = {
        "trajectory": f"{sample['uid']}_{sample['session_id']}",
        "problem": f"{sample.get('data_source')} #{sample.get('index')}",
        "sample": sample["session_id"],
        "reward": reward,
        "finish": finish,
    }
    mlflow.update_current_trace(tags={name: str(value) for name, value in tags.items()})
    current.set_inputs({"prompt": tokenizer.decode(prompt_ids)})
    current.set_outputs({"response": tokenizer.decode(response_ids)} | tags)


def name_store(folder: Path) -> str:
    """Point MLflow of this process to the store: the one that MLFLOW_TRACKING_URI names, else files in `folder`."""
    os.environ.setdefault("MLFLOW_TRACKING_URI", folder.as_uri())
    # Files need neither a server nor a database; MLflow wants to hear that they are meant.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    # Its makers' statistics of use: a cluster's nodes have no way out, and nobody was asked.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    return os.environ["MLFLOW_TRACKING_URI"]


def try_store(folder: Path) -> str:
    """Write a span to the store (see `name_store`), read it back and remove it; returns the store's address.

    It also makes the experiment, which workers that start together would each make. Raises UserError when the span does
    not come back: MLflow itself only logs a warning, once per span, in the workers.
    """
    address = name_store(folder)
    store = shown(address)
    try:
        mlflow.set_tracking_uri(address)
        experiment = mlflow.set_experiment(PROJECT).experiment_id
        with mlflow.start_span("probe") as probe:
            trace = probe.trace_id
        mlflow.flush_trace_async_logging()
        kept = mlflow.get_trace(trace) is not None
        if kept:
            mlflow.MlflowClient().delete_traces(experiment, trace_ids=[trace])
    except (mlflow.exceptions.MlflowException, OSError) as error:
        reason = " ".join(str(error).replace(address, store).split())
        raise UserError(f"trace.backend=mlflow: the store {store} does not answer ({reason[:300]}).") from None
    if not kept:
        raise UserError(f"trace.backend=mlflow: the store {store} takes a span but does not give it back.")
    return store
