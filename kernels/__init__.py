"""Attention kernels and the nested Ulysses x ring context-parallel engine."""
