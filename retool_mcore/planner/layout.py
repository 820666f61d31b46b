"""How a model is spread over GPUs, and what it is trained on."""

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from retool_mcore.errors import UserError
from retool_mcore.planner.flops import RECOMPUTE, attention_pairs
from retool_mcore.planner.packing import pack
from retool_mcore.planner.shape import check_sizes

# verl's weight of a token against a pair of tokens when it balances micro-batches (utils/seqlen_balancing.py).
VERL_TOKEN_COST = 24576


@dataclass(frozen=True)
class Layout:
    """Sizes of the trainer's parallel groups and what it keeps. The defaults of the switches are verl 0.9.1's."""

    tp: int = 1
    pp: int = 1
    vpp: int = 1  # chunks of layers a pipeline rank (virtual_pipeline_model_parallel_size); 1: none
    cp: int = 1
    dp: int = 1
    ep: int = 1  # ranks of TP x CP x DP that share a layer's experts, each of them whole
    sequence_parallel: bool = True  # ignored at tp=1
    recompute: str = "none"  # none | selective (attention core) | mlp | full (every layer)
    optimizer_offload: bool = False  # to the host while vLLM generates; the update has it on the GPU again
    param_offload: bool = False  # weights and gradients, likewise
    micro_batch_tokens: int = 16384  # per context-parallel rank, as verl's ppo_max_token_len_per_gpu
    fused_swiglu: bool = False  # override_transformer_config.bias_activation_fusion
    fused_rope: bool = False  # override_transformer_config.apply_rope_fusion
    fused_log_probs: bool | str = False  # True: model.use_fused_kernels, the logits are never whole; "in_place": ours
    half_logits: bool = False  # with "in_place": override_mcore_model_config.half_logits, no float32 copy of the logits
    fused_wgrad: bool = False  # gradient_accumulation_fusion
    overlap: bool = False  # overlap_grad_reduce and overlap_param_gather
    packed: bool = False  # override_mcore_model_config.packing: full micro-batches (planner/packing.py), not verl's

    def __post_init__(self):
        check_sizes("layout", self, ("tp", "pp", "vpp", "cp", "dp", "ep", "micro_batch_tokens"))
        if self.fused_log_probs not in (False, True, "in_place"):
            raise UserError(
                f"the layout's fused_log_probs is {self.fused_log_probs!r}, expected true, false or in_place."
            )
        if self.recompute not in RECOMPUTE:
            raise UserError(f"the layout's recompute is {self.recompute!r}, expected one of {', '.join(RECOMPUTE)}.")
        if self.vpp > 1 and self.pp == 1:
            raise UserError(f"vpp={self.vpp} cuts a pipeline's stages, so it needs pp > 1.")

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def stages(self) -> tuple[int, ...]:
        """The pipeline stages that may hold the most: the first, the last, and the first of those between."""
        return (*range(min(2, self.pp - 1)), self.pp - 1)

    @property
    def mechanisms(self) -> int:
        """How many of the things are on that can be off, as a measure of what can go wrong."""
        used = (self.cp > 1, self.vpp > 1, self.pp > 1, self.recompute != "none")
        return sum(used) + self.param_offload + self.optimizer_offload

    @property
    def shards_sequence(self) -> bool:
        return self.sequence_parallel and self.tp > 1


