"""``lineup-fast serve``: flags → corpus, verifier, reward → a server until SIGTERM."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineup_fast import cli_options

if TYPE_CHECKING:
    from lineup_fast.coalesce import Coalescer
    from lineup_fast.openrlhf_contract import Turn
    from lineup_fast.rewards import IdentificationReward

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

TOKEN_VARIABLE = "LINEUP_TOKEN"


def add_serve(commands: Subparsers) -> None:
    """``serve``: the reward over HTTP."""
    parser = commands.add_parser(
        "serve",
        help="serve the identification reward over HTTP",
        description="Answer POST /score (captions and ids), POST /get_reward (OpenRLHF), GET "
        "/health and GET /metrics (Prometheus). Single captions from many processes are gathered "
        "and scored together. SIGTERM finishes accepted work and ends with status 0. The bearer "
        f"token is read from the environment variable {TOKEN_VARIABLE} or from --token-file.",
    )
    parser.add_argument("--corpus", required=True, metavar="DIR", help="made by lineup-fast index")
    _add_verifier(
        parser.add_argument_group(
            "verifier", "one of --verifier, --engine-url, --vllm-url, --engine"
        )
    )
    _add_reward(parser)
    _add_server(parser.add_argument_group("server"))
    parser.set_defaults(run=serve)


def _add_verifier(group: Any) -> None:
    add = group.add_argument
    add("--verifier", metavar="MODEL", help="folder or hub id, run here with transformers")
    add("--engine-url", type=_urls, metavar="URL,URL", help="SGLang servers that are running")
    add("--vllm-url", type=_urls, metavar="URL,URL", help="vLLM servers that are running")
    add("--engine", choices=("sglang",), help="start this engine as a child, with --model")
    add("--model", metavar="MODEL", help="what the engine serves")
    add("--engine-python", metavar="FILE", help="the interpreter that has SGLang (default: ours)")
    add("--engine-args", default="", metavar="ARGS", help="more arguments of the engine, quoted")
    add("--tokenizer", metavar="MODEL", help="of an engine (default: as the engine has it)")
    add("--device", default="cpu", help="of --verifier")
    add("--dtype", default="float32", help="of --verifier")
    add("--threads", type=int, metavar="N", help="of torch")


def _add_reward(parser: argparse.ArgumentParser) -> None:
    cli_options.add_recipe(parser)
    add = parser.add_argument
    add("--positions", type=int, choices=(1,), metavar="1", help="ask one position per draw")
    add("--seed", type=int, default=0, metavar="N", help="of the draws")
    add("--scale", type=float, default=2.0, metavar="X", help="reward at accuracy 1")
    add(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="of the captioner: refuse to start where its captions could outgrow the verifier",
    )


def _add_server(group: Any) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="others than loopback need a token")
    add("--port", type=int, default=8900, metavar="N", help="0: any that is free")
    add("--token-file", metavar="FILE", help=f"holds the bearer token (or set {TOKEN_VARIABLE})")
    add("--group-size", type=int, metavar="G", help="captions that share a draw, where counted")
    add("--counter", metavar="FILE", help="keeps the counts of draws; needed with --group-size")
    add("--gather-ms", type=float, default=10.0, metavar="X", help="longest wait for company")
    add("--max-batch", type=int, default=512, metavar="N", help="captions of one verifier call")
    add("--max-waiting", type=int, default=4096, metavar="N", help="captions queued before 429")
    add("--max-body-mb", type=float, default=16.0, metavar="X", help="of a request, else 413")
    add("--deadline-s", type=float, default=300.0, metavar="X", help="of a request, else 504")
    add("--turn-start", metavar="TEXT", help="before a caption in OpenRLHF's query (ChatML)")
    add("--turn-end", metavar="TEXT", help="behind it; \\n stands for a newline in both")


def serve(args: argparse.Namespace) -> int:
    """Run until the server has drained; 1 where the engine cannot be reached or started."""
    try:
        import uvicorn  # noqa: F401  before a large model is loaded

        from lineup_fast import server
        from lineup_fast.verifiers.base import BackendError
    except ImportError as error:
        raise ImportError(f"{error}: serving needs lineup-fast[serve]") from None
    token = read_token(args.token_file)
    server.check_exposure(args.host, token)
    limits = server.Limits(int(args.max_body_mb * (1 << 20)), args.deadline_s)
    turn = _turn(args)
    _check_choice(args)
    with ExitStack() as stack:
        # Until the server listens to it, SIGTERM ends this process by way of the clean-up below.
        signal.signal(signal.SIGTERM, _leave)
        counter = None
        if args.group_size is not None:
            from lineup_fast.draw_counter import DrawCounter

            counter = DrawCounter(args.group_size, args.counter)
            stack.callback(counter.close)
        bound = stack.enter_context(server.listener(args.host, args.port))
        try:
            reward = _reward(args, stack)
        except BackendError as error:
            print(f"lineup-fast serve: {error}", file=sys.stderr)
            return 1
        app = server.RewardApp(
            reward, _coalescer(args, reward), counter, token=token, limits=limits, turn=turn
        )
        host, port = bound.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        ready = f"lineup-fast serve: ready at {url}, {reward.recipe.name}"
        try:
            server.run(app, bound, lambda: print(ready, flush=True))
        finally:
            ended = app.close()
    if not ended:  # the interpreter cannot be taken down around a thread inside the verifier
        logging.shutdown()
        os._exit(0)
    return 0


def _reward(args: argparse.Namespace, stack: ExitStack) -> IdentificationReward:
    from lineup_fast.corpus import Corpus
    from lineup_fast.rewards import IdentificationReward

    recipe = cli_options.recipe_of(args)
    corpus = Corpus.load(args.corpus)
    verifier = _verifier(args, stack)
    reward = IdentificationReward(corpus, verifier, recipe, seed=args.seed, scale=args.scale)
    if args.max_new_tokens is not None:
        reward.check_context(args.max_new_tokens)
    return reward


def _coalescer(args: argparse.Namespace, reward: IdentificationReward) -> Coalescer:
    from lineup_fast.coalesce import Coalescer

    return Coalescer(
        reward,
        group_size=args.group_size,
        gather_s=args.gather_ms / 1000,
        max_batch=args.max_batch,
        max_waiting=args.max_waiting,
    )


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def read_token(path: str | None) -> str | None:
    """The bearer token out of a file, else the environment; None where there is none."""
    if path is None:
        return os.environ.get(TOKEN_VARIABLE)
    token = Path(path).read_text(encoding="utf-8").strip()
    if not token:
        raise ValueError(f"{path}: expected a token, got an empty file")
    return token


def _check_choice(args: argparse.Namespace) -> None:
    names = ("verifier", "engine_url", "vllm_url", "engine")
    given = [name for name in names if getattr(args, name)]
    if len(given) != 1:
        raise ValueError(
            "verifier: expected one of --verifier, --engine-url, --vllm-url, --engine, "
            f"got {len(given)}"
        )
    if args.engine and not args.model:
        raise ValueError("model: expected --model with --engine")
    if (args.group_size is None) != (args.counter is None):
        raise ValueError("counter: expected --group-size and --counter together, got one of them")


def _verifier(args: argparse.Namespace, stack: ExitStack) -> Any:
    if args.verifier:
        from lineup_fast.verifiers.transformers import TransformersVerifier

        return TransformersVerifier(
            args.verifier, device=args.device, dtype=args.dtype, threads=args.threads
        )
    from lineup_fast.verifiers.sglang import SGLangVerifier

    kind, urls = SGLangVerifier, args.engine_url
    if args.vllm_url:
        from lineup_fast.verifiers.vllm import VLLMVerifier

        kind, urls = VLLMVerifier, args.vllm_url
    if args.engine:
        from lineup_fast.verifiers.engine_process import EngineProcess

        engine = EngineProcess(
            args.model,
            python=args.engine_python or sys.executable,
            arguments=shlex.split(args.engine_args),
        )
        urls = [stack.enter_context(engine).url]
    verifier = kind(urls, tokenizer=args.tokenizer)
    stack.callback(verifier.close)
    return verifier


def _turn(args: argparse.Namespace) -> Turn:
    from lineup_fast.openrlhf_contract import Turn

    default = Turn()
    start, end = args.turn_start or default.start, args.turn_end or default.end
    return Turn(start.replace("\\n", "\n"), end.replace("\\n", "\n"))


def _urls(text: str) -> list[str]:
    urls = [url.strip() for url in text.split(",") if url.strip()]
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise argparse.ArgumentTypeError(f"expected http:// URLs, got {text!r}")
    return urls
