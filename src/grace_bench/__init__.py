"""Training and measuring: tasks, real worker processes, tables and figures."""
