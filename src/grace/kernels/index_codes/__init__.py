"""Codes for lists of indices: ``fixed`` ones, whose size follows from k and n alone, and ``variable`` ones, of gaps.

``codes`` has all of them.
"""
