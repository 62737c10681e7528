"""TwoLayerFromValues: one hidden ReLU layer from values alone.

exact values:  breakpoints of a line (lines/profile) ──> slopes.py: gradients by finite differences ──> verified
noisy values:  noisy.py leads growth.py (units one after the other), fit.py and pool.py (candidates)
"""
