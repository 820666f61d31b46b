"""A fingerprint of a tensor's bits that can be summed over its slices: how the weight push is verified.

    h(T) = sum over i, j of bits(T[i, j]) * r(i) * c(j)   modulo 2**64

with bits an element's bit pattern as an integer and r, c odd 64-bit weights from the splitmix64 generator (Steele,
Lea & Flood 2014, "Fast splittable pseudorandom number generators"), by the element's place in the WHOLE tensor. Slices
by rows or columns therefore add up to the whole, in any order, whatever fuses them. One element that differs always
changes the sum (an odd weight has an inverse), and so does any other difference but for about one in 2**60.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch

_CHUNK = 1 << 24  # elements as int64 at once: 128 MiB, and as much for the product
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_COLUMNS_APART = 1 << 40  # columns draw from another part of the stream than rows
FP8, SCALES = "_fp8", "_scale_inv"  # name endings of a matrix in float8_e4m3fn, and of its scales as vLLM names them
FP8_BLOCK = 128  # rows, and columns, that share a scale
STOPS = "The weight push stops the run"  # how every sentence on a push that failed begins
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Block(NamedTuple):
    """The position of a slice in the whole tensor, and its share of the fingerprint (int64, modulo 2**64)."""

    row: int
    column: int
    rows: int
    columns: int
    value: int


class Whole(NamedTuple):
    """A tensor's elements and fingerprint."""

    elements: int
    value: int


def fingerprint(block: torch.Tensor, row: int = 0, column: int = 0) -> torch.Tensor:
    """The share, () int64 on the block's device, of a slice that begins at `row` and `column` of the whole tensor.

    A vector is one column; of more than two dimensions the last ones are columns.
    """
    block = block.detach()
    block = block.reshape(len(block), -1) if block.dim() > 1 else block.reshape(-1, 1)
    bits = block.contiguous().view(_BITS[block.element_size()])
    rows, columns = bits.shape
    row_weights = _weights(row, rows, block.device)
    column_weights = _weights(_COLUMNS_APART + column, columns, block.device)
    total = torch.zeros((), dtype=torch.int64, device=block.device)
    step = max(_CHUNK // max(columns, 1), 1)
    for start in range(0, rows, step):
        part = bits[start : start + step].long().mul_(column_weights).sum(1)
        total += part.mul_(row_weights[start : start + step]).sum()
    return total


def whole(blocks_of_ranks: Iterable[Mapping[str, Iterable[Block]]]) -> tuple[dict[str, Whole], list[str]]:
    """Return (tensors put together from all ranks' blocks, names of tensors whose copies differ between ranks)."""
    collected: dict[str, dict[tuple, int]] = {}
    differing = []
    for blocks in blocks_of_ranks:
        for name, pieces in blocks.items():
            for *place, value in map(tuple, pieces):
                if collected.setdefault(name, {}).setdefault(tuple(place), value) != value and name not in differing:
                    differing.append(name)
    half = 1 << 63  # of int64's range, to which the sum is brought back
    return {
        name: Whole(sum(rows * cols for _, _, rows, cols in pieces), (sum(pieces.values()) + half) % (2 * half) - half)
        for name, pieces in collected.items()
    }, differing


def difference(exported: Mapping[str, Whole], held: Mapping[str, Whole], differing: Iterable[str] = ()) -> str | None:
    """The first thing in which the engine's tensors are not the exported ones, in words; None when they are equal."""
    # A matrix that was exported both as it is and in FP8 is compared as the engine holds it.
    in_fp8 = {name.removesuffix(FP8) for name in held if name.endswith(FP8)}
    plain = {name: name.removesuffix(FP8).removesuffix(SCALES) for name in exported}
    exported = {name: value for name, value in exported.items() if (plain[name] in in_fp8) == (plain[name] != name)}
    for name in differing:
        return f"two of the engine's ranks hold different copies of {name}"
    for name, (elements, value) in exported.items():
        if name not in held:
            return f"the engine holds no tensor {name}, which the trainer exported"
        if held[name].elements != elements:
            return f"the engine holds {held[name].elements} elements of {name}, the trainer exported {elements}"
        if held[name].value != value:
            return f"{name} in the engine is not what the trainer exported ({elements} elements)"
    for name in held:
        if name not in exported:
            return f"the engine holds a tensor {name}, which the trainer did not export"
    return None


def tied_difference(
    exported: Mapping[str, Whole], held: Mapping[str, Whole], differing: Iterable[str] = ()
) -> str | None:
    """Like `difference`, for a model whose output layer is its embedding (tie_word_embeddings).

    A trainer may export the output layer too, and an engine may hold it under its own name, as a view of the embedding
    or as a tensor of its own. Each of them must be the exported embedding.
    """
    forms = ("", FP8, SCALES)
    heads, embeddings = ({form: exported.get(name + form) for form in forms} for name in (HEAD, EMBEDDING))
    if heads[""] is not None and heads != embeddings:
        return f"the trainer exported other values for {HEAD} than for {EMBEDDING}, and this model ties the two"
    expected = {name: value for name, value in exported.items() if not name.startswith(HEAD)}
    if any(name.startswith(HEAD) for name in held):
        expected |= {HEAD + form: value for form, value in embeddings.items() if value is not None}
    return difference(expected, held, differing)


@functools.lru_cache(maxsize=64)
def _weights(start: int, count: int, device: torch.device) -> torch.Tensor:
    """Odd numbers `start` to `start + count` of splitmix64's stream, (count,) int64."""
    with np.errstate(over="ignore"):
        x = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(x.view(np.int64)).to(device)
