"""verl behind `Engines`: its workers, servers, pushes and checkpoints; episodes on its client; SFT's trainer."""
