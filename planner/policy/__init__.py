"""Op orders as a decision process: what a learned planner sees, does and gets."""
