"""Running the programs that a policy writes."""
