"""The loops of every turn, each alone: timed by `make bench-loops`, counted by `make bench-instructions`.

Nothing here opens a socket or reads a clock, and nothing is imported that a router would not import.
"""
