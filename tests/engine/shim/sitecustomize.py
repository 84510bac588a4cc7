"""Lets the torchvision of the package index be imported beside a torch without CUDA.

Python imports a module of this name by itself at start-up when its folder is on PYTHONPATH, so it
reaches every process of the server. torchvision's compiled operators do not load here, and its
Python code wants to describe two of them: they are declared, without a body, just before. So are
four operators of SGLang's kernels for CPUs, which the image processor of the Qwen-VL family wants
to name on its way in, for a model of another family.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
NAMED_ON_IMPORT = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)
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
        kernels = torch.library.Library("sgl_kernel", "FRAGMENT")
        for name in NAMED_ON_IMPORT:
            kernels.define(name + "(Tensor x) -> Tensor")
        _declared.extend((library, kernels))


sys.meta_path.insert(0, DeclaresOperators())
