"""Oracles behind an address: the description of an endpoint, its protocol, and what sends requests."""
