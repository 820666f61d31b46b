"""Adapters that let verl, Megatron-core and vLLM run without a GPU, one module per library, and the check.

On a machine with CUDA they do nothing but put two kernels into Megatron. verl and vLLM load them through entry points
(pyproject.toml)."""

CPU_THREADS = "RETOOL_CPU_THREADS"  # variable: threads of a trainer's or an engine's process (env.py sets it)
