"""What every benchmark runs under."""

from __future__ import annotations

import os

# Peers start threads of their own as they are loaded; one thread is what is compared.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ.setdefault(name, "1")
