"""A simulated vLLM replica that answers as vLLM 0.32 was measured to answer, without a model and without a GPU.

For demos, for tests and for scale: a hundred of them fit into one process. It reads the real adapter folder that it is
told to load, refuses what vLLM refuses, and its answers tell which bytes it holds. `Sim` runs one inside a test,
`python -m replica.sim` runs them on ports.
"""

from replica.sim.options import Faults, Options
from replica.sim.replica import Sim

__all__ = ["Faults", "Options", "Sim"]
