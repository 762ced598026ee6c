"""``python -m benchmarks.codecs``."""

from benchmarks.codecs.command import main

main()
