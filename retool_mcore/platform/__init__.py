"""Adapters that let verl, Megatron-core and vLLM run without a GPU, one module per library, and the check.

On a machine with CUDA every adapter does nothing. Nothing here is imported by hand: verl and vLLM load the adapters
through entry points (pyproject.toml). May be imported by: launch, train, doctor."""
