"""Networks of a chosen speed on one machine, and a model of any network."""
