"""Prediction of the time of a step: links, costs of collectives and codecs, and the timeline that plays them against the
model.
"""
