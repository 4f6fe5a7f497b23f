"""``python -m chakram``."""

from ._main import main

main()
