"""Ridge regression on accelerators: a program solves the equations of one matrix."""
