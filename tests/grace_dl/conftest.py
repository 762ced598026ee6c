from __future__ import annotations

collect_ignore = ["scripts"]  # they run under grace migrate
