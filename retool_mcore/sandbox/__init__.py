"""Running the programs that a policy writes. May be imported by: rollout, train, doctor. Imports only errors."""
