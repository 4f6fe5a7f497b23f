"""The command ``chakram``, in this process."""

from __future__ import annotations

import sys

from . import _chakram


def main() -> None:
    """Runs the command line with the arguments of this process."""
    sys.exit(_chakram.main(["chakram", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
