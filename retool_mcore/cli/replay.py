"""`retool replay`: a recorded step again, through the trainer alone or through the rollout engine alone.

Results are in RUN/replay/step_NNNNNN/{trainer,rollout}/; the run itself is not changed. No torch here.
"""

import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Column, Table

from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.metrics.records import read_step, step_files
from retool_mcore.metrics.rollout_diff import RESULT
from retool_mcore.runner.launch import run_attempt, stage_dir
from retool_mcore.state import checkpoints
from retool_mcore.state.progress import read_steps
from retool_mcore.tools.toolbox import CODE

# Metrics of a replayed step that are printed next to the recorded ones; metrics.json has all.
SHOWN = (
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "actor/entropy",
    "actor/lr",
    "critic/score/mean",
    "critic/advantages/max",
    "mismatch/mean",
    "mismatch/max",
    "mismatch/kl",
    "audit/policy_tokens",
    "audit/gradient_tokens",
    "response_length/mean",
    "timing_s/old_log_prob",
    "timing_s/update_actor",
)
CLOCKS = ("timing", "perf/", "sandbox/")  # of the machine, not of the computation
SAME = 1e-4  # relative; two runs of one step on the same machine, threads and reduction order included


def run(
    run_dir: Path, step: int, *, rollout: bool, policy_step: int | None, overrides: Sequence[str], dry_run: bool
) -> None:
    """Replay `step` of the run and print what came out. Raises UserError for a step or policy that is not there."""
    stage = f"replay/step_{step:06d}/{'rollout' if rollout else 'trainer'}"
    config = replay_config(run_dir.resolve(), step, policy_step, overrides)
    if rollout:
        refuse_tools(config)
    module = "replay_rollout" if rollout else "replay_step"
    if dry_run:
        print(OmegaConf.to_yaml(config) + f"# command: python -m retool_mcore.train.{module} RUN/{stage}/config.yaml")
        return
    from retool_mcore.preflight.run import check

    check("rl", config)
    folder = stage_dir(stage, config)
    folder.mkdir(parents=True, exist_ok=True)
    if (memory := run_dir / "rl" / "fewest_calls.jsonl").is_file():
        shutil.copy(memory, folder)  # rewritten by whoever reads it
    run_attempt(stage, config, lambda path: [sys.executable, "-m", f"retool_mcore.train.{module}", str(path)])
    recorded = read_steps(run_dir / "rl").get(step, {})
    report_rollout(folder, recorded) if rollout else report_trainer(folder, step, recorded)


def replay_config(run_dir: Path, step: int, policy_step: int | None, overrides: Sequence[str] = ()) -> DictConfig:
    """The run's own RL configuration, moved to the run's folder, with `replay` and `policy_path`."""
    path = run_dir / "rl" / "config.yaml"
    files = step_files(run_dir / "rl" / "trajectories")
    if not path.is_file() or not files:
        raise UserError(f"{run_dir} holds no trajectories: give the folder of a run whose RL has ended a step.")
    if step not in files:
        have = ", ".join(map(str, files)) if len(files) <= 8 else f"{min(files)} to {max(files)}"
        raise UserError(f"{run_dir} has no trajectories of step {step}: it has {have}.")
    text = path.read_text()
    # A run that was moved or copied since.
    config = OmegaConf.create(text.replace(OmegaConf.create(text).run_dir, str(run_dir)))
    before = step - 1 if policy_step is None else policy_step
    checkpoint = find_checkpoint(run_dir, step, before)
    groups = {record["uid"] for record in read_step(files[step], columns=["uid"])}
    with open_dict(config):
        config.replay = {
            "step": step,
            "records": str(files[step]),
            "groups": len(groups),
            "checkpoint": str(checkpoint) if checkpoint else None,
        }
        config.policy_path = str(checkpoints.policy_folder(checkpoint)) if checkpoint else config.init_from
        config.temperature, config.top_p = config.rollout.temperature, config.rollout.top_p
    return override(config, overrides)


def refuse_tools(config: DictConfig) -> None:
    """A trajectory's record holds no row of the data, and other tools than the interpreter may need theirs."""
    others = [entry.path for entry in OmegaConf.select(config, "toolbox.use") or [] if entry.path != CODE]
    if others:
        raise UserError(
            f"--rollout repeats calls of the code interpreter alone, and this run has {others[0]}: replay the step "
            "without --rollout."
        )


def find_checkpoint(run_dir: Path, step: int, before: int) -> Path | None:
    """The whole checkpoint of step `before`; None for 0, the policy that RL began with."""
    whole = {checkpoints.step_of(path): path for path in checkpoints.complete(run_dir / "rl" / "checkpoints")}
    if before == 0 or before in whole:
        return whole.get(before)
    have = ", ".join(map(str, [0, *whole]))
    raise UserError(
        f"step {step} began with the policy of step {before}, whose checkpoint is not there: there are those of steps "
        f"{have}. Replay the step after one of them, or give one with --policy-step: times are comparable then, values "
        "are not."
    )


def override(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """KEY=VALUE on the recorded configuration. Raises UserError for a key that it lacks."""
    for text in overrides:
        key, mark, _ = text.partition("=")
        try:
            known = mark and OmegaConf.select(config, key, throw_on_missing=False, default=...) is not ...
            if not known:
                raise UserError(f"{text}: expected KEY=VALUE with a key of the run's rl/config.yaml.")
            config.merge_with_dotlist([text])
        except OmegaConfBaseException as error:
            raise UserError(f"{text}: {str(error).splitlines()[0]}.") from None
    return config


def report_trainer(folder: Path, step: int, recorded: dict[str, float]) -> None:
    """Print and write (metrics.json) the metrics of the replayed step next to the recorded ones."""
    replayed = read_steps(folder).get(step, {})
    content = {"step": step, "recorded": recorded, "replayed": replayed}
    write_atomically(folder / "metrics.json", json.dumps(content, indent=2))
    numbers = (Column(name, justify="right") for name in ("recorded", "replayed", "difference"))
    table = Table("metric", *numbers, title=f"step {step} through the trainer alone")
    for name in SHOWN:
        if name in recorded and name in replayed:
            old, new = recorded[name], replayed[name]
            table.add_row(name, f"{old:.6g}", f"{new:.6g}", f"{new - old:+.1e}")
    Console().print(table)
    both = [name for name in recorded if name in replayed and not name.startswith(CLOCKS)]
    other = [name for name in both if not math.isclose(recorded[name], replayed[name], rel_tol=SAME, abs_tol=1e-6)]
    same = f"{len(both) - len(other)} of {len(both)}"
    print(f"{same} metrics that measure no time equal the recorded ones within {SAME:g}")
    if other:
        print("  others: " + ", ".join(other[:12]) + (", ..." if len(other) > 12 else ""))
    print(f"all of them: {folder / 'metrics.json'}")


def report_rollout(folder: Path, recorded: dict[str, float]) -> None:
    """Print the rollout's result, its speed next to the recorded step's."""
    result = json.loads((folder / RESULT).read_text())
    same, count = result["same"], result["trajectories"]
    print(f"{same} of {count} trajectories came out token for token as recorded; ", end="")
    print(f"{100 * result['same_prefix']:.1f} % of the tokens before the first other one")
    print(f"{result['policy_tokens_per_second']:.0f} sampled tokens a second, {result['seconds']:.1f} s; ", end="")
    print(f"tools: {result['calls']} calls, {result['tool_s']:.3f} s a trajectory")
    if "timing_s/gen" in recorded:
        print(f"recorded: {recorded['timing_s/gen']:.1f} s with rewards, {recorded['timing_s/tools']:.3f} s of tools")
