"""Benchmarks out of files: layouts of the hub data sets, windows, neighbours, what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from lineup_fast import kernels
from lineup_fast.readers import Channel
from trainer.evaluate import benchmark_sources as sources
from trainer.evaluate.benchmark import Benchmark
from trainer.evaluate.benchmark_build import Gathered, Item, make_benchmark
from trainer.evaluate.benchmark_command import BenchmarkConfig, make, run
from trainer.evaluate.cats import cats

_FOLDERS = [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
DATA = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[1])
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")


def _bedtime(folder: Path, name: str, rows: list[tuple[str, str, str]]) -> None:
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["Unnamed: 0", "idx", "series", "annotations"])
        writer.writerows([str(i), *row] for i, row in enumerate(rows))


def test_bedtime_merges_annotations_and_counts_what_it_leaves_out(tmp_path: Path) -> None:
    rows = [("7", "[1.5, 2, 3]", "rises"), ("7", "[1.5, 2, 3]", "goes up"), ("7", "[1.5, 2, 3]",
            "rises "), ("8", "[1, nan, 2]", "gap"), ("9", "[3, 2, 1]", " "), ("9", "[3, 2, 1]",
            "falls")]  # fmt: skip
    _bedtime(tmp_path, "truce_stock", rows)
    found = sources.bedtime(str(tmp_path), sets=["truce_stock"])
    told = {item.source: item.references for item in found.items}
    assert told == {
        "truce_stock/truce_stock_7": ("rises", "goes up"),
        "truce_stock/truce_stock_9": ("falls",),
    }
    assert found.items[0].values.tolist() == [1.5, 2, 3]
    assert {item.group for item in found.items} == {"truce_stock"}
    assert dict(found.dropped) == {
        "rows with a blank annotation": 1,
        "series with a value that is no finite number": 1,
    }


def test_bedtime_draws_the_same_series_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    rows = [(str(i), f"[{i}, 2, 3]", f"text {i}") for i in range(30)]
    drawn = []
    for order in (rows, rows[::-1]):
        _bedtime(tmp_path, "sushi", order)
        found = sources.bedtime(str(tmp_path), sets=["sushi"], per_set=5)
        drawn.append([item.source for item in found.items])
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 5


def test_files_that_are_not_there_are_told_how_to_get(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"truce_stock\.csv.*huggingface.co/datasets/Hartvigsen"):
        sources.bedtime(str(tmp_path))
    with pytest.raises(ValueError, match=r"QA/tasks.json.*huggingface.co/datasets/mhfisher"):
        cats(str(tmp_path))
    with pytest.raises(ValueError, match=r"ETTh2\.csv.*github.com/zhouhaoyi/ETDataset"):
        sources.long_channel("etth2", str(tmp_path))


def test_hub_ids_out_of_reach_are_told_how_to_get(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def away(*args: object, **options: object) -> str:
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", away)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", away)
    with pytest.raises(
        ValueError, match=r"to be in reach, got no route; download truce_stock\.csv"
    ):
        sources.bedtime(sources.BEDTIME_ID)
    with pytest.raises(ValueError, match="to be in reach, got no route; download https"):
        cats("mhfisher/CaTSBench")


def _cats(folder: Path) -> None:
    listed = ", ".join(str(v) for v in range(1, 9))
    text = f"Here is a time series:\n{listed}\n\nWhich plot?"
    options = "Which one?\n(A) [9, 9, 9]\n(B) [1.5, -2, 3, 4, 5, 6, 7, 8]\n"
    rows = [
        {"task_type": "ts_comparison_mean", "ts_name": "crime_1_test", "prompt": "A: B:"},
        {"task_type": "plot_retrieval_same_domain", "ts_name": "crime_1_test", "prompt": text},
        {"task_type": "ts_retrieval_perturbed", "ts_name": "road_injuries_2_test",
         "prompt": "see image", "prompt_no_image": options, "ground_truth": "b"},
        {"task_type": "plot_retrieval_same_domain", "ts_name": "diet_3_test",
         "prompt": "Here is a time series:\n1, 2\n\nx"},
        {"task_type": "caption_retrieval_perturbed", "ts_name": "diet_4_test", "prompt": "none"},
        {"task_type": "plot_retrieval_same_domain", "ts_name": "covid_5_test", "prompt": text},
    ]  # fmt: skip
    (folder / "QA").mkdir()
    (folder / "QA" / "tasks.json").write_text(json.dumps(rows))
    for kind in ("synth_gt_captions", "human_rewritten_captions"):
        (folder / "test_data" / kind).mkdir(parents=True)
        for name in ("crime_1_test", "road_injuries_2_test"):
            file = folder / "test_data" / kind / f"{name}.txt"
            file.write_text(f"{kind} of {name}\n")


def test_cats_takes_series_out_of_questions(tmp_path: Path) -> None:
    _cats(tmp_path)
    found = cats(str(tmp_path))
    assert [(item.source, item.domain, item.references) for item in found.items] == [
        ("cats crime/crime_1_test", "crime", ("synth_gt_captions of crime_1_test",)),
        (
            "cats road_injuries/road_injuries_2_test",
            "road_injuries",
            ("synth_gt_captions of road_injuries_2_test",),
        ),
    ]
    assert found.items[0].values.tolist() == list(range(1, 9))
    assert found.items[1].values.tolist() == [1.5, -2, 3, 4, 5, 6, 7, 8]
    assert dict(found.dropped) == {
        "questions that compare two series": 1,
        "series of fewer than 8 points": 1,
        "series whose values no question shows": 1,
        "series without a reference": 1,
    }


def test_cats_takes_other_references(tmp_path: Path) -> None:
    _cats(tmp_path)
    human = cats(str(tmp_path), references="human")
    assert human.items[0].references == ("human_rewritten_captions of crime_1_test",)
    file = tmp_path / "refs.jsonl"
    file.write_text('{"id": "covid_5_test", "rewritten": "It rises."}\n')
    found = cats(str(tmp_path), references=str(file))
    assert [item.references for item in found.items] == [("It rises.",)]
    file.write_text('{"id": "covid_5_test", "rewritten": " "}\n')
    with pytest.raises(ValueError, match=r"expected one text of covid_5_test .* an empty one"):
        cats(str(tmp_path), references=str(file))


def test_jsonl_of_any_kind_and_of_the_reference_evaluation(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [
        {"series": [1, 2], "references": ["up", "up", ""], "source": "a/b", "start": 5},
        {"series": [2, 1], "references": "down"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    a, b = sources.jsonl(str(file)).items
    assert (a.source, a.start, a.references) == ("a/b", 5, ("up",))
    assert (b.source, b.start, b.references) == ("mine/row 2", 0, ("down",))
    row = {"series_uid": "crime_1", "dataset": "crime", "annotations": ["x"], "series": [1.0, 2.0]}
    file.write_text(json.dumps(row) + "\n")
    (found,) = sources.jsonl(str(file)).items
    assert (found.source, found.domain, found.references) == ("crime/crime_1", "crime", ("x",))
    file.write_text('{"series": [1, 2], "start": "soon"}\n')
    with pytest.raises(
        ValueError, match=r"start: expected a whole number in .*, row 1, got 'soon'"
    ):
        sources.jsonl(str(file))
    file.write_text("not json\n")
    with pytest.raises(ValueError, match=r"mine.jsonl"):
        sources.jsonl(str(file))


def test_windows_leave_room_for_the_horizon_and_cross_no_gap() -> None:
    channel = Channel("s/x", np.arange(100.0), breaks=(40,))
    found = sources.windows(channel, lookback=8, horizon=2, n=None, scale="none")
    starts = [item.start for item in found.items]
    assert starts == [*range(31), *range(40, 91)]
    assert found.dropped["starts whose window crosses a gap"] == 9
    some = sources.windows(channel, lookback=8, horizon=2, n=20, scale="none")
    assert len({item.start for item in some.items}) == 20
    made = make_benchmark("s", some)
    for id_ in made.ids:
        at = made.start(id_)
        assert np.array_equal(made.after(id_, 2), channel.values[at + 8 : at + 10])
    with pytest.raises(ValueError, match=r"windows of 99 \+ 2 steps to fit, got 100"):
        sources.windows(channel, lookback=99, horizon=2, n=None, scale="none")


def test_scales_come_from_the_first_part_only() -> None:
    values = np.concatenate([np.tile([0.0, 1.0, 2.0, 3.0], 15), np.full(40, 50.0)])
    channel = Channel("s/x", values)
    z, how = sources.scaled(channel, "standard", 0.6)
    assert (how["mean"], how["std"]) == (1.5, pytest.approx(np.sqrt(1.25), abs=1e-7))
    assert np.allclose(z * how["std"] + how["mean"], values)
    whole, how = sources.scaled(channel, (0, 100), 0.6)
    assert set(whole) == {0, 33, 67, 100}
    assert (whole[60:] == 100).all()  # clipped
    with pytest.raises(ValueError, match="fit_frac: expected a part that varies"):
        sources.scaled(Channel("s/x", np.ones(9)), "standard", 0.6)
    flat = sources.windows(channel, lookback=8, horizon=0, n=None, scale=(0.0, 100.0))
    assert flat.dropped["starts whose window is flat after rounding"] > 30
    assert all(np.ptp(item.values) >= 5 for item in flat.items)


def _items(n: int = 40, group: str = "") -> list[Item]:
    rng = np.random.default_rng(3)
    return [Item(rng.normal(size=16).cumsum(), f"s/{i}", group=group) for i in range(n)]


def test_reference_neighbours_are_the_nearest_whatever_they_share() -> None:
    items = _items()
    items += [Item(items[0].values, "copy/0"), Item(np.roll(items[1].values, 1), "copy/1")]
    made = make_benchmark("b", Gathered(items), neighbours="reference")
    values = np.stack([item.values for item in items])
    phi = kernels.features(values)
    z = (phi - phi.mean(axis=0)) / phi.std(axis=0)
    for row, item in enumerate(items):
        distance = np.linalg.norm(z - z[row], axis=1)
        order = [i for i in np.argsort(distance, kind="stable") if i != row]
        assert made.neighbours(item.id) == [items[i].id for i in order[:8]]
    assert made.neighbours(items[0].id)[0] == items[40].id  # the duplicate
    assert "print alike" in made.not_asked[items[0].id]


def test_filtered_neighbours_share_little_and_repeat_nothing() -> None:
    items = _items()
    items += [Item(items[0].values, "copy/0"), Item(np.roll(items[1].values, 1), "copy/1")]
    made = make_benchmark("b", Gathered(items), neighbours="filtered")
    assert made.not_asked == {}
    assert made.neighbours(items[40].id) == made.neighbours(items[0].id)
    for item in items:
        pool = [made.series(other) for other in made.neighbours(item.id)]
        assert len({tuple(values) for values in pool}) == len(pool) == 8
        assert all(kernels.longest_run(item.values, v, decimals=4) <= 3 for v in pool)


def test_neighbours_stay_in_their_group_and_small_groups_are_told() -> None:
    items = [*_items(10, "a"), *(Item(i.values + 1, f"t/{i.source}", group="b") for i in _items(3))]
    with pytest.raises(ValueError, match="at least 4 series of 16 steps in b, got 3"):
        make_benchmark("x", Gathered(items), neighbours="reference")
    made = make_benchmark("x", Gathered(items))
    group = {item.id: item.group for item in items}
    assert all(group[other] == group[i] for i in made.ids for other in made.neighbours(i))
    assert {group[i] for i in made.not_asked} == {"b"}
    assert set(made.not_asked.values()) == {"expected at least 3 neighbours, got 2"}
    assert len(made.ids) == 13


def test_long_series_are_kept_but_not_asked_about() -> None:
    made = make_benchmark("x", Gathered(_items()), max_asked_steps=15)
    assert set(made.not_asked.values()) == {"16 steps, questions are asked up to 15"}
    assert made.asked_ids == []


def test_equal_ids_are_merged_with_their_references() -> None:
    items = [*_items(6), *(Item(i.values, i.source, 0, ("again",)) for i in _items(1))]
    made = make_benchmark("x", Gathered(items))
    assert (len(made.ids), made.meta["merged"]) == (6, 1)
    assert made.references == {items[0].id: ("again",)}
    with pytest.raises(ValueError, match="x: expected at least one series"):
        make_benchmark("x", Gathered())


@needs_data
def test_the_command_makes_windows_and_described_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = BenchmarkConfig("etth2", str(DATA), tmp_path / "e", n=50, lookback=24, horizon=6)
    make(config)
    made = Benchmark.load(tmp_path / "e")
    assert "etth2: 50 series, 0 references" in capsys.readouterr().out
    assert (len(made.ids), len(made.asked_ids), made.meta["scale"]) == (50, 50, "standard")
    assert made.corpus.ids("test") == made.ids  # what `trainer caption --split all` captions
    assert run(config) == 0  # replaced
    truce = BenchmarkConfig("truce", str(DATA / "captions.parquet"), tmp_path / "t", n=40)
    assert run(truce) == 0
    assert "truce: 80 series, 23" in capsys.readouterr().out
    assert len(sources.long_channel("saugeen", str(DATA), rows=23711).values) == 23711
    with pytest.raises(ValueError, match="rows: expected 1 to 23741, got 23742"):
        sources.long_channel("saugeen", str(DATA), rows=23742)
    with pytest.raises(ValueError, match=r"column: expected one of HUFL.*, got 'flow'"):
        sources.long_channel("etth2", str(DATA), "flow")
    nothing = BenchmarkConfig("etth2", str(tmp_path), tmp_path / "n")
    assert run(nothing) == 2
    assert "get it from" in capsys.readouterr().err
