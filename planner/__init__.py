"""Plan: lengths and cost in, a plan out. Imports neither torch nor kernels."""
