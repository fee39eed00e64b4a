"""The rules, pure: values in, decisions out. No clock, no I/O."""
