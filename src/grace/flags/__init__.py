"""Infinities, NaN and refusals: found on the device, agreed on by all ranks, known to the host now or later."""
