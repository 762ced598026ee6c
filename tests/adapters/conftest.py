"""Scripts of workers are no tests: they are run in processes of their own."""

from __future__ import annotations

collect_ignore_glob = ["toolkits/*", "*_cases.py"]
