"""vLLM outside of verl: the engine of an evaluation."""
