"""Which implementation of an operation runs: the native library, the backends, dispatch, and portable arithmetic."""
