"""Running many things: processes or a Ray cluster, a store of finished work, and where results come from."""
