"""Running the programs that a policy writes. May be imported by: rollout,
train, preflight, doctor. Imports only errors and files."""
