"""Polishing: all parameters of a found network fitted to every answer by Gauss–Newton steps.

answers.py remembers them, patterns.py holds activation patterns fixed, step.py solves one step, fit.py repeats it.
"""
