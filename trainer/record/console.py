"""What a run shows: a live table and captions on a terminal, only its last words elsewhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

_LINES = (
    ("reward", "reward"),
    ("accuracy", "lineup/acc"),
    ("validation accuracy", "val/acc"),
    ("blind floor", "val/floor"),
    ("groups without spread", "frac_reward_zero_std"),
    ("tokens per caption", "completions/mean_length"),
    ("entropy (nats)", "entropy"),
    ("gradient norm", "grad_norm"),
    ("learning rate", "lr"),
)
_STAGES = ("charts", "rollout", "reward", "update")


class Console:
    """A table that follows the run; a context manager.

    enabled: None shows the table on a terminal only; False shows nothing anywhere.
    """

    def __init__(self, name: str, n_steps: int, *, enabled: bool | None = None) -> None:
        from rich.console import Console as RichConsole

        self._rich = RichConsole(stderr=True)
        self._enabled = self._rich.is_terminal if enabled is None else enabled
        self._says = enabled is not False
        self._name, self._n_steps = name, n_steps
        self._seen: dict[str, Any] = {}
        self._previous: dict[str, Any] = {}
        self._started = time.monotonic()
        self._first_step: int | None = None
        self._note = "starting"
        self._live: Any = None

    def __enter__(self) -> Console:
        if self._enabled:
            from rich.live import Live

            self._live = Live(console=self._rich, get_renderable=self._table, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """What is being done right now."""
        self._note = text

    def row(self, row: dict[str, Any]) -> None:
        """A new row of metrics."""
        if self._first_step is None:
            self._started, self._first_step = time.monotonic(), row["step"]
        self._previous = dict(self._seen)
        self._seen |= row

    def caption(self, item: str, text: str, accuracy: float) -> None:
        """One caption of the step, above the table."""
        if self._live is not None:
            from rich.text import Text

            step = self._seen.get("step", 0)
            head = f"step {step}  {item[:10]}  identified at {accuracy:.0%} of positions\n"
            self._rich.print(Text.assemble((head, "dim"), text, "\n"))

    def say(self, text: str) -> None:
        """One line that stays, also where there is no terminal."""
        if self._says:
            from rich.text import Text

            self._rich.print(Text(text), soft_wrap=True)

    def _table(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        step = self._seen.get("step", 0)
        table = Table.grid(padding=(0, 2))
        table.add_row(f"[bold]{self._name}[/bold]", f"step {step} of {self._n_steps}")
        table.add_row(self._left(step), ProgressBar(self._n_steps, step, width=40))
        for label, key in _LINES:
            value = self._seen.get(key)
            if isinstance(value, float):
                shown = f"{value:.2e}" if key == "lr" else f"{value:.3f}"
                table.add_row(label, shown + self._change(key, value))
        stages = [f"{s} {self._seen.get(f'time/{s}_s', 0.0):.2f}" for s in _STAGES]
        table.add_row("seconds", "  ".join(stages))
        table.add_row("now", self._note)
        return table

    def _change(self, key: str, value: float) -> str:
        before = self._previous.get(key)
        if key == "lr" or not isinstance(before, float) or before == value:
            return ""
        return "  [green]up[/green]" if value > before else "  [red]down[/red]"

    def _left(self, step: int) -> str:
        if self._first_step is None or step <= self._first_step:
            return ""
        per_step = (time.monotonic() - self._started) / (step - self._first_step)
        seconds = per_step * (self._n_steps - step)
        return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


def stopped(step: int, saved: list[int]) -> str:
    """What a run that is interrupted after `step` says; saved: the steps with a checkpoint.

    Captions drawn ahead of their update are in no checkpoint, so that a run with some of them under
    way goes back to the last one.
    """
    last = saved[-1] if saved else 0
    if last == step:
        return f"stopped at step {step}; go on with --resume"
    return (
        f"stopped at step {step} with captions drawn ahead of their update, which no checkpoint "
        f"holds; --resume goes on from step {last}"
    )


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Ctrl+C ends the run at the next step boundary; a second one at once."""
    asked: list[int] = []

    def on_signal(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = signal.signal(signal.SIGINT, on_signal)
    except ValueError:  # not the main thread: whoever embeds us handles signals
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
