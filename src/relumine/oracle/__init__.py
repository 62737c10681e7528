"""Oracles: everything that answers queries, and the meter in front of it."""
