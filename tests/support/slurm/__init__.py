"""A real Slurm of two nodes on this machine, the jobs that run on it and the faults that break them."""
