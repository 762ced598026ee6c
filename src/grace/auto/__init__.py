"""A method for each bucket, chosen by what is measured here: ``grace.attach(model, "auto")``."""
