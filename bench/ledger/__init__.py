"""What a shared ledger does under load: routers that share a conversation, and a store that fails.

Each module is a command: ``python -m bench.ledger.NAME``. ``docs/redis.md`` has the figures.
"""
