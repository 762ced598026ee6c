"""Hundreds of workers in one process that come and go, each with data of its own: ``grace simulate``."""
