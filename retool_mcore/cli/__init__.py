"""The command line: `retool`, one command a stage, and what looks at a machine or a run."""
