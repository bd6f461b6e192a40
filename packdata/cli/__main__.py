"""``python -m packdata.cli`` is the ``packdata`` command."""

import sys

from . import main

sys.exit(main())
