"""A Megatron-backed trainer for tool-integrated reinforcement learning (ReTool, arXiv 2504.11536)."""
