"""Boomerang's part inside vLLM: the engines verify handles themselves, and streams carry them.

A handle is what a decode node (D) returns for a finished turn: where its KV is. Of which tokens that KV is,
it does not say, and a prefill node (P) that is given one never asks. This plugin makes D say it, in a *stamp*
(``digest``, ``blocks``), and makes P compare and shorten the handle before it reads anything (``check``,
``cut``). It also puts the handle into streams that have none (``stream``).

``register`` is what vLLM calls, in every process of an engine. All contact with vLLM is in ``scheduler``,
``content`` and ``stream``; the rest is plain Python and is tested without an engine.
"""

__version__ = "0.1.0"
