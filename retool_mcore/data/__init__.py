"""Data sets, prompts, chat formats and the tiny task: everything that exists before a policy does."""
