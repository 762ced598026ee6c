"""Results for people: tables, progress, figures."""
