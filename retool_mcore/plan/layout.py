"""How a model is spread over GPUs, and what it is trained on."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from retool_mcore.errors import UserError
from retool_mcore.plan.flops import RECOMPUTE

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
    sequence_parallel: bool = True  # ignored at tp=1
    recompute: str = "none"  # none | selective (attention core) | mlp | full (every layer)
    optimizer_offload: bool = False  # to the host while vLLM generates; the update has it on the GPU again
    param_offload: bool = False  # weights and gradients, likewise
    micro_batch_tokens: int = 16384  # per context-parallel rank, as verl's ppo_max_token_len_per_gpu
    fused_swiglu: bool = False  # override_transformer_config.bias_activation_fusion
    fused_rope: bool = False  # override_transformer_config.apply_rope_fusion
    fused_log_probs: bool = False  # model.use_fused_kernels: the logits are never whole
    fused_wgrad: bool = False  # gradient_accumulation_fusion
    overlap: bool = False  # overlap_grad_reduce and overlap_param_gather

    def __post_init__(self):
        for name in ("tp", "pp", "vpp", "cp", "dp", "micro_batch_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"the layout's {name} is {value!r}, expected a whole number of 1 or more.")
        if self.recompute not in RECOMPUTE:
            raise UserError(f"the layout's recompute is {self.recompute!r}, expected one of {', '.join(RECOMPUTE)}.")
        if self.vpp > 1 and self.pp == 1:
            raise UserError(f"vpp={self.vpp} cuts a pipeline's stages, so it needs pp > 1.")

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def shards_sequence(self) -> bool:
        return self.sequence_parallel and self.tp > 1


@dataclass(frozen=True)
class Batch:
    """The sequences of one optimizer step over all ranks: their lengths in tokens, prompt and response together."""

    lengths: tuple[int, ...]
    sequence_tokens: int = 0  # longest there may be; 0: the longest there is

    @classmethod
    def of(cls, lengths: "Batch | Sequence[int] | tuple[int, int, float]", mean: float | None = None) -> "Batch":
        """A batch of a list of lengths. For (sequences, longest, mean) see `spread`."""
        if isinstance(lengths, Batch):
            return lengths
        return cls(tuple(int(length) for length in lengths))

    @classmethod
    def spread(cls, sequences: int, longest: int, mean: float) -> "Batch":
        """`sequences` lengths of the given mean: a power of evenly spaced quantiles, from near 0 up to `longest`.

        Quantile q has length longest * q^a with a = longest / mean - 1, whose mean is longest / (1 + a).
        """
        if sequences < 1 or longest < 1 or not 0 < mean <= longest:
            raise UserError(
                f"a batch of {sequences} sequences of at most {longest} and on average {mean} tokens cannot be: "
                "expected 1 or more of each and a mean of at most the longest."
            )
        power = longest / mean - 1
        quantiles = ((index + 0.5) / sequences for index in range(sequences))
        return cls(tuple(max(1, round(longest * quantile**power)) for quantile in quantiles), longest)

    def __post_init__(self):
        if not self.lengths or min(self.lengths) < 1:
            raise UserError("a batch needs at least one sequence, each of 1 token or more.")

    @cached_property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        return max(max(self.lengths), self.sequence_tokens)

    def micro_batches(self, layout: Layout) -> "MicroBatches":
        """How verl cuts one data-parallel rank's share into micro-batches."""
        return _micro_batches(self.lengths, layout.dp, layout.micro_batch_tokens * layout.cp)


@dataclass(frozen=True)
class MicroBatches:
    """Of one data-parallel rank: token counts of each micro-batch, over all its context-parallel ranks."""

    tokens: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def largest(self) -> int:
        return max(self.tokens)


@lru_cache(maxsize=4096)
def _micro_batches(lengths: tuple[int, ...], dp: int, limit: int) -> MicroBatches:
    if dp > len(lengths):
        raise UserError(f"{len(lengths)} sequences are not enough for {dp} data-parallel ranks.")
    share = sorted(lengths, reverse=True)[::dp]  # the fullest rank's
    if share[0] > limit:
        raise UserError(
            f"the longest sequence has {share[0]} tokens and a micro-batch takes {limit}: raise micro_batch_tokens."
        )
    count = -(-sum(share) // limit)
    while True:
        loads = [(0, 0, index) for index in range(count)]  # cost, tokens
        heapq.heapify(loads)
        for length in share:
            cost, tokens, index = loads[0]
            heapq.heapreplace(loads, (cost + length * (VERL_TOKEN_COST + length), tokens + length, index))
        largest = max(tokens for _, tokens, _ in loads)
        if largest <= limit:
            return MicroBatches(tuple(tokens for _, tokens, _ in loads))
        count += 1
