"""Simulated engines: vLLM's wire format over a block model that notices every use of wrong KV."""
