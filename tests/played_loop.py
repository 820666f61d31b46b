"""RL's loop (train/rl.py) with its engines played: made-up trajectories, passes that a test sees, checkpoints without
weights."""

from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf

from retool_mcore.data import prompt_stream
from retool_mcore.data.curriculum import Curriculum
from retool_mcore.data.prompt_stream import Prompts
from retool_mcore.metrics.audit import MaskAuditError
from retool_mcore.rollout.samples import Sample
from retool_mcore.state import alarms, checkpoints
from retool_mcore.train import rl
from retool_mcore.train.run import Run
from retool_mcore.train.settings import Settings
from retool_mcore.train.validation import Validation

RECIPE = {
    "advantage": "grpo",
    "normalise_by_std": True,
    "gamma": 1.0,
    "lambda": 1.0,
    "critic": {"warmup_steps": 0},
    "policy_loss": "vanilla",
    "loss_aggregation": "token-mean",
    "loss_scale": None,
    "observation_weight": 0.0,
    "group_reward": {"name": None, "args": {}},
    "filters": {"all_equal": False, "accuracy": None, "samples": [], "refill_limit": 10},
}
NO_CORRECTION = {"rollout_is": None, "rollout_is_threshold": 2.0, "rollout_rs": None, "rollout_rs_threshold": None}


class Engines:
    """All that the loop asks of its engines, on made-up trajectories: policy, call, observation, answer."""

    dp, n_gpus, tokenizer = 1, 1, None

    def __init__(self, *, critic=False, reference=False):
        self.has_critic, self.has_reference, self.rollouts = critic, reference, self
        self.calls, self.flying, self.version, self.failing = [], [], 0, None

    def __getattr__(self, name):  # a pass over a batch, of which the test sees the order
        passes = {"log_probs": ("old_log_probs", "entropy"), "reference_log_probs": ("ref_log_prob",)}
        passes |= {"values": ("values",), "update": (), "update_critic": (), "pause": (), "end_rollouts": ()}
        if name not in passes:
            raise AttributeError(name)

        def call(batch=None, *_):
            self.calls.append(name)
            if name == self.failing:
                raise MaskAuditError("an interpreter token receives a gradient", "1", 4, "in the loss")
            for column in passes[name]:
                batch[column] = torch.full((int(batch.lengths.sum()),), -1.0)
            if batch is not None:
                self.batch = batch
            return {f"{name}/calls": 1.0, "actor/grad_norm": 0.5} if name.startswith("update") else None

        return call

    def push(self, step, verify):
        self.calls.append(f"push {step}")
        self.version = step
        return {"push/verified": float(verify)}

    def save(self, checkpoint, step):
        self.calls.append(f"save {step}")
        (checkpoint / "actor" / "model" / "huggingface").mkdir(parents=True)

    def gpu_samples(self):
        return []

    def ask(self, group, *, n, sampling, keep):
        group.samples = [self.sample(group, number) for number in range(n)]
        self.flying.append(group)

    def ended(self, wait_s):
        ended = [] if wait_s == 0 else self.flying[:1]
        self.flying = self.flying[len(ended) :]
        return ended

    def sample(self, group, number):
        acc = float(number % 2)
        spans = [("policy", 0, 2), ("observation", 2, 4 + number), ("policy", 4 + number, 6 + number)]
        spans = [dict(zip(("kind", "start", "end"), span, strict=True)) for span in spans]
        mask = np.ones(6 + number)
        mask[2 : 4 + number] = 0
        call = {"turn": 0, "start": 1, "status": "success", "malformed": False, "truncated": False, "tool": "code"}
        call |= {"code": "1", "stdout": "1", "stderr": "", "value": None, "duration_s": 0.1, "arguments": None}
        turn = {"programs": 1, "boxed": True, "fakes": [], "generate_s": 0.1, "tool_s": 0.1}
        version = {"version": self.version, "start": 0, "end": 6 + number}
        notes = {"spans": spans, "calls": [call], "turns": 2, "finish": "answer", "generate_s": 0.2, "tool_s": 0.1}
        notes |= {"started": 1.0, "turn_notes": [turn, turn], "versions": [version], "taken_over": False}
        outcome = {"score": acc, "acc": acc, "pred": "4", "overlong": 0.0, "drop": "", "graded_by": "text"}
        return Sample(
            group.uid, number, [1, 2], np.arange(6 + number), mask, -mask, notes, "answer", 4,
            (self.version, self.version), outcome=outcome,
        )  # fmt: skip


class Log:
    def __init__(self):
        self.logger, self.steps = {}, {}

    def log(self, data, step):
        self.steps[step] = data


def settings(**values):
    base = {"batch": 2, "mini_batch": 1, "n": 2, "steps": 3, "seed": 1, "recipe": RECIPE, "correction": NO_CORRECTION}
    return Settings(**(base | {"save_every": 1} | values))


def made_rows(count: int) -> list[dict]:
    """Rows of a data set, each problem once."""
    return [
        {"data_source": "made", "prompt": [], "reward_model": {"ground_truth": "4"}, "extra_info": {"index": n}}
        for n in range(count)
    ]


def retool_section(folder: Path, **values):
    """The section of verl's configuration that `Run` reads, for a stage in `folder`."""
    base = {
        "stage_dir": str(folder),
        "trajectories": str(folder / "trajectories"),
        "keep_trajectory_bytes": None,
        "texts": {"every": None, "count": 0},
        "rotation": {"keep_last": 9, "keep_best": None, "best_is": "highest"},
        "save_minutes": None,
        "alarms": alarms.IGNORED,
    }
    return OmegaConf.create(base | values)


def attempt(
    folder: Path,
    patch,
    cfg: Settings,
    engines,
    *,
    rows: int = 5,
    log=None,
    identity=None,
    flush=None,
    traces=None,
    **retool,
):
    """One attempt at RL in `folder`, as `main` makes it: behind the last checkpoint, to its end; (its run, its log).

    identity: makes the chain of policies of the step that the attempt begins behind. flush: in the place of the wait
    for the trajectories. traces: as `Run` takes it.
    """
    patch.setattr(prompt_stream, "rows_of", lambda files: made_rows(rows))
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    last = checkpoints.repair(folder / "checkpoints")
    start = checkpoints.step_of(last) if last else 0
    prompts = Prompts("rows", 1, Curriculum())
    asked = prompts.load(last, alarms.left_out(folder, start)) if last else []
    log = log or Log()
    run = Run(cfg, retool_section(folder, **retool), log, start, identity and identity(start), traces)
    if flush:
        run.saves.flush = flush
    problems = None
    if cfg.validate_every > 0 or cfg.validate_first:
        problems = Validation(Prompts("rows", 1, Curriculum()), Prompts("rows", 1, Curriculum()))
    try:
        rl.train(cfg, engines, run, prompts, asked, problems)
    finally:
        run.close()
    return run, log
