"""What runs inside a Computer: supervisor, zygotes, Session processes. Standard library only."""
