"""The Jacobian tensor: one hidden layer from the Jacobians at a handful of inputs (docs/two-layer.md)."""
