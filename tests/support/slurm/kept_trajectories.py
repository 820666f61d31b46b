"""The finished trajectories of a run under faults, step by step: kept aside, since the run removes its own files."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def keep(folder: Path, stage_dir: Path) -> None:
    """Give each file of finished trajectories a second name below FOLDER/kept."""
    for path in stage_dir.glob("unfinished/step_*/*"):
        place = folder / "kept" / path.parent.name / path.name
        with suppress(OSError):  # it is there, or gone meanwhile
            place.mkdir(parents=True, exist_ok=True)
            os.link(path, place / path.name)


def files(folder: Path) -> Mapping[str, list[tuple[Path, list[str]]]]:
    """By step, the places of the kept files and the keys in them."""
    from retool_mcore.rollout.unfinished import Unfinished

    found: dict[str, list[tuple[Path, list[str]]]] = {}
    for place in sorted(folder.glob("kept/step_*/*")):
        step = str(int(place.parent.name[5:11]))
        found.setdefault(step, []).append((place, list(Unfinished(place).found)))
    return found


def finished(folder: Path, step: int) -> int:
    """The number of trajectories of the step that some start has finished."""
    return len({key for _, keys in files(folder).get(str(step), []) for key in keys})


def trained_on_others(folder: Path, trajectories: Path) -> list[str]:
    """Finished trajectories that are not, token for token, what their step was trained on (by its records in
    `trajectories`)."""
    from retool_mcore.metrics.records import read_step
    from retool_mcore.rollout.samples import Sample
    from retool_mcore.rollout.unfinished import Unfinished

    others = []
    for step, of_step in files(folder).items():
        path = trajectories / f"step_{int(step):06d}.parquet"
        records = read_step(path) if path.exists() else []
        trained = {f"{record['uid']}/{record['sample']}": list(record["response_ids"]) for record in records}
        for place, keys in of_step:
            for key in keys:
                record = Unfinished(place).take(key)
                tokens = Sample.of_kept("", 0, record).response_ids.tolist() if record else None
                if trained.get(key.rpartition("/")[0]) != tokens:
                    others.append(f"step {step}: {key}")
    return others
