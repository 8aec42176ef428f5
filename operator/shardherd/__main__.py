"""`python -m shardherd`: the command line. Decides nothing."""

from __future__ import annotations

import sys

from shardherd.cli import main

if __name__ == "__main__":
    sys.exit(main())
