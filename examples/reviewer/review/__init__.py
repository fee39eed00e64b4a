"""What the reviewer does: git, the linter, the tests, and the words about them."""
