"""The runtime of a Session process: one Turn at a time, from its frame to its settlement."""
