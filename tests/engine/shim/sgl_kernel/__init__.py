"""In place of SGLang's package of CUDA kernels, which exists for machines with a GPU only.

SGLang imports names from it that its CPU path with torch's own attention never calls. Whatever is
called says so, loudly: nothing is computed here.
"""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*args: object, **options: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    return kernel
