"""FromContributions: a student of SHAP values, which are d answers per query instead of one.

students.py  contributions as functions: of their own feature, by a forest of all features, or smooth
method.py    the choice between them by held-out answers, and the clone
"""
