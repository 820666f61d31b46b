"""Log-probabilities and entropies of a vocabulary that is split over tensor-parallel ranks, in one read of the logits.

Megatron-core's vocabulary-parallel cross-entropy, which verl calls, copies the bfloat16 logits to float32 and passes
over the copy eight times; at 152,064 tokens of vocabulary that copy is the largest tensor of the step. Here a Triton
kernel reads the logits once (an online softmax, Milakov and Gimelshein 2018, arXiv 1805.02867), and the backward pass
writes the gradient over them. No other tensor of the logits' size exists.
"""

import torch

BLOCK = 8192  # columns that a program holds at a time
WARPS = 16


def log_probs(logits, labels, temperature, *, entropy: bool, group=None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """log softmax(logits / temperature)[labels], and the entropy of that distribution.

    The backward pass overwrites `logits`: it can run once, and nothing else may need them by then.

    Args:
        logits: (..., vocabulary / ranks), of any float type, on a CUDA device: this rank's columns.
        labels: (...), int64, columns of the whole vocabulary.
        temperature: (...), float32, above 0.
        entropy: whether the second result is wanted; else it is None.
        group: the tensor-parallel process group, rank r holding the r-th part of the columns; None: one rank.

    Returns:
        (...) float32 each, differentiable with respect to `logits`.
    """
    shape = labels.shape
    flat = logits.reshape(-1, logits.shape[-1])
    scales = temperature.reshape(-1).float().reciprocal()
    values, entropies = _LogProbs.apply(flat, labels.reshape(-1), scales, entropy, group)
    return values.view(shape), entropies.view(shape) if entropy else None


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, scales, entropy, group):
        from retool_mcore.backends.megatron import log_prob_kernels as kernels  # Triton: on CUDA machines only

        rows, columns = logits.shape
        alone = group is None or group.size() == 1
        first = 0 if alone else group.rank() * columns
        largest = logits.new_empty(rows, dtype=torch.float32)
        sums = logits.new_empty(3, rows, dtype=torch.float32)  # of exp(x), of x exp(x), the label's x
        kernels.forward[(rows,)](
            *(logits, labels, scales, largest, sums[0], sums[1], sums[2], first, columns, logits.stride(0)),
            ENTROPY=entropy,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
        if not alone:
            own = largest.clone()
            torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
            sums[:2] *= torch.exp(own - largest)
            torch.distributed.all_reduce(sums, group=group)
        log_sum = largest + sums[0].log()
        mean = sums[1] / sums[0]
        ctx.save_for_backward(logits, labels, scales, log_sum, mean)
        ctx.first, ctx.entropy, ctx.spent = first, entropy, False
        entropies = log_sum - mean if entropy else None
        return sums[2] - log_sum, entropies

    @staticmethod
    def backward(ctx, grad_log_probs, grad_entropies):
        from retool_mcore.backends.megatron import log_prob_kernels as kernels

        if ctx.spent:
            raise RuntimeError("The log-probabilities' backward pass ran before, and it overwrote the logits.")
        ctx.spent = True
        logits, labels, scales, log_sum, mean = ctx.saved_tensors
        zeros = torch.zeros_like(log_sum)
        grads = [
            zeros if grad is None else grad.contiguous().float()
            for grad in (grad_log_probs, grad_entropies if ctx.entropy else None)
        ]
        rows, columns = logits.shape
        kernels.backward[(rows,)](
            *(logits, labels, scales, log_sum, mean, *grads, ctx.first, columns, logits.stride(0)),
            ENTROPY=ctx.entropy,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
        return logits, None, None, None, None
