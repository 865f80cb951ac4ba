"""A LoRA gateway for a fleet of vLLM replicas: any adapter in the shared directory answers by its name."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("lora-gateway")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"
