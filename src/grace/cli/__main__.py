"""``python -m grace.cli``."""

from grace.cli import main

main()
