"""A pool of simulated engines under load: what the planner is worth, and what a fault costs."""
