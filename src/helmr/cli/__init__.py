"""The command line. Everything but click is imported by the command that needs it, so that `--help` is quick. SPEC 13."""
