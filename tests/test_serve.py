"""``lineup-fast serve`` as a process: flags, signals, and single captions of many processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from lineup_fast import cli
from lineup_fast.client import RewardClient
from lineup_fast.corpus import Corpus
from lineup_fast.draw_counter import DrawCounter
from lineup_fast.encoders import ByteEncoder
from lineup_fast.prompts import Recipe
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.reward_callers import Call, ask_at_once
from tests.scripted_server import corpus, serving, started
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer

ROOT = Path(__file__).parents[1]
G = 8
HTTP = httpx.Client(verify=False, trust_env=False, timeout=60)


@pytest.fixture(scope="module", autouse=True)
def _closed_in_the_end() -> Iterator[None]:
    yield
    HTTP.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("serve")
    corpus().save(made / "corpus")
    tok = tokenizer("qwen2")
    model("qwen2", len(tok)).save_pretrained(made / "verifier")
    tok.save_pretrained(made / "verifier")
    return made


def arguments(folder: Path, *more: str) -> list[str]:
    return ["serve", "--corpus", str(folder / "corpus"), "--verifier", str(folder / "verifier"),
            "--port", "0", *more]  # fmt: skip


@contextmanager
def serve(folder: Path, *more: str, **environment: str) -> Iterator[tuple[str, Any]]:
    """The command as a process: its URL and the process."""
    child = subprocess.Popen(
        [sys.executable, "-m", "lineup_fast.cli", *arguments(folder, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**_plain_environment(), **environment},
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        found = re.search(r"ready at (http://127\.0\.0\.1:\d+), (\S+)$", line)
        assert found, line + (child.stderr.read() if child.stderr and child.poll() else "")
        yield found[1], child
    finally:
        child.kill()
        child.communicate()


def _plain_environment() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name != "LINEUP_TOKEN"}


def metrics(url: str) -> dict[str, float]:
    text = HTTP.get(f"{url}/metrics").text
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.M)}


def test_single_captions_of_8_processes_cost_what_one_batch_costs(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    ids = corpus().ids()[:32]
    captions = {item: [f"{item[:4]} says {n} and rises" for n in range(G)] for item in ids}
    flat = [(caption, item) for item in ids for caption in captions[item]]
    verifier = TransformersVerifier(model("llama", 256), ByteEncoder())
    scored = IdentificationReward(
        corpus(), verifier, Recipe(layout="candidates_first", decimals=0, separator=",")
    )
    batched = scored.score([caption for caption, _ in flat], [item for _, item in flat], index=0)
    plan = [
        [Call(caption, item) for item in ids[4 * p : 4 * p + 4] for caption in captions[item]]
        for p in range(8)
    ]
    with serving(scored, DrawCounter(G), group_size=G) as (url, app):
        outputs, _ = ask_at_once([url], plan, tmp_path)
        tally = app.coalescer.tally
    answers = [answer for output in outputs for answer in output["answers"]]
    assert [answer["reason"] for answer in answers] == [None] * 256
    assert [answer["index"] for answer in answers] == [0] * 256  # counted: all G share draw 0
    np.testing.assert_array_equal([answer["reward"] for answer in answers], batched.reward)
    assert tally.scored == 256
    assert tally.prefilled_tokens <= 1.1 * batched.counts["prefilled_tokens"]
    assert tally.prompt_tokens == batched.counts["prompt_tokens"]
    assert tally.batches <= 32


@contextmanager
def scoring(tmp_path: Path, caption: str) -> Iterator[tuple[Any, str, Any]]:
    """A server in the middle of a caption: its process, its URL, the answer to come."""
    ask = {"captions": [caption], "ids": [corpus().ids()[0]], "index": 0}
    with started(str(tmp_path / "draws")) as (child, url), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(HTTP.post, f"{url}/score", json=ask)
        while metrics(url)["lineup_requests_active"] == 0:
            pass
        yield child, url, answer


def test_sigterm_finishes_accepted_work_and_ends_with_0(tmp_path: Path) -> None:
    with scoring(tmp_path, "sleep 2") as (child, url, answer):
        child.send_signal(signal.SIGTERM)
        refused = HTTP.post(f"{url}/score", json={})
        assert refused.status_code == 503
        assert not answer.done()
        assert answer.result().json()["valid"] == [True]
        assert child.wait(30) == 0
        with pytest.raises(httpx.TransportError):
            HTTP.get(f"{url}/health")


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with scoring(tmp_path, "sleep 60") as (child, url, answer):
        child.send_signal(signal.SIGINT)
        while HTTP.get(f"{url}/health").status_code != 503:
            pass
        child.send_signal(signal.SIGINT)
        child.wait(30)
        assert answer.exception(30) is not None or answer.result().status_code == 500


def test_the_command_serves_the_recipe_of_its_flags(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame\n")
    flags = ["--k", "3", "--layout", "candidates_first", "--scoring", "soft", "--seed", "5",
             "--scale", "1.0", "--token-file", str(tmp_path / "token")]  # fmt: skip
    known = Corpus.load(folder / "corpus")
    ids = known.ids()[:3]
    recipe = Recipe(k=3, layout="candidates_first", scoring="soft")
    verifier = TransformersVerifier(str(folder / "verifier"), threads=1)
    here = IdentificationReward(known, verifier, recipe, seed=5, scale=1.0)
    with serve(folder, *flags, "--threads", "1") as (url, child):
        assert HTTP.get(f"{url}/metrics").status_code == 401
        with RewardClient(url, token="sesame") as client:
            got = client.score(["a", "b", "c"], ids, index=2)
            want = here.score(["a", "b", "c"], ids, index=2)
            np.testing.assert_allclose(got.reward, want.reward, atol=1e-5)
            assert got.recipe == want.recipe
            assert got.fingerprints == want.fingerprints
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "host: expected a loopback address where there is no token"),
        (["--engine", "sglang"], "verifier: expected one of --verifier, --engine-url, --vllm-url"),
        (["--group-size", "8"], "counter: expected --group-size and --counter together"),
        (["--counter", "x"], "counter: expected --group-size and --counter together"),
        (["--group-size", "0", "--counter", "x"], "group_size: expected at least 1, got 0"),
        (["--token-file", "nowhere"], "nowhere: No such file or directory"),
        (["--max-body-mb", "0"], "body_bytes: expected at least 1, got 0"),
        (["--deadline-s", "0"], "deadline_s: expected more than 0, got 0.0"),
        (["--gather-ms", "-1"], "gather_s: expected 0 or more"),
        (["--max-batch", "0"], "max_batch: expected at least 1, got 0"),
        (["--max-waiting", "0"], "max_waiting: expected at least 1, got 0"),
        (["--k", "1"], "k: expected 2 to 12, got 1"),
        (["--max-new-tokens", "9000"], "max_new_tokens: expected prompts of at most 4096 tokens"),
        (["--engine-url", "localhost"], "expected http:// URLs, got 'localhost'"),
        (["--verifier", "no/where/at/all"], "verifier: expected a folder or hub id"),
    ],
)
def test_bad_flags_are_one_line(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LINEUP_TOKEN", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    try:
        status = cli.main(arguments(folder, *flags))
    except SystemExit as error:
        status = error.code  # argparse
    finally:
        signal.signal(signal.SIGTERM, before)
    assert status == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_port_in_use_is_said_before_a_model_is_loaded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    before = signal.getsignal(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(arguments(folder, "--port", port, "--verifier", "no/where")) == 2
    signal.signal(signal.SIGTERM, before)
    assert "Address already in use" in capsys.readouterr().err
