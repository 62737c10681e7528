"""The Jacobian tensor: one hidden layer from the Jacobians at a handful of inputs (docs/two-layer.md).

observations.py: answers as the tensor ──> decomposition.py: its rank-one terms ──> units.py: proved by their signs
    patterns.py     by enumerating activation patterns
    alternating.py  by alternating eigenvectors, for many inputs that were given
search.py chooses the inputs, base_lines.py where these are many, walk.py where more units switch than there are inputs
(refinement.py keeps their digits); run.py leads and compares.

smooth.py leads where units are not ReLUs: unfolding.py and rank_one.py find the terms, shape.py tells the
activation (tabulated.py where none fits), crossings.py sees units alone on far lines, gauss_newton.py polishes.
"""
