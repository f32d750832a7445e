# SPDX-License-Identifier: MIT OR Apache-2.0
"""Code of the scripts that check the tree, and of the run of all tests."""
