"""Decisions beside placement: op orders as a decision process, who is slow, which work moves."""
