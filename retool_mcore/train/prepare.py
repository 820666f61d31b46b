"""retool prepare: the run's data as parquet and, for the embedded task, the tiny model. Runs in the command itself."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from omegaconf import OmegaConf

from retool_mcore.config.models.own_files import own_files
from retool_mcore.data import function_tasks, human_eval, reasoning_gym, toolmath
from retool_mcore.data.arithmetic import task
from retool_mcore.data.bfcl import ANSWERS
from retool_mcore.data.bfcl import NAME as LEADERBOARD
from retool_mcore.data.function_calls import own_call_problems, own_call_traces
from retool_mcore.data.held_back import SPLIT, hold_back, weigh
from retool_mcore.data.prepare import prepare_rl, prepare_sft, write_problems, write_traces
from retool_mcore.data.prompts import get_template
from retool_mcore.data.sources import Source, check_location, files_of, get_source, of_leaderboard, own_problem
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.data.traces import own_trace
from retool_mcore.environments import prepare as environments
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.rewards.registry import needs_answer
from retool_mcore.rewards.truths import report_two_forms


def run(config) -> None:
    """Make what `config.data` names and `config.model` needs; print what was read, kept and refused."""
    if config.model.make:
        print(f"model: {make_tiny_model(Path(config.model.path), config.seed)}")
    made = {"arithmetic": make_arithmetic, "functions": make_functions, "toolmath": make_toolmath}
    made |= {"calls": make_calls, "repo_bugs": environments.make, "environment": environments.make_episodes}
    made |= {reasoning_gym.NAME: make_reasoning_gym, human_eval.NAME: make_human_eval}
    if make := made.get(config.data.name):
        read = {GENERATED: _digests(prompt_files(config))}
        make(config)
        _record(config, read)
    else:
        read_sources(config, parts_of(config))


# In RUN/data: by a part's folder, or GENERATED, the sha256 by path of the files of this machine that it was read from.
# Of a data set on the hub nothing is known.
INPUTS, GENERATED = "inputs.json", "generated"


def changed_input(config) -> str | None:
    """The first file that `retool prepare` read and that now has other contents, or is gone; None: all are as they
    were, or nobody knows."""
    before = _recorded(config)
    try:
        now = {part.folder: _digests(inputs_of(part, config)) for part in listed_parts(config.data)}
        now = now or {GENERATED: _digests(prompt_files(config))}
    except (OSError, UserError) as error:
        return str(error).rstrip(".") if before else None
    for folder, files in now.items():
        for path in {**before.get(folder, {}), **files} if folder in before else ():
            if before[folder].get(path) != files.get(path):
                return f"{path} changed"
    return None


def check_prepared(config) -> None:
    """Refuse to evaluate problems that `retool prepare` read from a file which has changed since, under the same name.
    Raises UserError. Files that are gone, or were prepared by an older version, are not looked at."""
    before, data = _recorded(config), config.data
    named = "file" not in data or any(data.file[role] is not None for role in ("train", "eval", "sft"))
    parts = listed_parts(data) if before and named else []
    role = "eval" if any(part.role == "eval" for part in parts) else "rl"  # a share of it is taken
    for part in parts:
        if part.role != role:
            continue
        known = {Path(path): digest for path, digest in before.get(part.folder, {}).items()}
        for path, digest in known.items():
            if path in inputs_of(part, config) and _digests([path])[str(path)] != digest:
                again = "run `retool prepare` again, or add prepare=true"
                raise UserError(f"{path} has changed since `retool prepare` read it: {again}.")


def inputs_of(part: "Part", config) -> list[Path]:
    """The files of this machine that a part is read from, those of the prompt and of the leaderboard's answers
    included."""
    source = get_source(part.source) if isinstance(part.source, str) else part.source
    try:
        files = files_of(str(part.location or source.hub_name)) or []
    except UserError:  # gone
        files = []
    answers = [place for file in files if (place := file.parent / ANSWERS / file.name).is_file()]
    return [file.absolute() for file in [*prompt_files(config), *files, *answers]]


def prompt_files(config) -> list[Path]:
    prompt = Path(str(config.data.prompt)).expanduser()
    return [prompt.absolute()] if prompt.suffix == ".txt" and prompt.is_file() else []


def _digests(files: Iterable[Path]) -> dict[str, str]:
    digests = {}
    for file in files:
        with file.open("rb") as stream:
            digests[str(file)] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def _recorded(config) -> dict[str, dict[str, str]]:
    path = Path(config.run_dir) / "data" / INPUTS
    return json.loads(path.read_text()) if path.is_file() else {}


def _record(config, read: dict[str, dict[str, str]]) -> None:
    """`read`: digests that were taken before the files were read, so that one that changes meanwhile differs later."""
    path = Path(config.run_dir) / "data" / INPUTS
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(_recorded(config) | read, indent=1) + "\n")


def make_arithmetic(config) -> None:
    data = config.data
    made = task(seed=config.seed, **data.arithmetic)
    traces = _write_traces(data, made.sft, data.arithmetic.validation)
    files = {"train": data.train_files, "validation": data.validation_files, SPLIT: data.held_back_files}
    for split, path in files.items():
        write_problems(getattr(made, split), Path(path), template=data.prompt, split=split)
    problems = f"{len(made.train)} + {len(made.validation)} problems"
    print(f"arithmetic: {traces}, {problems} (train + validation) in {Path(data.train_files).parent}")
    print(f"held back: {len(made.held_back)} more problems in {data.held_back_files}")


def make_toolmath(config) -> None:
    """The sets of a seed, and what shows of each family that neither solution is given away."""
    size, seed = config.data.toolmath, config.seed
    train = _write_sets(
        config.data, size, lambda n, split: toolmath.items(n, seed, split, size.mix), toolmath.problem,
        lambda shown: toolmath.traces(shown, seed, size.code_share, size.failed_share),
    )  # fmt: skip
    for family in sorted({item.family for item in train}):
        part = [item for item in train if item.family == family]
        scratchpad, program = (
            sum(len(getattr(i, name)) for i in part) / len(part) for name in ("scratchpad", "program")
        )
        pasted = sum(map(toolmath.pasted_solves, part)) / len(part)
        lengths = f"scratchpad {scratchpad:.0f}, program {program:.0f} characters"
        print(f"  {family}: {lengths}; pasted, {pasted:.0%} are solved")


def make_calls(config) -> None:
    """The sets of a seed, each with functions of its own, and how many requests are in the words of their calls."""
    size, seed = config.data.calls, config.seed
    train = _write_sets(
        config.data, size, lambda n, split: function_tasks.call_rows(n, seed, split, size.mix, size.near),
        function_tasks.call_problem,
        lambda shown: function_tasks.traces(shown, seed, size.style, size.right_share, "calls"),
    )  # fmt: skip
    literal = sum(map(function_tasks.is_literal, train)) / len(train)
    print(f"  {literal:.0%} ask for names and values as they are called with")


def make_reasoning_gym(config) -> None:
    """The sets of a seed, of all families that the section names."""
    data = config.data
    section = OmegaConf.to_container(data.reasoning_gym, resolve=True)
    named = reasoning_gym.sources(section.pop("families"))
    made = reasoning_gym.draw(named, section, config.seed)
    for split, path in dict(train=data.train_files, held_back=data.held_back_files, test=data.validation_files).items():
        write_problems(made.splits[split], Path(path), template=data.prompt, split=split)
    counts = ", ".join(f"{len(part)} {split}" for split, part in made.splits.items())
    print(f"reasoning_gym: {counts} problems of {len(named)} data sources in {Path(data.train_files).parent}")
    for source in named:
        own = [problem for part in made.splits.values() for problem in part if problem.data_source == source.name]
        lines = [f"{len(own)} problems"]
        if unanswered := sum(not problem.answer for problem in own):
            lines.append(f"{unanswered} have no answer of their own, many are right")
        if left_out := made.unfair.get(source.name):
            lines.append(f"{left_out} more were left out: their family does not accept its own answer")
        print(f"  {source.name}: {'; '.join(lines)}")


def make_human_eval(config) -> None:
    path = Path(config.data.validation_files)
    made = human_eval.problems()
    write_problems(made, path, template=config.data.prompt, split="test")
    print(f"human_eval: {len(made)} problems in {path}")


def make_functions(config) -> None:
    """Rows in xLAM's columns as a file, read back by xLAM's loader; the cold start's traces are of further rows."""
    data, size, folder = config.data, config.data.functions, Path(config.run_dir) / "data"
    begin, end = size.validation + size.train, size.validation + size.train + size.sft
    made = function_tasks.rows(end + size.held_back, config.seed)
    parts = {"functions_test": made[: size.validation], "functions": made[size.validation : begin]}
    parts["functions_held_back"] = made[end:]
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        location = folder / f"{name}.jsonl"
        write_atomically(location, "".join(json.dumps(row) + "\n" for row in part))
        report = prepare_rl("xlam", folder / name, location=location, template=data.prompt)
        print("\n".join(report.lines()))
    traces = function_tasks.traces(made[begin:end], config.seed, size.style, size.right_share)
    print(f"functions: {_write_traces(data, traces)} (train + validation) in {folder}")


