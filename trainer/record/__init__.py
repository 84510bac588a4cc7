"""What a run writes down and shows: its folder, its numbers, trackers, the terminal."""

from __future__ import annotations

from trainer.record.folder import (
    MAY_CHANGE,
    Best,
    RunFolder,
    check_folder,
    versions,
    write_json,
)

__all__ = ["MAY_CHANGE", "Best", "RunFolder", "check_folder", "versions", "write_json"]
