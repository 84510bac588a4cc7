"""Rewards that the identification reward is compared with, and grids of runs."""
