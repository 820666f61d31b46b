"""Data sets, prompts, chat formats and the tiny task: everything that exists before a policy does.

May be imported by: rollout, train, preflight. Imports only errors."""
