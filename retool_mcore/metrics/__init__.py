"""What the policy does, as numbers and as files: behaviour, pass@k, trajectories, TensorBoard."""
