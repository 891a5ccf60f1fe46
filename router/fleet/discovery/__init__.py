"""Who belongs to the fleet: sources that list nodes, and the one reconciler that follows them.

A source lists all the nodes that it knows of, again at every change. What was listed and is not any more
leaves (``Fleet.leave``): no new turns, and gone as soon as that costs nobody anything. A source that fails
changes nothing: a list that cannot be read is no reason to take a pool apart, and nodes that are down fail
their probes.
"""
