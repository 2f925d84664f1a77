"""HyDra: load target, degrees and placement; baselines one a file."""
