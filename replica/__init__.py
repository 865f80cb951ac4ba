"""One vLLM replica: a real one, a simulated one, and what they need on disk."""
