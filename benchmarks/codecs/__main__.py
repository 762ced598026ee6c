"""``python -m benchmarks.codecs``."""

from benchmarks.codecs.command import main

if __name__ == "__main__":  # not in processes that it spawns
    main()
