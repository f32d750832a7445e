# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fixtures of the cases of the findings, in addition to a scene."""

import built
import pytest

# Seconds for a case that may have to compile all packages first.
COMPILING = 2400


def pytest_collection_modifyitems(items):
    for item in items:
        if "rust" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(COMPILING))


@pytest.fixture
def rust():
    """Plays unit tests of a package: see built.rust. Here, so that a compilation, which takes
    minutes, is not a part of the first case's time."""
    built.programs()
    return built.rust
