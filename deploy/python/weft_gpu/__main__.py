# SPDX-License-Identifier: MIT OR Apache-2.0
"""The `weft` command: becomes the program in this package."""

import os
import sys

from . import WeftError, program


def main():
    try:
        path = str(program())
    except WeftError as why:
        sys.exit(f"weft: {why}")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
