"""Decisions about rollouts: plans, batches, budgets, progress."""
