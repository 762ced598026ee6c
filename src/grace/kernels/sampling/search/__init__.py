"""The search for the units of several tensors, on the device."""
