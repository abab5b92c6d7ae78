"""What every test rank needs: imported once by the fork server."""

import torch
import torch.distributed.pipelining

import kareus.execute.engine  # noqa: F401

torch.set_num_threads(1)
