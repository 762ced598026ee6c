"""Time that tests wait for what always comes, unless there is a defect."""

# Seconds. On a machine that others use, too, a process may be ten times slower than alone, and a thread may not run for long;
# a test that passes never waits so long. Less than pytest's own limit (pyproject.toml), so that a test can say what it missed.
PATIENCE = 600.0
