"""The survey done again: which method for which model, as runs that anyone can repeat, add to and judge."""
