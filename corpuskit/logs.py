"""The logger of the library: silent until a program that uses corpuskit gives it a handler.

The command line gives it none: it has observers of its own.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger("corpuskit")
LOG.addHandler(logging.NullHandler())  # or Python prints warnings of a program without logging
