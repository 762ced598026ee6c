"""How long a step takes: links, what collectives and codecs cost, and the timeline that plays them against the model."""
