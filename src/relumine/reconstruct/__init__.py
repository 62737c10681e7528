"""The attacks: methods that reconstruct a model from an oracle's answers."""
