# SPDX-License-Identifier: MIT OR Apache-2.0
"""The table of clients (tests/clients/clients.toml), for every Python that a GPU machine may have.

Before Python 3.11 the standard library cannot read TOML. The bundle carries the same table as JSON,
made from the same file.
"""

import hashlib
import json
import sys

from harness import paths

TABLE = paths.CLIENTS / "clients.toml"

# Its place in the bundle.
PLACE = "clients.json"


class Trouble(RuntimeError):
    """The reason why the table cannot be read, in one line."""


def sum_of_table():
    return hashlib.sha256(TABLE.read_bytes()).hexdigest()


def tables():
    """{name of a client: its entry}, in the file's order."""
    try:
        import tomllib
    except ModuleNotFoundError:
        return carried(paths.TARGET / PLACE)
    with open(TABLE, "rb") as file:
        return tomllib.load(file)


def carried(file):
    """The table in the bundle. Raises Trouble if it does not exist or belongs to another
    clients.toml.
    """
    version = ".".join(map(str, sys.version_info[:2]))
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise Trouble(f"Python {version} reads no TOML, and {file} is not there or damaged ({error}): run scripts/gpu-bundle") from error
    if found["of"] != sum_of_table():
        raise Trouble(f"{file} was made from another clients.toml: run scripts/gpu-bundle")
    return found["clients"]


def as_json():
    """The text for the bundle, written by a Python that reads TOML."""
    return json.dumps({"of": sum_of_table(), "clients": tables()}, indent=1) + "\n"
