"""Documented errors that no other test meets on its way."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lineup_fast import charts, gallery, hub, kernels, scoring
from lineup_fast.candidates import CandidateError, CandidateSet, draw, tell_apart
from lineup_fast.corpus import build
from lineup_fast.encoders import ByteEncoder, FastEncoder
from lineup_fast.prompt_tokens import PromptBuilder, SeamError, cut
from lineup_fast.prompts import Recipe
from lineup_fast.readers import read
from lineup_fast.rewards import IdentificationReward
from lineup_fast.store import Corpus
from lineup_fast.tables import Channel
from lineup_fast.verifiers.scripted import ScriptedVerifier
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.toy_models import model
from tests.toy_tokenizers import CHATML, tokenizer


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    channels = [Channel(f"set{i}/x", rng.normal(size=120).cumsum().round(2)) for i in range(4)]
    return build(channels, lengths=[12])


def _always_a(caption: str, candidates: CandidateSet, position: int) -> list[float]:
    return [1.0, 0.0, 0.0, 0.0]


class _Pairs(ByteEncoder):
    """Two characters to a token."""

    def encode(self, text: str) -> Any:
        ids, ends = super().encode(text)
        return ids[::2], np.minimum(ends[::2] + 1, len(text))


def test_a_text_is_cut_between_tokens_only() -> None:
    assert [piece.size for piece in cut(_Pairs(), "abcdef", [2, 4])] == [1, 1, 1]
    for place in (0, 3):
        with pytest.raises(SeamError, match="text: expected a token boundary after"):
            cut(_Pairs(), "abcdef", [place])


def test_a_chat_template_that_changes_the_text_is_refused() -> None:
    encoder = copy.copy(tokenizer("qwen2"))  # it is kept for other tests
    encoder.chat_template = CHATML.replace("m['content']", "m['content'] | upper")
    with pytest.raises(ValueError, match="tokenizer: expected a chat template that keeps the user"):
        FastEncoder(encoder).prompt_text("Which of them?")


@pytest.mark.parametrize(("module", "name"), [("pyarrow", "a.parquet"), ("datasets", "me/data")])
def test_a_missing_extra_says_how_to_get_it(
    module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if module == "pyarrow":
        Path(name).write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{name}: .*pip install lineup-fast\[data\]"):
        read(name)


def test_a_hub_data_set_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def nothing(name: str) -> Any:
        raise OSError("no such data set")

    monkeypatch.setattr(datasets, "load_dataset", nothing)
    with pytest.raises(ValueError, match="me/data: expected a Hugging Face data set, got no such"):
        read("me/data")
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"a": None, "b": None})
    with pytest.raises(ValueError, match="me/data: expected a split named train, got"):
        read("me/data")


def test_distractors_that_cannot_be_had() -> None:
    walk = np.arange(40.0) ** 2
    same = build([Channel("set/x", np.tile(walk, 3))], lengths=[40], k=2, stride=40)
    item = same.ids(k=1)[0]
    with pytest.raises(CandidateError, match="expected at least 3 admissible series, got 0"):
        draw(same, item, k=4, seed=0, index=0, kind="random")
    with pytest.raises(ValueError, match="kind: expected k up to 4 with 'synthetic', got k=5"):
        draw(same, item, k=5, seed=0, index=0, kind="synthetic")
    with pytest.raises(ValueError, match="decimals: expected auto or 0 to 12, got 'few'"):
        tell_apart(np.ones((2, 3)), "few")


def test_charts_go_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="output: expected a folder, got"):
        gallery.write({"a": np.ones(3)}, tmp_path / "file", charts.TINY_STYLE)


def test_every_data_set_cannot_be_held_out() -> None:
    channels = [Channel(f"set{i}/x", np.arange(60.0) + i) for i in range(3)]
    with pytest.raises(ValueError, match="test_sources: expected at least one data set left"):
        build(channels, lengths=[12], test_sources=["set0", "set1", "set2"])


def test_a_script_gives_one_logit_per_candidate(corpus: Corpus) -> None:
    item = corpus.ids()[0]
    short = IdentificationReward(corpus, ScriptedVerifier(lambda *_: [1.0, 0.0]))
    with pytest.raises(ValueError, match=r"script: expected 4 logits, got shape \(2,\)"):
        short.score(["a"], [item])
    builder = PromptBuilder(ByteEncoder())
    tree = builder.tree(np.ones((4, 3)), 0, builder.caption_ids(["a"]))
    with pytest.raises(ValueError, match="groups: expected the captions and candidates"):
        ScriptedVerifier(_always_a).score([tree], builder.labels)


def test_a_failure_of_the_model_is_raised_and_makes_captions_invalid(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = TransformersVerifier(model("llama"), ByteEncoder(), shared=False)

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(verifier.model, "forward", fails)
    builder = PromptBuilder(ByteEncoder())
    tree = builder.tree(np.ones((4, 3)), 0, builder.caption_ids(["a"]))
    with pytest.raises(RuntimeError, match="out of memory"):
        verifier.score([tree], builder.labels)
    batch = IdentificationReward(corpus, verifier).score(["a"], [corpus.ids()[0]])
    assert batch.valid.tolist() == [False]
    assert "out of memory" in str(batch.reason[0])
    assert np.isnan(batch.reward[0])


@pytest.mark.parametrize("kind", [PreTrainedTokenizerFast, AutoTokenizer])
def test_a_folder_without_a_model_is_refused(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="verifier: expected a folder or hub id of a model"):
        hub.from_pretrained(kind, tmp_path)
    with pytest.raises(ValueError, match="verifier: expected a folder or hub id of a model"):
        hub.load_tokenizer(tmp_path)


def test_what_a_verifier_is_made_of() -> None:
    with pytest.raises(ValueError, match="threads: expected at least 1, got 0"):
        TransformersVerifier(model("llama"), ByteEncoder(), threads=0)


def test_folders_of_corpora(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="split: expected one of train, val, test, got 'dev'"):
        corpus.ids("dev")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="folder: expected another than the current one"):
        corpus.save(".")
    corpus.save("c")
    document = json.loads(Path("c/corpus.json").read_text())
    document["settings"]["format"] = 0
    Path("c/corpus.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="expected corpus format"):
        Corpus.load("c")


def test_files_of_captions(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    for text, error in (
        ("", "expected at least one caption, got none"),
        ("{", ":1: expected a JSON object, got"),
        ('{"id": "a", "caption": "x"}\n[]', ":2: expected "),
        ('{"id": "a"}', ":1: expected "),
        ('{"id": 3, "caption": "x"}', ":1: expected "),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=error):
            scoring.read_captions(path)
    reward = IdentificationReward(corpus, ScriptedVerifier(_always_a))
    with pytest.raises(ValueError, match="captions: expected ids of the corpus, got 1 unknown"):
        scoring.score_captions(reward, [("nobody", "x")])


def test_more_rows_or_labels_than_there_are() -> None:
    with pytest.raises(ValueError, match="k: expected 2 to"):
        Recipe(k=1)
    with pytest.raises(ValueError, match="threads: expected 0 to 1024, got 1025"):
        kernels.features([[1.0]], threads=1025)
    with pytest.raises(ValueError, match="out: expected writable, C-contiguous uint8"):
        charts.render([[1.0]], out=np.empty((1, 2, 3, 3), np.uint8))
