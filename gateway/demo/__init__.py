"""`lora-gateway demo`: a whole fleet on this machine, and a story told with real requests.

Everything runs as it would for an operator: replicas and gateway are processes of their own, adapters are folders on
the disk, and the client is the `openai` package. The only part of the product that knows the package `replica`, by its
commands.
"""

from gateway.demo.story import run_demo

__all__ = ["run_demo"]
