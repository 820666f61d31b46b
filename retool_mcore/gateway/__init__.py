"""The OpenAI-compatible front of a policy: wire format and HTTP application. No vLLM and no torch here."""
