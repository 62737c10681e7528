"""GradientMatching: a student trained to give the target's values and explanations.

sources.py: inputs ──> answers ──> logits.py: probabilities as logits ──> loss.py: what is compared
    ──> fit.py with optimiser.py and smoothing.py ──> student.py: the clone
"""
