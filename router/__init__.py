"""Boomerang: a conversation-aware, OpenAI-compatible router for vLLM prefill/decode pools."""

__version__ = "0.1.0"
