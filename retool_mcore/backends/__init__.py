"""The libraries that train and generate, touched here and nowhere else: an upgrade of one is a folder.

Every function of theirs that is replaced by one of ours stands in one table with the releases it was written for."""
