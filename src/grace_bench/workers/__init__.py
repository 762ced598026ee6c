"""Many runs, in workers: of this machine, of a job that somebody started, or of a Ray cluster."""
