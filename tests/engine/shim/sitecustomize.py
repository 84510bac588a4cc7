"""Lets the torchvision of the package index be imported beside a torch without CUDA.

Python imports a module of this name by itself at start-up when its folder is on PYTHONPATH, so it
reaches every process of the server. torchvision's compiled operators do not load here, and its
Python code wants to describe two of them: they are declared, without a body, just before.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared = []  # torch forgets a library that nobody holds


class DeclaresOperators(MetaPathFinder):
    """Finds nothing; when torchvision is looked for, declares what it lacks and steps aside."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Called for every import that is not loaded yet."""
        if fullname != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(name + NMS)
        _declared.append(library)


sys.meta_path.insert(0, DeclaresOperators())
