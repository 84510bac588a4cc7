"""Several processes as one trainer: every rank takes its share of the series, FSDP2 the weights.

A run of `size` ranks does what one process does with the same settings: batch sizes are those of
all ranks together, sampling streams belong to the series and not to the rank, denominators and
metrics are summed over ranks. torch.distributed is touched only where there is more than one.

Weights, gradients and moments of the *learner* are sharded. Decoding has no fixed number of steps,
so nothing may communicate in it: :meth:`World.whole` lends all weights to a plain *captioner*
while it writes captions or is saved, and takes them back.

What ranks tell each other travels pickled between processes of the same run (`all_gather_object`);
nothing of it comes from a file or from outside.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from trainer.policy import Captioner

T = TypeVar("T")
Number = TypeVar("Number", int, float)

# Of one exchange. Others may wait for rank 0 to write a large checkpoint; a rank that fails ends
# all at once, since its connections close and torchrun stops the rest.
TIMEOUT = timedelta(minutes=20)


@dataclass(frozen=True)
class World:
    """Who else is training; the default is alone.

    rank: of this process, 0 to size - 1. local_rank: the same, counted on this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def join(cls, device: str) -> World:
        """The processes that `torchrun` started together with this one.

        device: of the captioner; GPUs talk through NCCL, everything else through gloo.

        Raises:
            ValueError: there are more ranks than GPUs on this machine.
        """
        size = n_ranks()
        if size == 1:
            return cls()
        from torch import distributed

        world = cls(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", "0")))
        backend, own = "gloo", world.device(device)
        if own.startswith("cuda"):
            found = torch.cuda.device_count()
            if world.local_rank >= found:
                raise ValueError(
                    f"device: expected a GPU for each rank, got {found} for rank {world.rank}"
                )
            torch.cuda.set_device(own)
            backend = "cpu:gloo,cuda:nccl"
        distributed.init_process_group(backend, timeout=TIMEOUT)
        return world

    def leave(self) -> None:
        """Ends the connection, once all ranks are done."""
        if self.size > 1:
            from torch import distributed

            distributed.barrier()
            distributed.destroy_process_group()

    @property
    def first(self) -> bool:
        """Whether this rank writes files and speaks."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device of this rank that a setting names: `cuda` is the rank's own GPU.

        Raises:
            ValueError: one GPU is named for all ranks.
        """
        if self.size == 1 or not name.startswith("cuda"):
            return name
        if name != "cuda":
            raise ValueError(f"device: expected cpu or cuda with {self.size} ranks, got {name}")
        return f"cuda:{self.local_rank}"

    # ----------------------------------------------------------------------- shares and exchange

    def deal(self, items: Sequence[T], blocks: int = 1) -> list[T]:
        """This rank's part of each of `blocks` blocks of the items, in order."""
        whole = np.array_split(np.arange(len(items)), blocks)
        mine = [np.array_split(block, self.size)[self.rank] for block in whole]
        return [items[at] for part in mine for at in part]

    def check_shares(self, charts: int, group_size: int, captions_per_update: int) -> None:
        """Raises ValueError where the groups of an update do not divide over the ranks."""
        if captions_per_update // group_size % self.size:
            raise ValueError(
                f"captions_per_update: expected a multiple of {self.size} ranks x {group_size} "
                f"captions, got {captions_per_update} (of {charts * group_size} a step)"
            )

    def check_alike(self, settings: dict[str, Any]) -> None:
        """Raises ValueError where ranks were started with different settings or data."""
        others = self.gather(settings)[1:]
        found = {key for key, value in settings.items() for o in others if o.get(key) != value}
        if found:
            raise ValueError(
                f"ranks: expected the same settings on all, got other {', '.join(sorted(found))}"
            )

    def gather(self, value: T) -> list[T]:
        """The value of every rank, by rank."""
        if self.size == 1:
            return [value]
        from torch import distributed

        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def same(self, value: T) -> T:
        """The value of rank 0, so that all decide alike."""
        if self.size == 1:
            return value
        from torch import distributed

        values = [value]
        distributed.broadcast_object_list(values, src=0)
        return values[0]

    def sum(self, value: Number) -> Number:
        """The sum over ranks."""
        first, *others = self.gather(value)
        return sum(others, first)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set anywhere."""
        return any(self.gather(flag))

    # ------------------------------------------------------------------------------- the weights

    def learner(self, captioner: Captioner) -> Captioner:
        """The captioner that learns; alone, it is the captioner itself.

        Among several ranks it holds the weights, each rank a part of every tensor, and the
        captioner is left without any until :meth:`whole` lends them.

        Raises:
            ValueError: torch is too old, or head and embedding came apart.
        """
        if self.size == 1:
            return captioner
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise ValueError(
                f"torch: expected an FSDP2 that can sum gradients, as that of 2.13, with "
                f"{self.size} ranks, got {torch.__version__}"
            )
        learner = copy.copy(captioner)
        captioner.model = _hollow(captioner.model)
        model: Any = learner.model
        mesh = init_device_mesh(learner.device.type, (self.size,))
        # Root: whatever lies outside the blocks. Embedding and head are one tensor in tied models
        # and must be in one unit; the norm and the vision tower's ends come along.
        blocks = learner.blocks()
        for unit in (*blocks, model):
            fully_shard(unit, mesh=mesh)
            unit.set_force_sum_reduction_for_comms(True)  # denominators count all ranks already
            unit.set_gradient_divide_factor(1.0)
        plain = learner.token_logps
        # The model's own forward is never called; the pass is one of the root all the same, so
        # that embedding, head and norm are whole inside it.
        model.lineup_pass = _call
        register_fsdp_forward_method(model, "lineup_pass")
        learner.token_logps = (  # type: ignore[method-assign]
            lambda prompts, completions: model.lineup_pass(lambda: plain(prompts, completions))
        )
        for one in (captioner, learner):
            one.check_tied()
        return learner

    def last_pass(self, learner: Captioner, last: bool) -> None:
        """Says whether the next backward pass is the update's last, after which ranks exchange.

        Until then each rank adds up gradients of all weights, not only of its part of them.
        """
        if self.size > 1:
            learner.model.set_requires_gradient_sync(last)

    @contextmanager
    def whole(self, learner: Captioner, captioner: Captioner) -> Iterator[None]:
        """Lends the captioner all weights of the learner; all ranks enter together."""
        if learner is captioner:
            yield
            return
        mine, theirs = learner.model.parameters(), captioner.model.parameters()
        pairs = list(zip(mine, theirs, strict=True))
        for part, lent in pairs:
            lent.data = full(part.detach())
        try:
            yield
        finally:
            for _, lent in pairs:
                lent.data = lent.data.new_empty(0)


def n_ranks() -> int:
    """How many processes `torchrun` started together with this one, itself included."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def full(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; all ranks call it together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def laid_out_as(parameter: Tensor, whole: Tensor) -> Tensor:
    """`whole`, which every rank has, on the device of `parameter` and sharded as it is."""
    whole = whole.to(parameter.device)
    if not hasattr(parameter, "placements"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    part = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    return part.clone()  # not a view that keeps all of it alive


def _hollow(model: Any) -> Any:
    """A copy of the model with empty tensors in place of its parameters, tied where they were."""
    empty = {
        id(p): torch.nn.Parameter(p.detach().new_empty(0), requires_grad=False)
        for p in model.parameters()
    }
    return copy.deepcopy(model, empty)


def _call(work: Callable[[], T]) -> T:
    return work()


ALONE = World()
