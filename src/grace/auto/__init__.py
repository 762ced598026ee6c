"""Which method for which bucket, chosen by what is measured here: ``grace.attach(model, "auto")``."""
