"""Hostile programs for the sandbox, and the runner that judges what each of them reached."""
