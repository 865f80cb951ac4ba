"""A tiny real Llama and tiny real PEFT adapters, made on disk without a download.

Needs numpy, safetensors and tokenizers (the `demo` extra); torch and peft are not needed. Everything is deterministic:
the same arguments give the same bytes. An adapter made with `say` answers with that text, over and over, whatever the
prompt, so whoever reads an answer can tell which adapter, and which revision of it, gave it.
"""

from replica.tiny.adapter import make_adapter, trap_code
from replica.tiny.model import make_model

__all__ = ["make_adapter", "make_model", "trap_code"]
