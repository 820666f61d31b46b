"""Alarms: figures of a step that are out of their bounds, and the answer that the configuration gives to each.

What fires is decided from a step's metrics and those of the steps before it (`CHECKS`), which a new attempt reads from
the stage's metrics files: it judges as the attempt before it did. The workers skip an update whose gradient is broken
(backends/megatron/guarded_update.py); the rest is done by the loop (train/rl.py) and the launcher,
which share two files:

    RUN/rl/alarms.jsonl   one line an alarm
    RUN/rl/back.json      how often the run went back, and which prompts it leaves out since

Imported by the launcher: no torch here.
"""

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from retool_mcore.files import read_json_lines, write_atomically
from retool_mcore.state.progress import read_steps

BEFORE = ("entropy", "mismatch")  # known before the update
AFTER = ("nan", "gradient_norm", *BEFORE)  # before the step is saved
ROLES = ("actor", "critic")
EXIT_CODE = 76  # of a trainer that an alarm ended; RUN/rl/ALARM says how
RESEED = 1_000_003  # far from the seeds that people choose
LEAST = 8  # norms that make a median


class Fired(NamedTuple):
    value: float
    bound: float
    what: str


class Ended(Exception):
    """Raised in a trainer whose run goes back or stops; the message says why, `answer` which."""

    def __init__(self, answer: str, message: str) -> None:
        super().__init__(message)
        self.answer = answer


def norm_ratio(norm: float, recent: Sequence[float]) -> float:
    """`norm` over the median of the `recent` ones, which a spike among them does not move; 0 while they are few."""
    return norm / max(statistics.median(recent), 1e-30) if len(recent) >= LEAST else 0.0


def held_back(data: Mapping[str, float]) -> float | None:
    """The accuracy on held-back problems, where the step was validated: val/accuracy, else the mean of verl's."""
    accuracies = [v for k, v in data.items() if k.startswith("val-core/") and "/acc/mean@" in k]
    return data.get("val/accuracy", statistics.fmean(accuracies) if accuracies else None)


def nan(settings, data, history) -> Fired | None:
    broken = {role: data[f"{role}/broken_updates"] for role in ROLES if data.get(f"{role}/broken_updates")}
    if not broken:
        return None
    what = " and ".join(f"{count} of the {role}'s updates" for role, count in broken.items())
    return Fired(max(broken.values()), 0.0, f"{what} had no finite gradient")


def gradient_norm(settings, data, history) -> Fired | None:
    ratio = max(data.get(f"{role}/norm_ratio_max", 0.0) for role in ROLES)
    what = f"a gradient norm is {ratio:.3g} times the median of the {settings['window']} before it"
    return Fired(ratio, settings["factor"], what) if ratio > settings["factor"] else None


def entropy(settings, data, history) -> Fired | None:
    start = next((past["actor/entropy"] for past in history.values() if "actor/entropy" in past), None)
    value = data.get("actor/entropy")
    if start is None or value is None or not value < settings["share"] * start:
        return None
    return Fired(value, settings["share"] * start, f"the policy's entropy fell from {start:.3g} to {value:.3g}")


def mismatch(settings, data, history) -> Fired | None:
    value = data.get("mismatch/kl")
    if value is None or value <= settings["bound"]:
        return None
    return Fired(value, settings["bound"], f"the KL from the rollout engine's policy to the trainer's is {value:.3g}")


