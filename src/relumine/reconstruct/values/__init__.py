"""TwoLayerFromValues: one hidden ReLU layer from values alone.

exact values:  differences.py: the tensor of Jacobians by differences ──> else breakpoints of a line (lines/profile)
probabilities, one explained:  explained.py: the span of the rows from gradients ──> differences.py
noisy values:  noisy.py leads growth.py (units one after the other) and fit.py (all parameters)
"""
