"""The report of a run, from a small run folder written here, looked at in a real browser."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import candidates, charts, corpus
from lineup_fast.readers import Channel
from trainer.report.command import main
from trainer.report.examples import candidate_probs, chosen, marked
from trainer.report.page import build
from trainer.report.run import read_run

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
STEPS, VALIDATED = 12, (0, 6, 12)
HOSTILE = [
    "<script>document.title = 'owned'; console.log('owned')</script>Starts at 40.",
    "<img src=x onerror=\"document.title='owned'\">",
    "</blockquote></script></style><h1 id='intruder'>big</h1>",
    "{{ 7 * 7 }} {% raw %} ${7*7} &amp; \" ' `",
    "\u202eright to left\u202c \x00 \U0001f4c8 שלום",
    "x" * 3000,
    "",
    "Peaks at 50 at step 3, ends at 60.",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, corpus.Corpus]:
    """A finished run of 12 steps over a small corpus; eight validation items, hostile captions."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(5)
    channels = [
        Channel(f"source {i}", np.cumsum(rng.normal(0, 4, 600)), "weather <b>", "°C")
        for i in range(6)
    ]
    items = corpus.build(channels, lengths=[12], sample=400, scale=(0, 100), threads=1)
    items.save(folder / "corpus")
    _write_run(folder / "run <1>", items, folder / "corpus")
    return folder / "run <1>", items


def _write_run(run: Path, items: corpus.Corpus, where: Path) -> None:
    (run / "validation").mkdir(parents=True)
    config = {"model": "models/<captioner>", "k": 4, "seed": 0, "reward_scale": 2.0}
    style = {"name": "tiny", "fingerprint": charts.TINY_STYLE.fingerprint}
    settings = {
        "config": config | {"chart_style": "tiny"},
        "corpus_path": str(where),
        "corpus_fingerprint": items.fingerprint,
        "recipe": "k4.candidates_first.label_logprobs.d0.v1",
        "versions": {"torch": "2.0"},
        "style": style,
    }
    (run / "config.json").write_text(json.dumps(settings))
    rng = np.random.default_rng(1)
    rows = []
    for step in range(STEPS + 1):
        row: dict[str, Any] = {"step": step}
        if step:
            row |= _training_metrics(step, rng)
        if step in VALIDATED:
            share = 0.4 + 0.02 * step
            row |= {"val/acc": share, "val/reward": 2 * share, "val/floor": 0.27}
            row["val/acc_by_position"] = [share, share - 0.1, share + 0.1, share]
            lines = _validation(items, step, rng)
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (run / "validation" / f"step-{step:06d}.jsonl").write_text(text)
        rows.append(row)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "best.json").write_text(json.dumps({"step": 12, "val/acc": 0.64}))
    final = {"n": 8, "best_step": 12, "start_acc": 0.4125, "best_acc": 0.6375, "floor": 0.26}
    (run / "final.json").write_text(json.dumps(final))


def _training_metrics(step: int, rng: np.random.Generator) -> dict[str, Any]:
    by_position = rng.uniform(0.3, 0.6, 4).tolist()
    seconds = {f"time/{s}_s": 0.5 for s in ("charts", "rollout", "reward", "update")}
    return seconds | {
        "reward": 2 * float(np.mean(by_position)),
        "lineup/acc": float(np.mean(by_position)),
        "lineup/acc_by_position": by_position,
        "lineup/invalid_frac": 0.0,
        "completions/mean_length": 20.0 + step,
        "entropy": 1.0 / step,
        "grad_norm": None,
        "step_time": 2.0,
        "num_tokens": 1000 * step,
    }


