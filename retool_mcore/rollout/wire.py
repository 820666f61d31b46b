"""A trajectory's record as one string, on its way from its episode to the judge.

16,000 tokens as JSON numbers are 500 kB and long to parse; as base64 of their bytes they are 175 kB and a copy. The
response mask stays behind: it is what the spans say.
"""

import base64
import json

import numpy as np

_ARRAYS = {"prompt_ids": np.dtype("<i4"), "response_ids": np.dtype("<i4"), "logprobs": np.dtype("<f4")}


def to_wire(record: dict) -> str:
    """`Trajectory.to_record()` as ASCII text."""
    arrays = {name: np.asarray(record[name], dtype) for name, dtype in _ARRAYS.items()}
    texts = {k: base64.b64encode(v.astype(v.dtype.newbyteorder("<"))).decode() for k, v in arrays.items()}
    rest = {name: value for name, value in record.items() if name != "response_mask"}
    return json.dumps(rest | texts)


def from_wire(text: str) -> dict:
    """The record that `pack` got, without response_mask; token ids are (tokens,) int32, logprobs (tokens,) float32.

    The arrays are read-only; logprobs is empty when the engine returned none.
    """
    record = json.loads(text)
    for name, dtype in _ARRAYS.items():
        record[name] = np.frombuffer(base64.b64decode(record[name]), dtype)
    return record
