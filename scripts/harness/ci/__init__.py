"""Code of the scripts that check the tree, and of the run of all tests."""
