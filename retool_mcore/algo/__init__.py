"""What a recipe puts between reward and update: filters, advantages, losses. May be imported by: preflight, train.

Imports metrics, reward and rollout. Estimators and losses are verl's where it has them; ours are registered with it."""
