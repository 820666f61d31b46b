"""The inputs of an evaluation's samples, and which samples its folder may hold. No torch here.

Files of RUN/eval/LABEL:
    evaluation.json       what the samples are made from (`samples`), how they are graded, and where their policy lay
    trajectories.jsonl    the samples, one a line
    metrics.json          the figures, once all samples are there
    earlier/DIGEST/       the same three of another evaluation under this label, which is taken up again when asked for
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from retool_mcore.data.schema import check_rl, rows_of
from retool_mcore.files import write_atomically
from retool_mcore.rewards.registry import ALIASES
from retool_mcore.rewards.scoring import right_from
from retool_mcore.rollout.episode import LIMITS
from retool_mcore.state.identity import digest, policy_files, stamps

TRAJECTORIES, METRICS, MADE_FROM, EARLIER = "trajectories.jsonl", "metrics.json", "evaluation.json", "earlier"
# Of the sandbox's section what places and paces programs on machines; the rest shapes what a program answers.
_PLACEMENT = ("workers", "concurrency", "patience_s", "hosts", "hosts_from", "url", "min_isolation")
_ROLLOUT = ("format", "chat_template", "max_prompt_tokens", *LIMITS)
_SETTINGS = ("seed", "temperature", "top_p", "model.dtype", "model.apply_chat_template_kwargs")
_PLAIN = "retool"  # the reward that says no more than the verdict on the answer
_LONG = 60  # characters of a value that a message shows


@dataclass(frozen=True)
class Evaluation:
    """An evaluation as it is asked for.

    samples: what decides about each sample, by the keys that a user knows; a sample also has a seed of its own, by
    problem and number (rollout/seeds.py), so those of fewer problems or a smaller k are among those of more.
    grading: what decides about the grade of a sample. folder: the policy's.
    """

    samples: dict[str, Any]
    grading: str
    problems: int
    k: int
    folder: str

    @property
    def mark(self) -> str:
        """Return the content of COMPLETE."""
        return digest(self.samples, self.grading, self.problems, self.k)

    def wants(self, record: Mapping) -> bool:
        return record["index"] < self.problems and record["sample"] < self.k


def asked_for(config: DictConfig) -> Evaluation:
    """The evaluation that a configuration asks for; `policy_path` is a folder. Raises UserError for missing data."""
    files = config.data.validation_files
    for file in [files] if isinstance(files, str) else files:
        check_rl(file)
    rows = rows_of(files)
    samples: dict[str, Any] = {"policy": policy_files(Path(config.policy_path)), "data.validation_files": digest(rows)}
    samples |= {key: _plain(OmegaConf.select(config, key)) for key in _SETTINGS}
    samples |= {f"rollout.{name}": _plain(config.rollout.get(name)) for name in _ROLLOUT}
    samples |= {f"sandbox.{name}": _plain(value) for name, value in config.sandbox.items() if name not in _PLACEMENT}
    samples |= {f"toolbox.{name}": _plain(value) for name, value in config.toolbox.items()}
    named = sorted({Path(text) for text in _texts(samples["toolbox.use"]) if os.path.isfile(text)})
    samples["files that toolbox.use names"] = stamps(named)
    samples = json.loads(json.dumps(samples))  # as it is read back
    problems = min(len(rows), config.problems or len(rows))
    return Evaluation(samples, grading(config), problems, config.k, config.policy_path)


def rule(config: DictConfig) -> dict[str, Any]:
    """Return what scores a sample, as the section `recipe` has it (rewards/scoring.py)."""
    recipe = OmegaConf.to_container(config.recipe)
    kept = {name: recipe[name] for name in ("reward", "right_from") if name in recipe}
    return kept | {"answer": config.answer, "decimals": config.decimals}


def grading(config: DictConfig) -> str:
    """Return the rule of a sample's grade in words, which each record keeps as `graded_as`.

    A reward of the user's own is named with its module's content: edited, it grades again.
    """
    by, reward = rule(config), config.recipe.reward
    words = [config.answer, config.decimals]
    if reward.name != _PLAIN or reward.args:
        arguments = ", ".join(f"{name}={value}" for name, value in sorted(_plain(reward.args).items()))
        words.append(f"reward {reward.name}({arguments}){_version(reward.name)}")
    if (least := right_from(by)) is not None:
        words.append(f"right from {least:g}")
    return ", ".join(words)


def _version(reward: str) -> str:
    """Return "@" and a digest of the module that defines a reward of the user's own; "" for one of this package."""
    module = ALIASES.get(reward, reward).rpartition(".")[0]
    if module.partition(".")[0] == __name__.partition(".")[0]:
        return ""
    with suppress(ImportError, ValueError, OSError):
        spec = find_spec(module)
        if spec is not None and spec.origin is not None:
            return "@" + hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:8]
    return ""


