"""Measurements of the policy, as numbers and as files: behaviour, pass@k, trajectories, TensorBoard."""
