"""One hidden ReLU layer where each answer explains one logit: the top class, or one of the caller's choice.

line.py: pieces on a line, each seen by one output ──> slopes.py: breakpoints and slopes
    ──> fit.py: output weights by least squares ──> method.py: verification
"""
