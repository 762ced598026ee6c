"""Transports: what moves bytes between ranks, and what stands around it to check, time and count."""