@dataclass(frozen=True)
class Batch:
    """The sequences of one optimizer step over all ranks: their lengths in tokens, prompt and response together."""

    lengths: tuple[int, ...]
    sequence_tokens: int = 0  # longest there may be; 0: the longest there is

    @classmethod
    def spread(cls, sequences: int, longest: int, mean: float) -> "Batch":
        """`sequences` lengths of the given mean: a power of evenly spaced quantiles, from near 0 up to `longest`.

        Quantile q has length longest * q^a with a = longest / mean - 1, whose mean is longest / (1 + a).
        """
        if sequences < 1 or longest < 1 or not 0 < mean <= longest:
            raise UserError(
                f"a batch of {sequences} sequences of at most {longest} tokens and a mean of {mean} is impossible: "
                "expected at least 1 sequence and 1 token, and a mean above 0 and at most the longest."
            )
        power = longest / mean - 1
        quantiles = ((index + 0.5) / sequences for index in range(sequences))
        return cls(tuple(max(1, round(longest * quantile**power)) for quantile in quantiles), longest)

    def sample(self, sequences: int) -> "Batch":
        """Return this many lengths of the same distribution: its evenly spaced quantiles."""
        ordered, step = sorted(self.lengths), len(self.lengths) / sequences
        return Batch(tuple(ordered[int((index + 0.5) * step)] for index in range(sequences)), self.longest)

    @cached_property
    def _shares(self) -> dict[int, "Share"]:
        return {}

    def share(self, dp: int) -> "Share":
        """Return the share of the fullest of `dp` data-parallel ranks."""
        if dp > len(self.lengths):
            raise UserError(f"{len(self.lengths)} sequences are not enough for {dp} data-parallel ranks.")
        if dp not in self._shares:
            self._shares[dp] = Share(tuple(sorted(self.lengths, reverse=True)[::dp]))
        return self._shares[dp]

    def __post_init__(self):
        if not self.lengths or min(self.lengths) < 1:
            raise UserError("a batch needs at least one sequence, each of 1 token or more.")

    @cached_property
    def longest(self) -> int:
        return max(max(self.lengths), self.sequence_tokens)

    def micro_batches(self, layout: Layout) -> "MicroBatches":
        """How verl cuts one data-parallel rank's share into micro-batches."""
        group = layout.pp if layout.vpp > 1 else 1  # interleaving wants whole groups of micro-batches
        return self.share(layout.dp).micro_batches(layout.micro_batch_tokens * layout.cp, group, layout.packed)


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches of one data-parallel rank; tokens are over all its context-parallel ranks."""

    count: int
    largest: int  # tokens of the fullest


@dataclass(frozen=True)
class Share:
    """The sequences of one data-parallel rank, the longest first."""

    lengths: tuple[int, ...]

    @cached_property
    def tokens(self) -> int:
        return sum(self.lengths)

    @cached_property
    def pairs(self) -> int:
        return attention_pairs(self.lengths)

    @cached_property
    def _cuts(self) -> dict[tuple[int, int, bool], MicroBatches]:
        return {}

    def micro_batches(self, limit: int, group: int, packed: bool = False) -> MicroBatches:
        """Micro-batches of at most `limit` tokens, their number a multiple of `group`."""
        if (limit, group, packed) not in self._cuts:
            self._cuts[limit, group, packed] = self._pack(limit, group) if packed else self._cut(limit, group)
        return self._cuts[limit, group, packed]

    def _pack(self, limit: int, group: int) -> MicroBatches:
        """Pack like backends/megatron/micro_batches.py: as few as can be filled, and a multiple of `group`."""
        bins = pack(np.asarray(self.lengths), limit)
        count = -(-len(bins) // group) * group
        if count > len(self.lengths):
            raise UserError(f"{len(self.lengths)} sequences of a rank do not make {group} micro-batches.")
        return MicroBatches(count, max(sum(self.lengths[index] for index in taken) for taken in bins))

    def _cut(self, limit: int, group: int) -> MicroBatches:
        """Cut like verl: the fewest micro-batches that hold the tokens, filled evenly by cost, and more until none is
        too full.

        The greedy rule fills them evenly; Karmarkar and Karp's differs little and takes seconds.
        """
        if len(self.lengths) < group:
            raise UserError(f"{len(self.lengths)} sequences of a rank do not make {group} micro-batches.")
        if self.lengths[0] > limit:
            raise UserError(
                f"the longest sequence has {self.lengths[0]} tokens and a micro-batch takes {limit}: raise "
                "micro_batch_tokens."
            )
        count = -(-self.tokens // limit)
        while True:
            count = min(-(-count // group) * group, len(self.lengths) // group * group)
            loads = [(0, 0, index) for index in range(count)]  # cost, tokens
            for length in self.lengths:
                cost, tokens, index = loads[0]
                heapq.heapreplace(loads, (cost + length * (VERL_TOKEN_COST + length), tokens + length, index))
            largest = max(tokens for _, tokens, _ in loads)
            if largest <= limit:
                return MicroBatches(count, largest)
            if count == len(self.lengths) // group * group:
                raise UserError(
                    f"no {count} micro-batches of {limit} tokens hold the sequences: raise micro_batch_tokens."
                )
            count += 1
