# Types of the native module; csrc/bind.cpp says what the functions do.
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from lineup_fast.charts import ChartStyle

_Floats: TypeAlias = npt.NDArray[np.float64]
_Ints: TypeAlias = npt.NDArray[np.int32]
_Longs: TypeAlias = npt.NDArray[np.int64]
_Ragged: TypeAlias = tuple[_Ints, _Longs]
_Series: TypeAlias = _Floats | tuple[_Floats, _Longs, int]

def features(series: _Series, threads: int = 0, out: _Floats | None = None) -> _Floats: ...
def cuda_features(series: _Series, out: _Floats | None = None) -> _Floats: ...
def require_cuda() -> None: ...
def longest_run(a: _Floats, b: _Floats, decimals: int) -> int: ...

@final
class NeighbourIndex:
    def __init__(
        self,
        z: _Floats,
        series: _Series,
        max_run: int,
        decimals: int,
        rule: str,
        source: _Ints,
        start: _Longs,
        group: _Ints,
        threads: int = 0,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def search(self, k: int, threads: int = 0) -> _Ints: ...
    def query(
        self,
        z: _Floats,
        series: _Series,
        k: int,
        source: _Ints,
        start: _Longs,
        group: _Ints,
        threads: int = 0,
    ) -> _Ints: ...
    def admissible(self, pool: _Ints, threads: int = 0) -> npt.NDArray[np.bool_]: ...

def neighbours(
    z: _Floats,
    series: _Series,
    k: int,
    max_run: int,
    decimals: int,
    rule: str,
    source: _Ints,
    start: _Longs,
    group: _Ints,
    threads: int = 0,
) -> _Ints: ...
def cuda_neighbours(
    z: _Floats,
    series: _Series,
    k: int,
    max_run: int,
    decimals: int,
    rule: str,
    source: _Ints,
    start: _Longs,
    group: _Ints,
    threads: int = 0,
) -> _Ints: ...
def format_numbers(values: _Floats, decimals: int, separator: str) -> str: ...

@final
class Numerals:
    def __init__(
        self,
        digits: _Ragged,
        first: _Ints,
        first_negative: _Ints,
        separator: _Ints,
        separator_negative: _Ints,
        dot: _Ints,
        group: int,
    ) -> None: ...
    def ids(self, values: _Floats, decimals: _Ints, threads: int = 0) -> tuple[_Ints, _Longs]: ...
    def prompts(
        self,
        layout: int,
        head: _Ints,
        middle: _Ints,
        tail: _Ints,
        labels: _Ragged,
        values: _Floats,
        decimals: _Ints,
        captions: _Ragged,
        out: _Ints | None = None,
        threads: int = 0,
    ) -> tuple[_Ints, _Longs]: ...

def prompt_tree(
    layout: int,
    head: _Ints,
    middle: _Ints,
    tail: _Ints,
    labels: _Ragged,
    blocks: _Ragged,
    block_end: _Ints,
    captions: _Ragged,
) -> tuple[_Ints, _Longs, _Ints, _Ints]: ...
def nice_ticks(
    lo: float, hi: float, n: int, integer: bool = False
) -> tuple[_Floats, list[str]]: ...
def render_charts(
    series: list[_Floats], style: ChartStyle, out: npt.NDArray[np.uint8], threads: int = 0
) -> None: ...
def patches(
    images: npt.NDArray[np.uint8],
    out: npt.NDArray[np.float32] | npt.NDArray[np.uint16],
    patch: int,
    merge: int,
    temporal: int,
    threads: int = 0,
) -> None: ...
def chart_patches(
    series: list[_Floats],
    style: ChartStyle,
    out: npt.NDArray[np.float32] | npt.NDArray[np.uint16],
    threads: int = 0,
) -> None: ...
def png(image: npt.NDArray[np.uint8]) -> bytes: ...
def build_info() -> dict[str, str | int | None]: ...
