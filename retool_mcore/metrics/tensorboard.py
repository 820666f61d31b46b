"""Writing TensorBoard event files without torch, for evaluation.

Training itself logs through verl's tracking; both end up below the same folder.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto


def write_scalars(folder: Path | str, step: int, scalars: Mapping[str, float]) -> None:
    """Add one point to each tag's curve. Every call makes an event file of its own in `folder`."""
    _write(folder, step, [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in scalars.items()])


def write_histograms(folder: Path | str, step: int, samples: Mapping[str, Sequence[float]], bins: int = 30) -> None:
    """Add one histogram with `bins` equal buckets to each tag. Raises ValueError for an empty or non-finite sample."""
    _write(folder, step, [Summary.Value(tag=tag, histo=_histogram(tag, x, bins)) for tag, x in samples.items()])


def write_texts(folder: Path | str, step: int, texts: Mapping[str, str]) -> None:
    """Add one text (Markdown) to each tag, e.g. a sample trajectory."""
    values = []
    for tag, text in texts.items():
        metadata = create_summary_metadata(display_name=tag, description="")
        tensor = make_tensor_proto([text.encode()], dtype="string")
        values.append(Summary.Value(tag=tag, metadata=metadata, tensor=tensor))
    _write(folder, step, values)


def _write(folder: Path | str, step: int, values: list[Summary.Value]) -> None:
    writer = EventFileWriter(str(folder))
    try:
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
    finally:
        writer.close()


def _histogram(tag: str, samples: Sequence[float], bins: int) -> HistogramProto:
    data = np.asarray(samples, dtype=np.float64).ravel()
    if data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"histogram {tag}: needs at least one value and only finite ones")
    counts, edges = np.histogram(data, bins=bins)
    return HistogramProto(
        min=data.min(),
        max=data.max(),
        num=data.size,
        sum=data.sum(),
        sum_squares=np.square(data).sum(),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )
