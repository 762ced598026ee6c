"""``python -m grace.cli``."""

from grace.cli import main

if __name__ == "__main__":  # not in processes that it spawns
    main()
