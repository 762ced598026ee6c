"""Transports, which move bytes between ranks, and wrappers around them that check, time and count."""
