"""`python -m helmr.cli` is `helmr`."""

from helmr.cli.main import main

main()
