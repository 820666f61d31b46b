"""retool prepare: the run's data as parquet and, for the embedded task, the tiny model. Runs in the command itself."""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf

from retool_mcore.config.schema import own_files
from retool_mcore.data import function_tasks, toolmath
from retool_mcore.data.arithmetic import task
from retool_mcore.data.function_calls import own_call_problems, own_call_traces
from retool_mcore.data.held_back import SPLIT, hold_back, weigh
from retool_mcore.data.prepare import prepare_rl, prepare_sft, write_problems, write_traces
from retool_mcore.data.prompts import get_template
from retool_mcore.data.sources import Source, check_location, files_of, get_source, own_problem
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.data.traces import own_trace
from retool_mcore.environments import prepare as repositories
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically


def run(config) -> None:
    """Make what `config.data` names and `config.model` needs; print what was read, kept and refused."""
    if config.model.make:
        print(f"model: {make_tiny_model(Path(config.model.path), config.seed)}")
    made = {"arithmetic": make_arithmetic, "functions": make_functions, "toolmath": make_toolmath}
    made |= {"calls": make_calls, "repo_bugs": repositories.make}
    before = _digests(config)  # a file that changes while it is read differs at the next start
    if make := made.get(config.data.name):
        make(config)
    else:
        read_sources(config, parts_of(config))
    _inputs_file(config).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(_inputs_file(config), json.dumps(before, indent=1) + "\n")


def changed_input(config) -> str | None:
    """The first file that `retool prepare` read and that now has other contents, or is gone; None: all are as they
    were, or nobody knows."""
    try:
        before = json.loads(_inputs_file(config).read_text())
    except (OSError, ValueError):
        return None
    try:
        now = _digests(config)
    except (OSError, UserError) as error:
        return str(error).rstrip(".")
    return next((f"{path} changed" for path in {**before, **now} if before.get(path) != now.get(path)), None)


def _inputs_file(config) -> Path:
    return Path(config.run_dir) / "prepare" / "inputs.json"


def _digests(config) -> dict[str, str]:
    """sha256 by path of the local files that are read; of a data set on the hub nothing is known."""
    prompt = Path(str(config.data.prompt)).expanduser()
    files = [prompt] if prompt.suffix == ".txt" and prompt.is_file() else []
    for part in listed_parts(config.data):
        source = get_source(part.source) if isinstance(part.source, str) else part.source
        files += files_of(str(part.location or source.hub_name)) or []
    found = {}
    for file in files:
        with file.open("rb") as stream:
            found[str(file.absolute())] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


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
    """What is read into one folder of RUN/data."""

    role: str  # rl | sft | eval
    source: str | Source
    location: str | None
    folder: str
    weight: float = 1.0


def own_parts(section) -> list[Part]:
    """Of `data.file`, the user's own."""
    parts = []
    for key in ("train", "eval", "sft"):
        for file in own_files(key, OmegaConf.to_container(section)[key]):
            named = {name: getattr(file, name) or section[name] for name in ("question", "answer", "messages", "tools")}
            of_trace = {name: named[name] for name in ("messages", "tools") if named[name]}
            of_problem = named if named["tools"] else {name: named[name] for name in ("question", "answer")}
            parse: Callable = partial(own_call_problems if named["tools"] else own_problem, **of_problem)
            # Of rows that call, one file has other columns than the next: what lacks is said of the row.
            columns = None if named["tools"] else tuple(of_problem.values())
            source = Source(
                file.name, file.path, "rl", "test" if key == "eval" else "train", columns, parse,
                subset=file.subset, hub_split=file.split, named_by=file.source or section.get("source"),
            )  # fmt: skip
            if key == "sft":
                parse = partial(own_call_traces if named["tools"] else own_trace, **of_trace)
                columns = tuple(of_trace.values())
                source = replace(source, purpose="sft", columns=columns, parse=parse, named_by=file.source)
            role = "rl" if key == "train" else key
            parts.append(Part(role, source, file.path, f"{key}/{file.name}", file.weight))
    if not parts:
        raise UserError(
            "data=file names no data: give data.file.train=FILE (problems for RL), data.file.eval=FILE (problems for "
            "the evaluation) or data.file.sft=FILE (traces)."
        )
    return parts


def listed_parts(data) -> list[Part]:
    """All parts that the section names; [] of a data set that is generated."""
    if "file" in data:
        return own_parts(data.file)
    named = data.get("sources", {}).items()  # one that is null is left out
    return [Part(s.role, name, s.location, name) for name, s in named if s is not None]


def parts_of(config, roles: Collection[str] = ("rl", "sft", "eval")) -> list[Part]:
    """What `retool prepare` reads for these roles, once all of it is there: raises UserError before a row is read or
    downloaded."""
    parts = [part for part in listed_parts(config.data) if part.role in roles]
    get_template(config.data.prompt)
    for part in sorted(parts, key=lambda part: part.location is None):  # what is here before the hub is asked
        check_location(get_source(part.source) if isinstance(part.source, str) else part.source, part.location)
    return parts


def evaluation_parts(config) -> list[Part]:
    """What an evaluation reads for itself (`prepare: true`); [] of a data set that is generated. Raises UserError."""
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
    for part in parts:
        out, share = folder / part.folder, data.sft_validation_share
        if part.role == "sft":
            given = {"location": part.location, "template": data.prompt}
            report = prepare_sft(part.source, out, **given, validation_fraction=share, seed=seed)
        else:
            report = prepare_rl(part.source, out, location=part.location, template=data.prompt)
        files[part.role] += report.files
        print("\n".join(report.lines()))
    if files["rl"] and not files["eval"] and data.get("test_share"):
        test, share = Path(data.validation_files[0]), data.test_share
        print(hold_back(files["rl"], files["sft"], test, count=share, seed=seed, key="data.test_share"))
        files["eval"] = [test]
    if files["rl"] and data.held_back:
        others = files["sft"] + files["eval"]
        print(hold_back(files["rl"], others, Path(data.held_back_files), count=data.held_back, seed=seed))
    for part in parts:
        if part.role == "rl" and part.weight != 1:
            path = folder / part.folder / "train.parquet"
            print(f"weight {part.weight:g}: {weigh(path, part.weight, seed)} rows in {path}")
