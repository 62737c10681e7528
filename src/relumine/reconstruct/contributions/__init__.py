"""FromContributions: a student of SHAP values, which are d answers per query instead of one.

per_feature.py  contributions as functions of their own feature, exact for additive models
forests.py      contributions as functions of all features, a forest for each
kernels.py      the same, smooth: kernel ridge regression for each
method.py       the choice between them by held-out answers, and the clone
"""
