"""Reading files: what is found in them, and what is refused with file, row, column and reason."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from lineup_fast import readers
from lineup_fast.readers import Channel, Refusal, read

SHARED = Path(
    os.environ.get("LINEUP_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _by_source(channels: list[Channel]) -> dict[str, list[float]]:
    return {channel.source: channel.values.tolist() for channel in channels}


def test_wide_csv(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "load.csv",
        "date,a,b,note\n2020-01-01,1,2.5,x\n2020-01-02,3,4.5,y\n2020-01-03,5,6.5,z\n",
    )
    channels, refusals = read(path)
    assert _by_source(channels) == {"load/a": [1.0, 3.0, 5.0], "load/b": [2.5, 4.5, 6.5]}
    assert [(r.row, r.column) for r in refusals] == [(1, "note")]
    assert "not numeric" in refusals[0].reason


def test_compressed_and_semicolons(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x.csv.gz", "wt", encoding="utf-8") as file:
        file.write("\ufefft;v\n1;2\n2;4\n3;8\n")
    channels, _ = read(tmp_path / "x.csv.gz")
    assert _by_source(channels)["x/v"] == [2.0, 4.0, 8.0]


def test_long_csv_is_sorted_by_time_and_grouped(tmp_path: Path) -> None:
    rows = ["time,sensor,count"]
    for day in (3, 1, 2, 4):
        rows += [f"2021-05-0{day},north,{day}", f"2021-05-0{day},south,{10 * day}"]
    channels, refusals = read(_write(tmp_path / "long.csv", "\n".join(rows)))
    assert _by_source(channels) == {
        "long/north": [1.0, 2.0, 3.0, 4.0],
        "long/south": [10.0, 20.0, 30.0, 40.0],
    }
    assert refusals == []


def test_time_gaps_leave_breaks_but_weekends_do_not(tmp_path: Path) -> None:
    hours = [f"2020-01-01T{h:02}:00,{h}" for h in range(20) if h != 12]
    hourly, _ = read(_write(tmp_path / "h.csv", "\n".join(["time,v", *hours])))
    assert hourly[0].breaks == (12,)
    days = [f"2024-01-{d:02},{d}" for d in range(1, 29) if d % 7 not in (6, 0)]
    daily, _ = read(_write(tmp_path / "d.csv", "\n".join(["date,v", *days])))
    assert daily[0].breaks == ()


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("", "missing"),
        ("NA", "missing"),
        ("oops", "not a number: 'oops'"),
        ("nan", "missing"),
        ("inf", "expected a finite number up to 1e150, got inf"),
        ("1e200", "expected a finite number up to 1e150, got 1e+200"),
    ],
)
def test_bad_cells_are_cut_out_with_row_column_reason(
    tmp_path: Path, cell: str, reason: str
) -> None:
    path = _write(tmp_path / "bad.csv", f"a,b\n1,1\n2,2\n{cell},3\n4,4\n5,5\n")
    channels, refusals = read(path)
    a, b = channels
    assert a.values.tolist() == [1.0, 2.0, 4.0, 5.0]
    assert a.breaks == (2,)
    assert b.breaks == ()
    assert refusals == [Refusal("bad.csv", 3, "a", reason)]
    assert str(refusals[0]) == f"bad.csv: row 3 column 'a': {reason}"


def test_ragged_rows_and_counts(tmp_path: Path) -> None:
    path = _write(tmp_path / "r.csv", "a,b\n1,1\n2\n3,3\n,4\n,5\n6,6\n")
    channels, refusals = read(path)
    assert channels[0].values.tolist() == [1.0, 3.0, 6.0]
    assert channels[0].breaks == (1, 2)
    assert refusals[0] == Refusal("r.csv", 2, "", "expected 2 cells, got 1")
    missing = next(r for r in refusals if r.column == "a")
    assert (missing.row, missing.count) == (2, 3)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("e.csv", "", "header"),
        ("e.csv", "a,a\n1,2\n", "distinct column names"),
        ("e.csv", "a,b\n", "columns of numbers"),
        ("e.csv", "a\nx\ny\n", "columns of numbers"),
        ("e.jsonl", "\n\n", "JSON object"),
        ("e.xls", "a", "expected a name ending in"),
    ],
)
def test_useless_files_are_errors(tmp_path: Path, name: str, text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        read(_write(tmp_path / name, text))
    with pytest.raises(FileNotFoundError, match="hub id"):
        read(tmp_path / "nowhere.csv")


def test_jsonl_tables_and_lists(tmp_path: Path) -> None:
    lines = [json.dumps({"time": f"2020-01-0{i}", "v": i}) for i in range(1, 5)]
    channels, refusals = read(_write(tmp_path / "t.jsonl", "\n".join([*lines, "{broken"])))
    assert _by_source(channels)["t/v"] == [1.0, 2.0, 3.0, 4.0]
    assert refusals[0].row == 5
    assert refusals[0].reason.startswith("not JSON")
    series = [
        {"item_id": "a", "start": "2020-01-01", "target": [1, 2, 3]},
        {"item_id": "b", "start": "2020-01-01", "target": [1, None, 3, 4]},
        {"item_id": "c", "start": "2020-01-01", "target": []},
    ]
    channels, refusals = read(
        _write(tmp_path / "s.jsonl", "\n".join(json.dumps(row) for row in series))
    )
    assert _by_source(channels) == {"s/a": [1.0, 2.0, 3.0], "s/b": [1.0, 3.0, 4.0]}
    assert not channels[0].window
    assert channels[1].breaks == (1,)
    assert [(r.row, r.reason) for r in refusals] == [
        (2, "value 2: missing"),
        (3, "no values"),
    ]


def _fragments() -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    return [
        {
            "SampleID": 7 * i,
            "OT": rng.normal(size=24).round(3).tolist(),
            "TimeInterval": 24,
            "Text": f"caption {i}",
            "TextEmbedding": [0.1] * 8,
        }
        for i in range(6)
    ]


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "hub"])
def test_fragments_with_captions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, as_text: bool
) -> None:
    """The schema of TSFragment-600K; list columns become text in CSV by themselves."""
    rows = _fragments()
    if as_text:
        rows = [row | {"OT": str(row["OT"]), "TextEmbedding": "[0.1, 0.2]"} for row in rows]
    path = tmp_path / f"embedding_cleaned_etth1_24.{kind}"
    if kind in ("parquet", "hub"):
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
        if kind == "hub":
            config = pytest.importorskip("datasets").config
            monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
            path = tmp_path / "embedding_cleaned_etth1_24"
            path.mkdir()
        parquet.write_table(table, path / "a.parquet" if kind == "hub" else path)
    elif kind == "jsonl":
        _write(path, "\n".join(json.dumps(row) for row in rows))
    else:
        cells = [
            [str(row["SampleID"]), f'"{row["OT"]}"', "24", str(row["Text"]), '"[0.1]"']
            for row in rows
        ]
        head = "SampleID,OT,TimeInterval,Text,TextEmbedding"
        _write(path, "\n".join([head, *(",".join(row) for row in cells)]))
    channels, refusals = read(path)
    assert refusals == []
    assert [c.caption for c in channels] == [f"caption {i}" for i in range(6)]
    assert [c.start for c in channels] == [7 * i for i in range(6)]
    assert {c.source for c in channels} == {"embedding_cleaned_etth1/OT"}
    assert all(c.window for c in channels)
    np.testing.assert_array_equal(channels[3].values, _fragments()[3]["OT"])


def test_fragment_with_nan_is_refused_whole(tmp_path: Path) -> None:
    rows = _fragments()
    rows[2]["OT"] = str([1.0, float("nan"), float("inf"), 2.0])
    path = _write(tmp_path / "f.jsonl", "\n".join(json.dumps(row) for row in rows))
    channels, refusals = read(path)
    assert len(channels) == 5
    assert refusals == [Refusal("f.jsonl", 3, "OT", "value 2: missing (and 1 more)")]


def test_clean_cuts_and_refuses() -> None:
    channel = Channel("s/a", np.array([1.0, 2.0, np.nan, 3.0, 4.0, np.inf, 5.0]), breaks=(1, 4))
    (kept,), (refusal,) = readers.clean(channel)
    assert kept.values.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert kept.breaks == (1, 2, 3, 4)
    assert (refusal.row, refusal.count) == (3, 2)
    assert "got nan" in refusal.reason
    window = Channel("s/b", np.array([1.0, np.nan]), window=True)
    assert readers.clean(window)[0] == []
    assert readers.clean(Channel("s/c", np.array([])))[1][0].reason.startswith("no values")


SHAPES = {
    "etth1.csv.gz": (7, 121_940),
    "ecb_fx.parquet": (17, 121_142),
    "eia_petroleum.parquet": (9, 9_252),
    "pedestrian.parquet": (4, 66_037),
    "m4_hourly.parquet": (414, 373_372),
    "fragments.parquet": (10_000, 559_968),
    "captions.parquet": (2_460, 29_520),
}


@pytest.mark.parametrize("name", SHAPES)
def test_real_files(name: str) -> None:
    if not (SHARED / name).is_file():
        pytest.skip("shared data not here")
    pytest.importorskip("pyarrow")
    channels, refusals = read(SHARED / name)
    assert (len(channels), sum(len(c.values) for c in channels)) == SHAPES[name]
    assert refusals == []
    assert all(c.window for c in channels) == (name in ("fragments.parquet", "captions.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("latin.csv", "größe\n1\n".encode("latin-1"), "latin.csv: expected UTF-8"),
        ("plain.csv.gz", b"a\n1\n", "plain.csv.gz: expected a whole .csv.gz file"),
        ("cut.csv.gz", gzip.compress(b"a\n" + b"1\n" * 999)[:-9], "cut.csv.gz: expected a whole"),
        ("text.parquet", b"a\n1\n", "text.parquet: expected a Parquet file"),
        ("deep.jsonl", b"[" * 100_000, "deep.jsonl: expected a JSON object"),
        ("nested.jsonl", b'{"values": [[1, 2], [3, 4]]}\n' * 3, "value 1: not a number"),
        ("quoted.jsonl", b'{"values": ["1", "2"]}\n' * 3, "column is not numeric"),
    ],
)
def test_damaged_files_are_errors_that_name_the_file(
    tmp_path: Path, name: str, content: bytes, match: str
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=match):
        read(tmp_path / name)


def test_cells_that_are_no_list_are_refused_among_lists(tmp_path: Path) -> None:
    rows = ['{"values": [1, 2, 3]}'] * 20
    rows += ['{"values": 5}', '{"values": [1, 2, 1%s]}' % ("0" * 400)]
    (tmp_path / "x.jsonl").write_text("\n".join(rows))
    channels, refusals = read(tmp_path / "x.jsonl")
    assert len(channels) == 21
    assert [refusal.row for refusal in refusals] == [21, 22]
    assert "expected a list of numbers, got 5" in refusals[0].reason
    assert "up to 1e150, got inf" in refusals[1].reason


def test_times_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    lines = [f"{month}/1/2020,{month * month % 7}" for month in range(1, 13)]
    (tmp_path / "x.csv").write_text("date,v\n" + "\n".join(lines))
    channels, refusals = read(tmp_path / "x.csv")
    assert [channel.source for channel in channels] == ["x/v"]
    assert [refusal.column for refusal in refusals] == ["date"]
    assert "times not understood" in refusals[0].reason


def test_a_missing_file_is_not_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lineup_fast.readers._read_hub", lambda name: pytest.fail(name))
    with pytest.raises(FileNotFoundError, match="expected a file"):
        read("data/missing.csv")
