"""The rotation itself, of one tensor and of many: what the kernels of rotated codes begin and end with."""
