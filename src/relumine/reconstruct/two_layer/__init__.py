"""TwoLayer: one hidden layer from gradients (docs/two-layer.md).

    method.py: the tensor first (``reconstruct/tensor``) ──> agreement.py: compare, mend, polish ──> verified
        one output: one_output.py: twelve lines through one point ──> thresholds.py: patterns ──> agreement.py
        what these leave open:
            asker.py: calibrate ──> line.py: search a line ──> mending.py: along the ray to a wrong point

Where one output is explained at a time, ``reconstruct/top_class`` does the work.
"""
