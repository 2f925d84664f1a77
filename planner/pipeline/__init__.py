"""Pipeline side of a plan: op orders and the simulator."""
