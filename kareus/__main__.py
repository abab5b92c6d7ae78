"""`python -m kareus` is the command `kareus`."""

from kareus.cli import main

main()
