"""Data that need no download, and are the same whenever and wherever they are made.

The standard library's text is real. Shapes, defects and feedback are procedural: whoever shows a result on them says so.
"""