def is_complete(asked: Evaluation, folder: Path) -> bool:
    """Whether the folder holds this evaluation, carried to its end."""
    mark, metrics = folder / "COMPLETE", folder / METRICS
    return metrics.is_file() and mark.is_file() and mark.read_text().strip() == asked.mark


def begin(asked: Evaluation, folder: Path) -> list[str]:
    """Leave in the folder those samples that this evaluation would draw, and no others; returns lines to print.

    Samples of another evaluation, and those beyond its problems and k, move to `earlier`; samples of this one that
    were moved there come back. Files are moved whole where they can be: with long responses they are of gigabytes.
    """
    old, path, lines = _read(folder / MADE_FROM), folder / TRAJECTORIES, []
    here = {"samples": asked.samples, "grading": asked.grading, "problems": asked.problems, "k": asked.k}
    made_from = json.dumps(here | {"policy": asked.folder}, indent=2)
    if (count := _count(path)) and old.get("samples") != asked.samples:
        kept = folder / EARLIER / digest(old.get("samples"))[:12]
        lines.append(f"sampled anew, because the {count} samples in {folder} are of another evaluation:")
        lines += [f"  {line}" for line in differences(old, asked)]
        lines.append(f"  they are kept in {kept}")
        kept.mkdir(parents=True, exist_ok=True)
        if (folder / METRICS).is_file():  # first: figures without their samples would be taken for the new ones
            os.replace(folder / METRICS, kept / METRICS)
        _move(path, kept / TRAJECTORIES)
        if (folder / MADE_FROM).is_file():
            os.replace(folder / MADE_FROM, kept / MADE_FROM)
        old = {}
    write_atomically(folder / MADE_FROM, made_from)
    kept = folder / EARLIER / digest(asked.samples)[:12]
    if came_back := (kept / TRAJECTORIES).is_file():
        _move(kept / TRAJECTORIES, path)
        shutil.rmtree(kept)
    if came_back or old.get("problems", 0) > asked.problems or old.get("k", 0) > asked.k:
        records = {(record["index"], record["sample"]): record for record in read_finished(path)}
        wanted = [record for record in records.values() if asked.wants(record)]
        if len(wanted) < len(records):
            write_finished(kept / TRAJECTORIES, list(records.values()))
            write_atomically(kept / MADE_FROM, made_from)
        write_finished(path, wanted)
    if count := _count(path):
        lines.append(f"goes on with {count} of {asked.problems * asked.k} samples")
        if old.get("grading", asked.grading) != asked.grading:
            lines.append(f"grades them again: the rule was {old['grading']}, and is {asked.grading}")
    return lines


def differences(old: Mapping, asked: Evaluation) -> list[str]:
    """Return the inputs of the samples of `old` (the content of evaluation.json) that differ now, one a line."""
    before = old.get("samples")
    if not before:
        return ["what made them was not recorded"]
    lines = []
    for key in sorted({*before, *asked.samples}):
        was, now = before.get(key), asked.samples.get(key)
        if was == now:
            continue
        if key == "policy":
            before_it = old.get("policy")
            moved = before_it != asked.folder
            lines.append(f"policy: {before_it}, now {asked.folder}" if moved else f"policy: {asked.folder} changed")
        elif key == "data.validation_files":
            lines.append(f"{key}: the problems changed")
        else:
            short = max(len(str(was)), len(str(now))) <= _LONG and "\n" not in f"{was}{now}"
            lines.append(f"{key}: {was}, now {now}" if short else f"{key}: the content changed")
    return lines


def read_finished(path: Path) -> list[dict]:
    """Records of an evaluation that was stopped; a last line that was cut by the stop is dropped from the file."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
        write_atomically(path, b"".join(lines).decode())
    return [json.loads(line) for line in lines]


def write_finished(path: Path, records: list[dict]) -> None:
    """Write the records in place of the file's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in records))


def _move(source: Path, target: Path) -> None:
    """Move the lines of `source` to the end of `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.replace(source, target)
        return
    write_finished(target, [*read_finished(target), *read_finished(source)])
    source.unlink()


def _count(path: Path) -> int:
    """Whole lines of the file; 0 where there is none."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(line.endswith(b"\n") for line in file)


def _read(path: Path) -> dict:
    """The content of evaluation.json; {} where there is none, or it is not whole."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else {}
    return {}


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)
