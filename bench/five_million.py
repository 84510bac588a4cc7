"""Pools of five million windows in one process: ``python -m bench.five_million [WINDOWS]``.

Prints one line of JSON: peak memory of the whole process and bytes of the index per window, CPU
seconds from the channels to the pools, and how many sampled queries equal all pairs.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np

from bench import peers
from lineup_fast import NeighbourIndex, SlidingWindows, kernels

STEPS, K, MAX_RUN, SAMPLE = 96, 8, 19, 5


def main(n: int) -> None:
    windows = SlidingWindows.cut(peers.ett_like(n, STEPS, channels=56), STEPS)
    began = time.process_time()
    z = kernels.features(windows)
    z -= z.mean(axis=0)
    z /= z.std(axis=0)
    featured = time.process_time()
    index = NeighbourIndex(z, windows, max_run=MAX_RUN, decimals=4, rule="window")
    built = time.process_time()
    pools = index.search(K)
    searched = time.process_time()
    place = windows.source.astype(np.int64) * (int(windows.start.max()) + 2 * STEPS) + windows.start
    queries = np.random.default_rng(0).choice(n, SAMPLE, replace=False)
    right = peers.all_pairs(z, place, STEPS - MAX_RUN - 1, K, queries)
    found = {
        "windows": n,
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "index_bytes_per_window": round(index.nbytes / n, 2),
        "features_s": round(featured - began, 1),
        "build_s": round(built - featured, 1),
        "search_s": round(searched - built, 1),
        "equal_queries": f"{(pools[queries] == right).all(axis=1).sum()} of {SAMPLE}",
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
