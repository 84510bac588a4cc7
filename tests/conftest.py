"""What several test files ask for: instruction sets one after the other, torch on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lineup_fast import _core

ISAS = ("plain", "avx2", "avx512")  # each includes those before it


def _known() -> tuple[str, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LINEUP_ISA", raising=False)
        widest = str(_core.build_info()["isa"]).split()[-1]
    return ISAS[: ISAS.index(widest) + 1] if widest in ISAS else ("plain",)


KNOWN = _known()


@pytest.fixture(scope="module", params=KNOWN)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Everything that uses it runs under each of this processor's instruction sets.

    The numpy twins know nothing of it, so that what is compared with them is compared for all.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINEUP_ISA", request.param)
        yield request.param


_lacking = [pytest.param(isa) for isa in ISAS if isa not in KNOWN]


@pytest.fixture(params=_lacking or [pytest.param("", marks=pytest.mark.skip("it has them all"))])
def lacking_isa(request: pytest.FixtureRequest) -> str:
    """An instruction set that this processor lacks."""
    return str(request.param)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch on one thread: over a tiny model several wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
