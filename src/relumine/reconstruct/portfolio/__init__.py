"""Portfolio: students of values or labels from several families of models, chosen by held-out answers.

scaling.py   inputs standardised by what the attacker holds
answers.py   what is learned: classes, and the numbers behind them where they are shown
families.py  the families: linear, kernel, nearest neighbours, boosted trees, forests
method.py    cross-validation over the answers, and the clone
"""
