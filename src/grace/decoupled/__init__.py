"""Learners that wait for nobody."""
