"""`python -m smartswap`."""

from .command import main

main()
