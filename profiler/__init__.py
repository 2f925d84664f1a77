"""Profile: measure or model the cost of attention, linear work and links."""
