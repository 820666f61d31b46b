"""Rigs that several tests share; benchmarks may import them, the package, docs/ and examples/ may not."""
