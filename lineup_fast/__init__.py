"""The identification reward for time-series captioners: fast, exact, embeddable.

Importing this package needs numpy alone and has no side effects: public names are imported from
their modules, for example ``from lineup_fast.corpus import Corpus``.
"""

from __future__ import annotations

__version__ = "0.1.0"
