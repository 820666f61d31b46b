"""Runs that a user can repeat, from a download to a trained model."""