def reward(settings, data, history) -> Fired | None:
    """The reward rose between two validations by more than its noise, and the accuracy on held-back problems did not.

    The noise is the standard error of the difference of two means: the rewards of the first and the second half of the
    steps from the validation `validations` ago to this one.
    """
    steps = list(history.values()) + [data]
    places = [place for place, past in enumerate(steps) if held_back(past) is not None]
    if held_back(data) is None or len(places) <= settings["validations"]:
        return None
    first = places[-1 - settings["validations"]]
    rewards = [past["critic/score/mean"] for past in steps[first:] if "critic/score/mean" in past]
    halves = rewards[: len(rewards) // 2], rewards[(len(rewards) + 1) // 2 :]
    gained = held_back(data) - held_back(steps[first])
    if min(map(len, halves)) < 2 or gained > 0:
        return None
    rise = statistics.fmean(halves[1]) - statistics.fmean(halves[0])
    noise = math.sqrt(sum(statistics.variance(half) / len(half) for half in halves))
    if rise <= settings["sigmas"] * noise:
        return None
    what = f"the reward rose by {rise:.3g}, the held-back accuracy by {gained:.3g}"
    return Fired(rise, settings["sigmas"] * noise, what)


CHECKS = {check.__name__: check for check in (nan, gradient_norm, entropy, mismatch, reward)}
IGNORED = {"backs": 0, **{name: {"answer": "ignore"} for name in CHECKS}}
KEPT = ("actor/entropy", "critic/score/mean", "val/accuracy", *(f"alarm/{name}" for name in CHECKS))


def engine_switches(settings: Mapping) -> dict[str, bool | float]:
    """Return the settings that backends/megatron/guarded_update.py needs, for override_mcore_model_config."""
    spikes, watched = settings["gradient_norm"], [settings[name]["answer"] != "ignore" for name in AFTER[:2]]
    return {
        "watch_updates": any(watched),
        # Weights that are NaN answer to nothing: all but `tell` keep the update from them.
        "skip_broken": settings["nan"]["answer"] not in ("ignore", "tell"),
        "skip_spikes": spikes["answer"] == "skip",
        "spike_factor": float(spikes.get("factor", math.inf)),
        "spike_window": int(spikes.get("window", LEAST)),
    }


class Alarms:
    """`settings`: the section `alarms`; `stage_dir`: of RL; `step`: the one that training goes on after; `updates` of
    the policy in a step. `leads_back`: a row of alarms is under way at whose end the run may go back."""

    leads_back = False

    def __init__(self, settings: Mapping, stage_dir: Path, step: int = 0, updates: int = 1) -> None:
        self.settings, self.stage_dir, self.updates = settings, stage_dir, updates
        self.history = {number: data for number, data in read_steps(stage_dir).items() if number <= step}

    def skips(self, metrics: Mapping) -> bool:
        """Whether the update is to be left out, by what is known before it."""
        asking = [name for name in BEFORE if self.settings[name]["answer"] == "skip"]
        return any(CHECKS[name](self.settings[name], metrics, self.history) for name in asking)

    def judge(self, step: int, metrics: dict, names: Sequence[str] = AFTER) -> Ended | None:
        """Tell what fires of `names`, in the log, in alarms.jsonl and as metrics alarm/NAME; what to raise, if any."""
        ending: Ended | None = None
        if names is AFTER:
            self.leads_back = False
            for key in metrics.keys() & {f"{role}/{kind}_updates" for role in ROLES for kind in ("broken", "skipped")}:
                metrics[key] = round(metrics[key] * self.updates)  # verl's mean over them
        for name in names:
            settings = self.settings[name]
            if settings["answer"] == "ignore":
                continue
            fired = CHECKS[name](settings, metrics, self.history)
            metrics[f"alarm/{name}"] = float(fired is not None)
            if fired is None:
                continue
            row = 1 + self._row(name)
            answer = settings["then" if row >= settings["in_a_row"] else "answer"]
            self.leads_back |= "back" in (settings["answer"], settings["then"])
            known = backs(self.stage_dir)
            message = f"alarm: {name} at step {step}, {row} in a row: {fired.what} (bound {fired.bound:.3g}); {answer}"
            if answer == "back" and len(known) >= self.settings["backs"]:
                answer = "stop"
                message += f", but the run went back {len(known)} times already (alarms.backs), so it stops"
            print(message, flush=True)
            entry = {"step": step, "alarm": name, "value": fired.value, "bound": fired.bound, "answer": answer}
            with (self.stage_dir / "alarms.jsonl").open("a") as file:
                file.write(json.dumps(entry | {"time": time.time()}) + "\n")
            if answer in ("back", "stop") and (ending is None or answer == "stop"):
                ending = Ended(answer, message)
        return ending

    def end_step(self, step: int, metrics: Mapping) -> None:
        """Remember the step."""
        self.history[step] = {k: v for k, v in metrics.items() if k in KEPT or k.startswith("val-core/")}

    def _row(self, name: str) -> int:
        """Return in how many of the last steps it fired, one after the other."""
        fired = (data.get(f"alarm/{name}") for data in reversed(self.history.values()))
        return len(list(takewhile(bool, fired)))


def backs(stage_dir: Path) -> list[dict]:
    """Every time the run went back: {"step" of the alarm, "from": the checkpoint's step, "skip": prompts, "said"}."""
    path = stage_dir / "back.json"
    return json.loads(path.read_text()) if path.is_file() else []


def go_back(stage_dir: Path, step: int, start: int, fetched: int, message: str) -> None:
    """Write down that the run goes back to the checkpoint of `start`, after which it took `fetched` prompts."""
    entry = {"step": step, "from": start, "skip": fetched, "said": message}
    write_atomically(stage_dir / "back.json", json.dumps([*backs(stage_dir), entry], indent=1) + "\n")


def left_out(stage_dir: Path, start: int) -> int:
    """Prompts that a trainer which goes on from the checkpoint of `start` leaves out: those that led to an alarm."""
    return sum(entry["skip"] for entry in backs(stage_dir) if entry["from"] == start)


def request_seed(stage_dir: Path, seed: int) -> int:
    """The seed of the rollouts' requests: another one after every time that the run went back."""
    return seed + RESEED * len(backs(stage_dir))


def honour(stage_dir: Path, ended: Ended) -> None:
    """Say that the trainer ended by an alarm, for the launcher."""
    (stage_dir / "ALARM").write_text(json.dumps({"answer": ended.answer, "said": str(ended)}))


def ended(stage_dir: Path) -> Ended | None:
    """How an alarm ended the trainer, None when none did."""
    path = stage_dir / "ALARM"
    if not path.is_file():
        return None
    entry = json.loads(path.read_text())
    return Ended(entry["answer"], entry["said"])


def count(stage_dir: Path) -> str:
    """The stage's alarms in words, "" when there were none."""
    path = stage_dir / "alarms.jsonl"
    names = [entry["alarm"] for entry in read_json_lines(path)]
    if not names:
        return ""
    each = ", ".join(f"{name} {names.count(name)}" for name in CHECKS if name in names)
    return f"{len(names)} alarm{'s' * (len(names) != 1)} ({each}): {path}"
