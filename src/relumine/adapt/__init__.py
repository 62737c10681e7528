"""Oracles that make gradients of other maps, or ask in another way, and reconstruction behind them."""
