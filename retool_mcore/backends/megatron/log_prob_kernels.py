"""The Triton kernels of fused_log_probs.py: a program a token, over the columns of its row of logits."""

import triton
import triton.language as tl


@triton.jit
def forward(
    logits, labels, scales, largest, sums, weighted, targets, first, columns, stride,
    ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The row's largest x = logit * scale, sums of exp(x - largest) and x exp(x - largest), and the label's x, or 0."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    scale = tl.load(scales + row)
    peak = float("-inf")
    total = 0.0
    product = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < columns, other=float("-inf")).to(tl.float32) * scale
        new = tl.maximum(peak, tl.max(x, 0))
        shrink = tl.exp(peak - new)
        p = tl.exp(x - new)
        total = total * shrink + tl.sum(p, 0)
        if ENTROPY:
            product = product * shrink + tl.sum(tl.where(at < columns, p * x, 0.0), 0)
        peak = new
    label = tl.load(labels + row) - first
    here = (label >= 0) & (label < columns)
    target = tl.load(logits + label, mask=here, other=0.0).to(tl.float32) * scale
    tl.store(largest + row, peak)
    tl.store(sums + row, total)
    tl.store(weighted + row, product)
    tl.store(targets + row, tl.where(here, target, 0.0))


@triton.jit
def backward(
    logits, labels, scales, log_sum, mean, grad, entropy_grad, first, columns, stride,
    ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the gradient over the row: p = softmax(x), d log p_label = [label] - p, d entropy = -p (x - mean of x)."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    scale = tl.load(scales + row)
    label = tl.load(labels + row) - first
    up = tl.load(grad + row)
    whole = tl.load(log_sum + row)
    bonus = tl.load(entropy_grad + row)
    centre = tl.load(mean + row)
    # Tokens outside the loss (prompts, the interpreter's output) have no gradient: nothing is read for them.
    unused = tl.abs(up) + tl.abs(bonus) == 0.0
    read = tl.where(unused, 0, columns)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < read, other=float("-inf")).to(tl.float32) * scale
        p = tl.exp(x - whole)
        out = tl.where(at == label, up, 0.0) - up * p
        if ENTROPY:
            out -= tl.where(at < read, bonus * p * (x - centre), 0.0)
        out = tl.where(unused, 0.0, out * scale)
        tl.store(logits + at, out.to(logits.dtype.element_ty), mask=at < columns)
