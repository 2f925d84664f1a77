"""Execute: run a plan in the simulator or on torch.distributed."""
