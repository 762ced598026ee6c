"""Choice of the implementation of an operation: the native library, the backends, dispatch, and portable arithmetic."""
