"""The stages: sft, rl, eval, export, one file each that reads top to bottom, and what they share.

Started as processes by the command line."""
