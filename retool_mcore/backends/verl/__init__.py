"""verl: its trainers with what is ours in a step, its agent loops, workers, weight pushes and checkpoints."""
