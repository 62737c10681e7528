"""Model files: one module per format. None of them runs code that a file brings along."""
