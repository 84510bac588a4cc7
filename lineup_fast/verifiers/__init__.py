"""Verifiers: frozen readers that see a caption and K series and pick one.

``base`` holds the protocol; each backend is its own module and is imported by who asks for it.
"""

from __future__ import annotations
