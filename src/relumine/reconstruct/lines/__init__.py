"""Search along a line through input space, on which a ReLU network is piecewise linear.

search.py   breakpoints from tangents: two pieces known at their ends meet at the breakpoint between them
profile.py  breakpoints of a one-dimensional function known by values alone
shallow.py  the one-hidden-layer network that a set of breakpoints stands for
"""
