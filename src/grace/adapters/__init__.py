"""Adapters: where gradients come from."""
