"""Megatron-core: the engines of policy and critic, packed micro-batches, log-probabilities, overlap, export."""
