"""The parts that a recipe puts between reward and update: filters, advantages, losses.

Estimators and losses are verl's where it has them; ours are registered with it.
"""
