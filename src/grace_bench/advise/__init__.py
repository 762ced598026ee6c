"""``grace advise``: which method pays for a model, on a link, with a number of workers; without a cluster."""
