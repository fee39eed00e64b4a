"""What tests of Helmr, and of programs on top of it, share."""
