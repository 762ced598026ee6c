"""Wires of sketchml as they are read."""
