"""``boomerang check``: a self-test of a live pool, and the quick part of it that needs no turn.

``pool`` and ``pair`` gather observations (``observed``): they probe, and play two tiny turns through each
pair of a prefill and a decode node. ``judge`` and its tables of rules turn observations into findings; they
are pure. ``report`` writes findings for people and for machines.
"""
