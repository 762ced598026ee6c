"""Transports: what moves bytes."""
