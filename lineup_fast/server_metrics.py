"""The counters of a reward server in Prometheus' text format."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lineup_fast.coalesce import Coalescer
    from lineup_fast.rewards import IdentificationReward
    from lineup_fast.server import Traffic

Value = int | float


def prometheus(reward: IdentificationReward, coalescer: Coalescer, traffic: Traffic) -> str:
    """Every metric as text; names end in their unit, counters in _total."""
    tally = coalescer.tally
    requests = {
        _labels(path=path, status=str(status)): count
        for (path, status), count in sorted(traffic.requests.items())
    }
    facts = _labels(recipe=reward.recipe.name, **reward.fingerprints)
    counters: list[tuple[str, str, Value | Mapping[str, Value]]] = [
        ("requests", "requests answered", requests),
        ("captions", "captions asked about", tally.captions),
        ("captions_same_as_waiting", "captions that one already on its way answers",
         tally.same_as_waiting),
        ("captions_remembered", "captions answered from memory", tally.remembered),
        ("captions_dropped", "captions that nobody waited for any more", tally.dropped),
        ("captions_scored", "captions that went to the verifier", tally.scored),
        ("captions_invalid", "captions the verifier could not answer", tally.invalid),
        ("verifier_batches", "calls of the verifier", tally.batches),
        ("verifier_seconds", "time spent in the verifier", tally.verifier_s),
        ("queue_seconds", "time that captions waited, added up", tally.queue_s),
        ("prefilled_tokens", "tokens the verifier computed", tally.prefilled_tokens),
        ("prompt_tokens", "tokens of the same prompts without sharing", tally.prompt_tokens),
    ]  # fmt: skip
    gauges: list[tuple[str, str, Value | Mapping[str, Value]]] = [
        ("captions_waiting", "captions that wait for the verifier", coalescer.waiting),
        ("captions_waiting_limit", "captions that may wait", coalescer.max_waiting),
        ("requests_active", "requests being worked on", traffic.active),
        ("draining", "1 while the server finishes its work before it ends", traffic.draining),
        ("info", "what this server scores with", {facts: 1}),
    ]
    lines = []
    for name, text, value in counters:
        lines += _metric(f"lineup_{name}_total", "counter", text, value)
    for name, text, value in gauges:
        lines += _metric(f"lineup_{name}", "gauge", text, value)
    cpu = "CPU time of this process"
    lines += _metric("process_cpu_seconds_total", "counter", cpu, time.process_time())
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, value: Value | Mapping[str, Value]) -> list[str]:
    samples = {"": value} if isinstance(value, (int, float)) else value
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{labels} {number + 0}" for labels, number in samples.items()]


def _labels(**pairs: str) -> str:
    escaped = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs.items())
    return "{" + ",".join(escaped) + "}"


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
