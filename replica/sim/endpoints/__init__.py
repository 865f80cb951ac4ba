"""The shapes of vLLM's inference endpoints, one module per family."""
