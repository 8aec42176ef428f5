"""Entry point of `python -m shardherd.worker`. Decides nothing."""

import sys

from shardherd.worker.starting import main

sys.exit(main(sys.argv[1:]))
