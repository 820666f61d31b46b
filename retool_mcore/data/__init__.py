"""Data sets, prompts, chat formats and the tiny task: everything that exists before a policy does.

May be imported by: rollout, reward, metrics, train, the command line. Imports only errors."""