def _validation(items: corpus.Corpus, step: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    for id, caption in zip(items.ids("val"), HOSTILE, strict=False):
        probs = rng.dirichlet(np.ones(4), size=4)
        picks = probs.argmax(1)
        rows.append(
            {
                "id": id,
                "caption": caption if step else f"Starts at {items.series(id)[0]:.0f}.",
                "accuracy": float((picks == np.arange(4)).mean()),
                "picks": picks.tolist(),
                "probs": probs.tolist(),
                "valid": caption != "",
                "reason": None if caption else "<i>too long</i>",
                "distractors": list(candidates.fixed(items, id, k=4).distractors),
            }
        )
    return rows


@pytest.fixture(scope="module")
def page(made: tuple[Path, corpus.Corpus]) -> str:
    run, items = made
    return build(read_run(run), items)


class _Elements(HTMLParser):
    """Tags with their attributes, and texts by tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.found[-1][0] if self.found else "", data))

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [a for _, a in self.found if name in (a.get("class") or "").split()]


def browse(file: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """The document after its scripts ran, and the lines of the browser's console."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (make test installs it)")
    flags = (*flags, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0",
             "--virtual-time-budget=3000", f"--user-data-dir={profile}")  # fmt: skip
    done = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", file.as_uri()],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    console = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
    return done.stdout.decode(), console


def test_browser_shows_the_page_without_console_messages(
    made: tuple[Path, corpus.Corpus], tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    assert main([str(made[0]), "-o", str(out)]) == 0
    document, console = browse(out, tmp_path / "profile")
    assert console == []
    assert 'data-ready="yes"' in document
    assert "<title>run &lt;1&gt; · run report</title>" in document
    assert document.count('class="tip"') == document.count('<figure class="card plot')
    assert out.stat().st_size < 2_000_000


def test_browser_reads_out_the_numbers_of_the_metrics(page: str, tmp_path: Path) -> None:
    step = """
      const canvas = document.querySelector("#health-entropy .canvas");
      for (let i = 0; i < 3; i++)
        canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
    """
    # Only the copy under test lets a script of ours in.
    opened = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page)
    file = tmp_path / "page.html"
    file.write_text(opened.replace("</body>", f"<script>{step}</script></body>"), encoding="utf-8")
    document, console = browse(file, tmp_path / "profile")
    assert console == []
    tip = re.search(r'id="health-entropy".*?<div class="tip"[^>]*>(.*?)</figure>', document, re.S)
    assert tip is not None
    said = re.sub(r"<[^>]*>", " ", tip.group(1))
    assert "step 3" in said
    assert f"{np.mean([1, 1 / 2, 1 / 3]):.3f}" in said  # the running mean of three steps


def test_hostile_captions_are_text(page: str) -> None:
    elements = _Elements(page)
    tags = Counter(tag for tag, _ in elements.found)
    data_blocks = sum(a.get("type") == "application/json" for _, a in elements.found)
    assert tags["script"] == data_blocks + 1
    assert not any(a.get("id") == "intruder" for _, a in elements.found)
    assert not any(name.startswith("on") for _, a in elements.found for name in a)
    quotes = re.findall(r"<blockquote[^>]*>(.*?)</blockquote>", page, re.S)
    shown = [html.unescape(re.sub(r"<[^>]*>", "", quote)) for quote in quotes]
    expected = [caption.replace("\x00", "\u2400") or "(empty caption)" for caption in HOSTILE]
    assert shown[1::2] == expected
    assert "<i>too long</i>" not in page


def test_page_refers_to_nothing_outside(page: str) -> None:
    elements = _Elements(page)
    links = [a[n] for _, a in elements.found for n in ("src", "href", "xlink:href") if a.get(n)]
    assert links
    assert all(str(link).startswith(("data:", "#")) for link in links)
    assert re.findall(r"https?:", page) == []
    assert re.findall(r"@import|url\((?!#)", page) == []
    policy = next(a for t, a in elements.found if a.get("http-equiv"))["content"] or ""
    assert policy.startswith("default-src 'none'")
    ids = Counter(a["id"] for _, a in elements.found if a.get("id"))
    assert [name for name, count in ids.items() if count > 1] == []
    targets = {str(link)[1:] for link in links if str(link).startswith("#")}
    assert targets <= set(ids)


def test_numbers_on_the_page_are_those_of_the_run(page: str) -> None:
    table = re.search(r'id="validation-table">(.*?)</table>', page, re.S)
    assert table is not None
    rows = re.findall(r'<th scope="row">(\d+)</th><td>([\d.]+)</td><td>([\d.]+)</td>', table[1])
    found = np.array(rows, dtype=np.float64)
    assert found == pytest.approx(np.array([[0, 0.4, 0.8], [6, 0.52, 1.04], [12, 0.64, 1.28]]))
    for text in ("40.0%", "64.0%", "+24.0 points", "41.2%", "63.7%", "+22.5 points", "27.0%"):
        assert text in page
    figure = re.search(r'id="accuracy">.*?application/json">(.*?)</script>', page, re.S)
    assert figure is not None
    curves = {c["name"]: c for c in json.loads(figure[1])["curves"]}
    assert curves["validation"]["y"] == pytest.approx([0.4, 0.52, 0.64])
    assert curves["blind floor"]["y"] == [0.27]
    assert curves["chance"]["y"] == [0.25]
    assert "<dt>Tokens a second</dt><dd>500</dd>" in page
    assert "<dt>Time in steps</dt><dd>24 s</dd>" in page


def test_every_figure_and_example_is_there(page: str, made: tuple[Path, corpus.Corpus]) -> None:
    run, items = made
    elements = _Elements(page)
    figures = {a["id"] for a in elements.of_class("plot")}
    assert figures >= {
        "accuracy", "reward", "position-train", "position-val", "stages", "rate", "truth", "named",
        "characters", "openings", "opening", "health-entropy", "health-completions-mean_length",
        "health-lineup-invalid_frac",
    }  # fmt: skip
    assert "health-grad_norm" not in figures  # all null
    assert len(elements.of_class("example")) == 8
    assert len(elements.of_class("target")) == 8
    assert len(elements.of_class("heat")) == 16
    assert len(elements.of_class("hit")) == 64
    first = json.loads((run / "validation" / "step-000000.jsonl").read_text().splitlines()[0])
    image = charts.png(charts.render([items.series(first["id"])], charts.TINY_STYLE)[0])
    sources = [a["src"] for t, a in elements.found if t == "img"]
    assert len(sources) == 8
    assert base64.b64decode(str(sources[0]).split(",")[1]) == image


def test_same_run_gives_the_same_page(page: str, made: tuple[Path, corpus.Corpus]) -> None:
    assert build(read_run(made[0]), made[1]) == page


def test_gaps_are_said(
    made: tuple[Path, corpus.Corpus], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "aborted"
    run.mkdir()
    lines = (made[0] / "metrics.jsonl").read_text().splitlines()[:3]
    (run / "metrics.jsonl").write_text("\n".join([*lines, lines[-1], '{"step": 3, "rew']))
    assert main([str(run)]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(run / "report.html")
    text = (run / "report.html").read_text(encoding="utf-8")
    for said in (
        "config.json is missing",
        "final.json is missing",
        "no checkpoint was kept yet",
        "no validation pass",
        "1 line(s) could not be read",
        "repeats steps",
        "corpus was not found",
    ):
        assert said in text
    assert 'id="accuracy"' in text
    assert 'class="card example"' not in text
    assert main([str(tmp_path / "nowhere")]) == 2
    capsys.readouterr()
    for flags, message in (
        (["--corpus", str(tmp_path / "nowhere")], "folder: expected a corpus"),
        (["-o", str(tmp_path / "nowhere" / "page.html")], "out: expected a file"),
        (["--examples", "-1"], "examples: expected at least 0"),
    ):
        assert main([str(run), *flags]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"python -m trainer report: {message}")


def test_a_run_that_has_only_started(made: tuple[Path, corpus.Corpus], tmp_path: Path) -> None:
    run = tmp_path / "young"
    shutil.copytree(made[0], run)
    for name in ("best.json", "final.json", "validation/step-000006.jsonl",
                 "validation/step-000012.jsonl"):  # fmt: skip
        (run / name).unlink()
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().splitlines()[0] + "\n")
    text = build(read_run(run), made[1])
    assert len(_Elements(text).of_class("told")) == 8
    assert "one pass so far" in text


def test_candidate_probabilities_follow_the_rotations() -> None:
    # Target at A: letters are T 1 2; at B: 1 T 2; at C: 1 2 T.
    probs = [[0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.3, 0.1, 0.6]]
    assert candidate_probs(probs) == pytest.approx([0.6, 0.3, 0.1])
    assert candidate_probs([]) == []
    assert candidate_probs([[0.5], [0.5, 0.5]]) == []


def test_examples_are_spread_and_fixed() -> None:
    rows: list[Any] = list(range(200))
    assert chosen(rows, 8) == [12, 37, 62, 87, 112, 137, 162, 187]
    assert chosen(rows[:3], 8) == [0, 1, 2]


def test_marked_caption_reads_as_before() -> None:
    series = np.array([10.0, 50.0, 30.0])
    caption = "Starts at 10, peak 80 at step 1; 3 points."
    pieces = marked(caption, series)
    assert "".join(piece.text for piece in pieces) == caption
    verdicts = [(piece.text, piece.verdict) for piece in pieces if piece.verdict]
    assert verdicts == [("10", "true"), ("80", "false"), ("1", "true")]
    assert [piece.verdict for piece in marked(caption, None)] == [""]
