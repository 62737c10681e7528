"""TwoLayer: one hidden ReLU layer from little more than one gradient query per unit (docs/two-layer.md).

    calibrate ──> search a line ──> compare at fresh points ──> verified
    (asker.py)    (lines/search)          │        ▲
                                          ▼ wrong  │
                                    mend along the ray to the wrong point (mending.py)

method.py leads; pair.py tells apart two units whose breakpoints coincide. Where one output is explained at a time,
``reconstruct/top_class`` does the work.
"""
