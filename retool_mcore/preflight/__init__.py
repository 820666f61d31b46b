"""Refuses bad input with one clear sentence, within seconds, before a GPU, Ray or an engine is taken.

One module per thing that can be wrong; every check takes plain values, run.py composes them for a stage."""
