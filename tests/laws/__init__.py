from grace.verify import inputs, laws

__all__ = ["inputs", "laws"]
