"""A scripted model server and recorded rewrites of known quality for the cold-start pipeline."""
