"""Pairs of answers whose equivalence is known: generated, held back and found by a fuzzer."""
