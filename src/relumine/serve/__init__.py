"""An explanation endpoint for a model: the KServe v1 protocol, with tokens, budgets and limits."""