def _write_sets(data, size, draw: Callable, problem: Callable, traces: Callable) -> list:
    """Problems of three splits and traces of further ones of training; returns all that was drawn for training."""
    made = {split: draw(size[split], split) for split in ("held_back", "test")}
    train = draw(size.train + size.sft, "train")
    made["train"] = train[: size.train]
    for split, path in dict(train=data.train_files, held_back=data.held_back_files, test=data.validation_files).items():
        problems = [problem(drawn, index) for index, drawn in enumerate(made[split])]
        write_problems(problems, Path(path), template=data.prompt, split=split)
    counts = ", ".join(f"{len(part)} {split}" for split, part in made.items())
    shown = _write_traces(data, traces(train[size.train :]))
    print(f"{data.name}: {counts} problems, {shown} in {Path(data.train_files).parent}")
    return train


def _write_traces(data, traces: list, held_out: int | None = None) -> str:
    """The first held_out are for validation (None: a twentieth); returns how many there are of both."""
    held_out = max(1, len(traces) // 20) if held_out is None else held_out
    write_traces(traces[held_out:], Path(data.sft_train_files), template=data.prompt, split="train")
    write_traces(traces[:held_out], Path(data.sft_validation_files), template=data.prompt, split="validation")
    return f"{len(traces) - held_out} + {held_out} traces"


class Part(NamedTuple):
    """A part of the data, which is read into one folder of RUN/data."""

    role: str  # rl | sft | eval
    source: str | Source
    location: str | None
    folder: str
    weight: float = 1.0


def own_parts(section, answers: bool = True) -> list[Part]:
    """Return the parts of `data.file`, the user's own. answers: whether every problem needs one."""
    parts = []
    for key in ("train", "eval", "sft"):
        for file in own_files(key, OmegaConf.to_container(section)[key]):
            if of_leaderboard(file.path):
                parts.append(_leaderboard_part(key, file, section))
                continue
            named = {name: getattr(file, name) or section[name] for name in ("question", "answer", "messages", "tools")}
            of_trace = {name: named[name] for name in ("messages", "tools") if named[name]}
            of_problem = named if named["tools"] else {name: named[name] for name in ("question", "answer")}
            own: Callable = own_call_problems if named["tools"] else partial(own_problem, needed=answers)
            parse: Callable = partial(own, **of_problem)
            # Files of rows that call differ in their columns: a missing column is reported for the row.
            columns = None if named["tools"] else tuple(filter(None, of_problem.values()))
            source = Source(
                file.name, file.path, "rl", "test" if key == "eval" else "train", columns, parse,
                subset=file.subset, hub_split=file.split, named_by=file.source or section.get("source"),
                keep=tuple(section.get("keep") or [] if file.keep is None else file.keep),
                optional=() if answers else (named["answer"],),
            )  # fmt: skip
            source = replace(source, loose=bool(named["tools"]) and section.get("texts") == "loose")
            if key == "sft":
                parse = partial(own_call_traces if named["tools"] else own_trace, **of_trace)
                columns = tuple(of_trace.values())
                source = replace(
                    source, purpose="sft", columns=columns, parse=parse, named_by=file.source, keep=(), optional=()
                )
            role = "rl" if key == "train" else key
            parts.append(Part(role, source, file.path, f"{key}/{file.name}", file.weight))
    if not parts:
        raise UserError(
            "data=file names no data: give data.file.train=FILE (problems for RL), data.file.eval=FILE (problems for "
            "the evaluation) or data.file.sft=FILE (traces)."
        )
    return parts


def _leaderboard_part(key: str, file, section) -> Part:
    """The Berkeley leaderboard's own files, whose columns are known."""
    if key == "sft":
        raise UserError(f"data.file.sft={file.path} holds the Berkeley leaderboard's questions: it has no traces.")
    split: Literal["train", "test"] = "test" if key == "eval" else "train"
    source = replace(get_source(LEADERBOARD), split=split, loose=section.get("texts") == "loose")
    return Part("rl" if key == "train" else key, source, file.path, f"{key}/{file.name}", file.weight)


def listed_parts(data, answers: bool = True) -> list[Part]:
    """All parts that the section names; [] of a data set that is generated. answers: as in `own_parts`."""
    if "file" in data:
        return own_parts(data.file, answers)
    named = data.get("sources", {}).items()  # one that is null is left out
    return [Part(s.role, _named_source(name, s), s.location, name) for name, s in named if s is not None]


def _named_source(name: str, section) -> str | Source:
    """The source of that name; what is trained on is a training set, also where the source is made for evaluations."""
    source = get_source(name)
    if section.role == "rl" and source.split == "test":
        source = replace(source, split="train")
    if section.get("texts") == "loose":
        source = replace(source, loose=True)
    return name if source == get_source(name) else source


def parts_of(config, roles: Collection[str] = ("rl", "sft", "eval")) -> list[Part]:
    """Return what `retool prepare` reads for these roles, once all of it exists: raises UserError before a row is read
    or downloaded."""
    answers = needs_answer(config.recipe.reward.name)
    parts = [part for part in listed_parts(config.data, answers) if part.role in roles]
    get_template(config.data.prompt)
    for part in sorted(parts, key=lambda part: part.location is None):  # what is here before the hub is asked
        check_location(get_source(part.source) if isinstance(part.source, str) else part.source, part.location)
    return parts


def evaluation_parts(config) -> list[Part]:
    """Return what an evaluation reads for itself (`prepare: true`); [] of a data set that is generated. Raises
    UserError."""
    parts = parts_of(config, ("eval",))
    if not parts and ("file" in config.data or "sources" in config.data):
        raise UserError(
            f"data={config.data.name} names no problems to evaluate on: give data.file.eval=FILE with data=file."
        )
    return parts


def read_evaluation(config) -> None:
    """Make the files that `retool eval` reads, and no others where the data set's are read from sources."""
    if parts := evaluation_parts(config):
        read_sources(config, parts)
    else:
        run(config)


def read_sources(config, parts: list[Part]) -> None:
    data, folder, seed = config.data, Path(config.run_dir) / "data", config.seed
    files: dict[str, list[Path]] = {"rl": [], "sft": [], "eval": []}
    read = {part.folder: _digests(inputs_of(part, config)) for part in parts}
    for part in parts:
        out, share = folder / part.folder, data.sft_validation_share
        if part.role == "sft":
            common = {"location": part.location, "template": data.prompt}
            report = prepare_sft(part.source, out, **common, validation_fraction=share, seed=seed)
        else:
            report = prepare_rl(part.source, out, location=part.location, template=data.prompt)
        files[part.role] += report.files
        print("\n".join(report.lines() + (report_two_forms(report.files) if part.role != "sft" else [])))
    if files["rl"] and not files["eval"] and data.get("test_share"):
        test, share = Path(data.validation_files[0]), data.test_share
        print(hold_back(files["rl"], files["sft"], test, count=share, seed=seed, key="data.test_share"))
        files["eval"] = [test]
    if files["rl"] and data.held_back:
        others = files["sft"] + files["eval"]
        print(hold_back(files["rl"], others, Path(data.held_back_files), count=data.held_back, seed=seed))
    _record(config, read)
    for part in parts:
        if part.role == "rl" and part.weight != 1:
            path = folder / part.folder / "train.parquet"
            print(f"weight {part.weight:g}: {weigh(path, part.weight, seed)} rows in {path}")
