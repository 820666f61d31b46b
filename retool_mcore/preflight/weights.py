"""Are the weight files of a Hugging Face folder whole, and do they hold the model that config.json describes?

Only the headers are read: a safetensors file begins with the length of a JSON object (8 bytes, little-endian) and that
object, {name: {dtype, shape, data_offsets}}, and its size follows from them. A folder of 32B takes milliseconds.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retool_mcore.errors import UserError
from retool_mcore.planner.shape import FAMILIES, Shape, read_json

LFS = b"version https://git-lfs"
LONGEST_HEADER = 100_000_000  # bytes; the safetensors library reads no longer one
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2}
SIZES |= {"U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
TRAINED = ("F64", "F32", "F16", "BF16")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
AGAIN = "its weights are incomplete, copy or export the model again"
CHUNK = 1 << 24  # bytes that are compared at once


@dataclass(frozen=True)
class Tensor:
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # offset of its first byte in the file
    bytes: int


def check_weights(folder: Path, config: Mapping[str, Any]) -> int:
    """The parameters of the model in `folder`, whose files are whole and hold what `config` (config.json) describes.

    Raises UserError that names the first file or tensor that is missing, cut off or of another shape. Of a family that
    the planner does not know, and of quantised weights, only the files are checked.
    """
    tensors = read_tensors(folder)
    tied = bool(config.get("tie_word_embeddings", False))
    if config.get("model_type") in FAMILIES and not config.get("quantization_config"):
        check_tensors(folder, tensors, Shape.from_hf(folder))
        if tied and HEAD in tensors and not equal(tensors[HEAD], tensors[EMBEDDING]):
            raise UserError(
                f"{folder}/config.json ties the output layer to the embedding, and the weight files hold {HEAD} with "
                f"other values than {EMBEDDING}: set tie_word_embeddings to false, or remove that tensor."
            )
    counted = tensors.keys() - ({HEAD} if tied else set())
    return sum(math.prod(tensors[name].shape) for name in counted)


def check_tensors(folder: Path, tensors: Mapping[str, Tensor], shape: Shape) -> None:
    expected = dict(expected_tensors(shape))
    if missing := [name for name in expected if name not in tensors]:
        raise UserError(
            f"the weight files in {folder} hold {len(expected) - len(missing)} of the {len(expected)} tensors that "
            f"config.json describes, without {missing[0]}: {AGAIN}."
        )
    for name, wanted in expected.items():
        tensor = tensors[name]
        if tensor.shape != wanted:
            raise UserError(
                f"{tensor.file}: {name} has the shape {list(tensor.shape)}, and config.json describes {list(wanted)}: "
                "config and weights belong to different models, copy the model again."
            )
        if tensor.dtype not in TRAINED:
            raise UserError(
                f"{tensor.file}: {name} is stored as {tensor.dtype}, which cannot be trained: give the model's folder "
                "in bfloat16, float16 or float32."
            )

    # Tables of the rotary embedding, which older checkpoints hold, are computed.
    more = [name for name in tensors if name.startswith("model.") and name not in expected and "rotary_emb" not in name]
    if more:
        raise UserError(
            f"{tensors[more[0]].file} holds {more[0]}, which is no part of the model that config.json describes "
            f"({len(more)} such tensors): config and weights belong to different models, or bridge and engine would "
            "leave it out; copy the model again."
        )


def expected_tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor of a Hugging Face checkpoint of the families in planner/shape.py."""
    hidden, queries, keys = shape.hidden, shape.q_width, shape.kv_width
    yield EMBEDDING, (shape.vocab, hidden)
    for layer in range(shape.layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for part, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{attention}.{part}_proj.weight", (rows, hidden)
            if shape.qkv_bias:
                yield f"{attention}.{part}_proj.bias", (rows,)
        yield f"{attention}.o_proj.weight", (hidden, queries)
        if shape.qk_norm:
            yield from ((f"{attention}.{part}_norm.weight", (shape.head_dim,)) for part in "qk")
        if shape.experts:
            yield f"{mlp}.gate.weight", (shape.experts, hidden)
        for expert in [f"{mlp}.experts.{number}" for number in range(shape.experts)] or [mlp]:
            yield from ((f"{expert}.{part}_proj.weight", (shape.ffn, hidden)) for part in ("gate", "up"))
            yield f"{expert}.down_proj.weight", (hidden, shape.ffn)
        for norm in ("input", "post_attention"):
            yield f"model.layers.{layer}.{norm}_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not shape.tied:
        yield HEAD, (shape.vocab, hidden)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder by name, from the files' headers. Raises UserError for a file that is not whole."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return read_header(file_of(folder, "model.safetensors"))
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise UserError(f"{index} has no weight_map of tensor names to file names: copy the model again.")
    if not listed:
        raise UserError(f"{index} names no weight file: copy the model again.")
    held = {name: read_header(file_of(folder, name)) for name in sorted({*listed.values()})}
    for tensor, name in listed.items():
        if tensor not in held[name]:
            raise UserError(f"{index} lists {tensor} in {name}, which does not hold it: {AGAIN}.")
    return {tensor: held[name][tensor] for tensor, name in listed.items()}


def file_of(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file() and any(folder.glob("*.bin")):
        raise UserError(
            f"{folder} has no {name}, only weights of PyTorch (*.bin), expected safetensors: convert them once with "
            f"transformers, AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)."
        )
    if not (path.is_file() and path.stat().st_size):
        raise UserError(
            f"{path} is empty (0 bytes): {AGAIN}." if path.is_file() else f"{folder} has no {name}: {AGAIN}."
        )
    return path


def read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file. Raises UserError when the file is none, or not whole."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        start = opened.read(max(len(LFS), 8))
        if start.startswith(LFS):
            raise UserError(
                f"{file} is a git-lfs pointer of {size} bytes, not the weights: run `git lfs install` and `git lfs "
                "pull` in its repository, or download the model again."
            )
        length = int.from_bytes(start[:8], "little")
        if size < 8 or length > LONGEST_HEADER:
            raise UserError(f"{file} ({size} bytes) does not begin as a safetensors file does: copy the model again.")
        if 8 + length > size:
            raise UserError(f"{file} ends after {size} bytes, within its header of {length}: {AGAIN}.")
        opened.seek(8)
        text = opened.read(length)
    try:
        header = json.loads(text)
        tensors = {
            name: Tensor(file, entry["dtype"], tuple(entry["shape"]), 8 + length + begin, end - begin)
            for name, entry in header.items()
            if name != "__metadata__"
            for begin, end in [entry["data_offsets"]]
        }
        wrong = [name for name, one in tensors.items() if one.bytes != math.prod(one.shape) * SIZES.get(one.dtype, -1)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{file} has an unreadable safetensors header ({error}): copy the model again.") from error
    known = [name for name in wrong if tensors[name].dtype in SIZES]  # a newer type is no fault of the file
    if known:
        one = tensors[known[0]]
        raise UserError(
            f"{file}: {known[0]} takes {one.bytes} bytes, and {one.dtype} of shape {list(one.shape)} needs "
            f"{math.prod(one.shape) * SIZES[one.dtype]}: copy the model again."
        )
    end = max((one.start + one.bytes for one in tensors.values()), default=8 + length)
    if end > size:
        raise UserError(f"{file} ends after {size} bytes of the {end} that its header lists: {AGAIN}.")
    return tensors


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same bytes."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with open(one.file, "rb") as first, open(other.file, "rb") as second:
        first.seek(one.start)
        second.seek(other.start)
        for start in range(0, one.bytes, CHUNK):
            step = min(CHUNK, one.bytes - start)
            if first.read(step) != second.read(step):
                return False
    return True
