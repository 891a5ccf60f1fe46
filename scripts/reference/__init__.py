"""Writes ``docs/reference`` from the code: settings, commands, routes, headers, errors, plans and reasons.

What code cannot tell (what a route is for) stands here, beside a check that it names everything that the code
has, and nothing else. ``tests/docs`` fails where a page is not what the code says.
"""
