"""A micro-batch's sequences into Megatron's packed buffer and out of it, each way by one index and without waiting.

verl 0.9.1 copies ids, labels, temperatures, log-probabilities and the loss's rows sequence by sequence, and before each
it waits for the GPU, to which it then gives no work: 130 times for ten sequences (docs/measured/rollout.md). But all
lengths are known before a micro-batch leaves the host. So every token's place is worked out there.

Adapted places: the four names below, verl release 0.9.1, for as long as an engine works on a micro-batch. Not with
context parallelism, which splits the sequences: backends/megatron/engine.py leaves that to verl.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import verl.utils.torch_functional
from megatron.core.packed_seq_params import PackedSeqParams
from tensordict import TensorDict
from verl.models.mcore import model_forward
from verl.utils import tensordict_utils
from verl.workers.utils import losses

from retool_mcore.backends.library_patch import LibraryPatch
from retool_mcore.backends.megatron.token_positions import token_positions

PACK = LibraryPatch(model_forward, "preprocess_thd_engine")
UNPACK = LibraryPatch(model_forward, "postprocess_thd_engine")
EXPAND = LibraryPatch(verl.utils.torch_functional, "expand_as_nested")
PAD = LibraryPatch(losses, "no_padding_2_padding")


class _Buffer(NamedTuple):
    params: PackedSeqParams
    tokens: int  # padding included
    place: torch.Tensor  # (tokens of all sequences,) int64: of each in the buffer
    position: torch.Tensor  # (tokens of the buffer,) int64: in its sequence; 0 where there is padding


class PackedLayout:
    """Positions of one micro-batch's tokens. The methods take and return what verl's functions of these places do."""

    def __init__(self, batch: TensorDict, device: torch.device):
        """`batch`: on the host (else this waits), with nested (sequences, tokens) `input_ids`; for the loss also
        `prompts` and `responses`. `device`: where the model is."""
        self.batch, self.ids, self.device = batch, batch["input_ids"], device
        self.lengths = self.ids.offsets().diff().cpu()
        self.tokens = int(self.lengths.sum())
        self.parts = None
        if all(name in batch and batch[name].is_nested for name in ("prompts", "responses")):
            self.parts = tuple(batch[name].offsets().diff().cpu() for name in ("prompts", "responses"))
        self.buffers: dict[tuple, _Buffer] = {}
        self.slots: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Inside, verl's code moves this micro-batch's rows by our indices."""
        with PACK.applied(self.pack), UNPACK.applied(self.unpack), EXPAND.applied(self.expand), PAD.applied(self.pad):
            yield

    def using(self, function: Callable) -> Callable:
        """`function`, called inside `used`."""
        return self.used()(function)

    def pack(self, input_ids, pre_process=True, need_roll=False, **options):
        """Nested (sequences, tokens, ...) to (1, tokens of the buffer, ...), Megatron's params, and positions."""
        buffer = self._buffer(options)
        if not pre_process:
            return input_ids, buffer.params, None
        values = self._values(input_ids)
        packed = values.new_zeros(buffer.tokens, *values.shape[1:]).index_copy_(0, buffer.place, values)
        position = buffer.position
        if need_roll:
            packed, position = packed.roll(-1, 0), position.roll(-1, 0)
        return packed.unsqueeze(0), buffer.params, position.unsqueeze(0)

    def unpack(self, output, packed_seq_params, input_ids, batch_size, post_process=True, **options):
        """(1, tokens of the buffer, ...) to nested (sequences, tokens, ...), differentiable."""
        if not post_process:
            return output
        buffer = next(buffer for buffer in self.buffers.values() if buffer.params is packed_seq_params)
        return self._nested(output[0].index_select(0, buffer.place), input_ids)

    def expand(self, tensor, nested_tensor):
        """(sequences,) to nested (sequences, tokens): each sequence's value for all its tokens."""
        lengths = nested_tensor.offsets().diff()
        return self._nested(tensor.repeat_interleave(lengths, output_size=self.tokens), nested_tensor)

    def pad(self, tensor, data):
        """Return the response values of (tokens of all sequences, ...), nested or not, as (sequences, longest response,
        ...): the value of a token stands at the token before it. Differentiable."""
        if self.parts is None:
            return PAD.stock(tensor, data)
        values = self._values(tensor)
        width = tensordict_utils.get_non_tensor_data(data, key="max_response_len", default=-1)
        width = width if width >= 0 else int(self.parts[1].max())
        source, slot = self._slots(width)
        rows = values.new_zeros(len(self.lengths) * width, *values.shape[1:])
        return rows.index_copy(0, slot, values.index_select(0, source)).unflatten(0, (-1, width))

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        values = tensor.values() if tensor.is_nested else tensor
        if values.shape[0] != self.tokens:
            raise ValueError(f"The micro-batch has {self.tokens} tokens and this tensor {values.shape[0]}.")
        return values

    def _nested(self, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(
            values, like.offsets(), min_seqlen=int(self.lengths.min()), max_seqlen=int(self.lengths.max())
        )

    def _buffer(self, options: dict) -> _Buffer:
        key = tuple(sorted(options.items()))
        if key not in self.buffers:
            _, params, _ = PACK.stock(self.ids, pre_process=False, **options)
            starts = params.cu_seqlens_q_padded.cpu().long()
            within = _within(self.lengths)
            place = within + starts[:-1].repeat_interleave(self.lengths)
            tokens = int(starts[-1])
            position = torch.zeros(tokens, dtype=torch.int64).index_copy_(0, place, within)
            # Its boundaries are one tensor under four names: Transformer Engine compares them at every layer, and two
            # copies would have to be read.
            tensors = {name: value for name, value in vars(params).items() if isinstance(value, torch.Tensor)}
            there = {id(value): send(value, self.device) for value in tensors.values()}
            for name, value in tensors.items():
                setattr(params, name, there[id(value)])
            self.buffers[key] = _Buffer(params, tokens, send(place, self.device), send(position, self.device))
        return self.buffers[key]

    def _slots(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return for each response token (response tokens,) the index of its value and its index in (sequences x
        width)."""
        if width not in self.slots:
            prompts, responses = self.parts
            if not torch.equal(prompts + responses, self.lengths):
                raise ValueError("A sequence is not its prompt and its response.")
            if int(prompts.min()) == 0 or int(responses.max()) > width:
                raise ValueError(f"Each sequence needs a prompt, and a response of at most {width} tokens.")
            slot = _within(responses) + (torch.arange(len(responses)) * width).repeat_interleave(responses)
            self.slots[width] = send(token_positions(self.batch), self.device), send(slot, self.device)
        return self.slots[width]


def to_device(batch: TensorDict, device: torch.device) -> TensorDict:
    """`batch` on `device`; a GPU copies it behind what it is doing, and nobody waits."""
    columns = {}
    for name, column in batch.items():
        if not isinstance(column, torch.Tensor):
            columns[name] = column
        elif column.is_nested:
            lengths = column.offsets().diff()
            columns[name] = torch.nested.nested_tensor_from_jagged(
                send(column.values(), device),
                send(column.offsets(), device),
                jagged_dim=column._ragged_idx,
                min_seqlen=int(lengths.min()),
                max_seqlen=int(lengths.max()),
            )
        else:
            columns[name] = send(column, device)
    return TensorDict(columns, batch_size=batch.batch_size, device=device)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`. From pageable memory a copy would wait for the GPU."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _within(lengths: torch.Tensor) -> torch.Tensor:
    """(sum of lengths,) int64: 0, 1, ... of each sequence."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)
