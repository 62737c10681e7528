"""Portfolio: students of values or labels from several families of models, chosen by held-out answers.

answers.py   what is learned: classes, the numbers behind them where they are shown, and standardised inputs
families.py  the families: linear, kernel, nearest neighbours, boosted trees, forests
method.py    cross-validation over the answers, and the clone
"""
