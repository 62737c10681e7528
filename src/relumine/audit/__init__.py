"""The audit: what leaks, how fast, and what each defence buys."""
