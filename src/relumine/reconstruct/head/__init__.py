"""Head: a secret head on a public backbone, from the gradients with respect to the input (docs/head.md).

    J(x) = J_head(φ(x))·J_φ(x), and J_φ is known:

    backbone.py: φ and J_φ ──> pullback.py: J_head = J·J_φ⁺, and which columns of it J_φ shows
        linear.py: one Jacobian is a linear head ──> compare
        subspace.py: the row space of the first layer ──> hidden.py: one hidden layer there, by the tensor ──> compare
            what is deeper: student.py, fitted in the same space
    clone.py: backbone and head in one

Features are reachable as φ(x) only, so queries are inputs and never chosen features.
"""
