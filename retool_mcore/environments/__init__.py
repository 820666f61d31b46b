"""Task environments: what a trajectory acts on besides an interpreter.

A repository is files in memory, for one trajectory; programs and tests run on a copy of them in the sandbox."""
