"""retool prepare: the run's data as parquet and, for the embedded task, the tiny model. Runs in the command itself."""

from pathlib import Path

from retool_mcore.data.arithmetic import task
from retool_mcore.data.function_tasks import rows, traces, write_rows
from retool_mcore.data.held_back import SPLIT, hold_back
from retool_mcore.data.prepare import prepare_rl, prepare_sft, write_problems, write_traces
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.environments import prepare as repositories


def run(config) -> None:
    """Make what `config.data` names and `config.model` needs; print what was read, kept and refused."""
    if config.model.make:
        print(f"model: {make_tiny_model(Path(config.model.path), config.seed)}")
    if config.data.name == "arithmetic":
        make_arithmetic(config)
    elif config.data.name == "functions":
        make_functions(config)
    elif config.data.name == "repo_bugs":
        repositories.make(config)
    else:
        read_sources(config)


def make_arithmetic(config) -> None:
    data = config.data
    made = task(seed=config.seed, **data.arithmetic)
    sft_validation = data.arithmetic.validation
    write_traces(made.sft[sft_validation:], Path(data.sft_train_files), template=data.prompt, split="train")
    write_traces(made.sft[:sft_validation], Path(data.sft_validation_files), template=data.prompt, split="validation")
    write_problems(made.train, Path(data.train_files), template=data.prompt, split="train")
    write_problems(made.validation, Path(data.validation_files), template=data.prompt, split="validation")
    write_problems(made.held_back, Path(data.held_back_files), template=data.prompt, split=SPLIT)
    traces = f"{len(made.sft) - sft_validation} + {sft_validation} traces"
    problems = f"{len(made.train)} + {len(made.validation)} problems"
    print(f"arithmetic: {traces}, {problems} (train + validation) in {Path(data.train_files).parent}")
    print(f"held back: {len(made.held_back)} more problems in {data.held_back_files}")


def make_functions(config) -> None:
    """Rows in xLAM's columns as a file, read back by xLAM's loader; the cold start's traces are of further rows."""
    data, size, folder = config.data, config.data.functions, Path(config.run_dir) / "data"
    begin, end = size.validation + size.train, size.validation + size.train + size.sft
    made = rows(end + size.held_back, config.seed)
    parts = {"functions_test": made[: size.validation], "functions": made[size.validation : begin]}
    parts["functions_held_back"] = made[end:]
    for name, part in parts.items():
        location = write_rows(part, folder / f"{name}.jsonl")
        report = prepare_rl("xlam", folder / name, location=location, template=data.prompt, seed=config.seed)
        print("\n".join(report.lines()))
    shown = traces(made[begin:end], config.seed, size.style, size.right_share)
    held_out = max(1, size.sft // 20)
    write_traces(shown[held_out:], Path(data.sft_train_files), template=data.prompt, split="train")
    write_traces(shown[:held_out], Path(data.sft_validation_files), template=data.prompt, split="validation")
    print(f"functions: {len(shown) - held_out} + {held_out} traces (train + validation) in {folder}")


def read_sources(config) -> None:
    data, folder = config.data, Path(config.run_dir) / "data"
    common = {"template": data.prompt, "seed": config.seed}
    files: dict[str, list[Path]] = {"rl": [], "sft": [], "eval": []}
    for name, source in data.sources.items():
        if source is None:  # left out: data.sources.NAME=null
            continue
        if source.role == "sft":
            share = data.sft_validation_share
            report = prepare_sft(name, folder / name, location=source.location, validation_fraction=share, **common)
        else:
            report = prepare_rl(name, folder / name, location=source.location, **common)
        files[source.role] += report.files
        print("\n".join(report.lines()))
    if files["rl"] and data.held_back:
        others = files["sft"] + files["eval"]
        print(hold_back(files["rl"], others, Path(data.held_back_files), count=data.held_back, seed=config.seed))
