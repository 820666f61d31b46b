"""The OpenAI-compatible endpoint through which any agent program trains; imports data, rollout and sandbox only."""
