"""`python -m gateway` is the command `lora-gateway`."""

import sys

from gateway.cli import main

sys.exit(main())
