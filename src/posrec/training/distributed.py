"""Training by several processes: torch's DistributedDataParallel under torchrun (docs/scaling.md).

Every process has the whole model and reads the whole dataset. A batch of `batch_size` samples
becomes a smaller one for each process; DistributedDataParallel averages their gradients, so all
take the same step. The first process writes the run, and ranks validation and test sessions."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from posrec.device import choose_device
from posrec.errors import InputError, RunFailed, first_line
from posrec.nn.batch import SessionBatch
from posrec.training.epoch import EpochOrder, EpochRunner
from posrec.training.loop import Training
from posrec.training.step import Stepper, plain_step

TIMEOUT = timedelta(minutes=30)  # of waiting, also while the first process ranks
READ_STEPS = 32  # how often losses are copied from a GPU
# In errors of collectives, if a process is lost.
LOST = re.compile("gloo|nccl|connection|timed out", re.IGNORECASE)


@contextmanager
def several_processes(device: str) -> Iterator[bool]:
    """Join the other processes of torchrun for the block; yields whether this is the first one. On
    GPUs each process of a machine has its own. If a process is lost, all others raise RunFailed."""
    on_gpu = choose_device(device).type == "cuda"
    if on_gpu:
        number = int(os.environ["LOCAL_RANK"])
        gpus = torch.cuda.device_count()
        if number >= gpus:
            raise InputError(
                f"torchrun started more processes than the {gpus} GPUs of this machine; "
                "lower --nproc-per-node, or use --device cpu"
            )
        torch.cuda.set_device(number)
    try:
        distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        reason = f"the processes can't reach each other: {first_line(error)}"
        raise RunFailed(reason) from None
    try:
        yield distributed.get_rank() == 0
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        raise RunFailed(
            f"another process of the training has ended or hangs ({first_line(error)[:120]}...); "
            "its message, if it left one, says why. The last checkpoint is kept: continue with the "
            "same command and --resume"
        ) from None
    finally:
        distributed.destroy_process_group()


class BatchLoss(nn.Module):
    """The losses of a batch as a forward pass, which DistributedDataParallel can see. It has the
    weights of the model alone: buffers are the same in all processes."""

    def __init__(self, stepper: Stepper) -> None:
        super().__init__()
        self.weights = nn.ParameterList(stepper.model.parameters())
        self.losses = stepper.losses

    def forward(self, batch: SessionBatch) -> Tensor:
        return self.losses(batch)


class SharedRunner(EpochRunner):
    """Runs this process's share of an epoch's batches, in steps that all processes take."""

    captures = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # The graph is static: weights may be unused, the same ones in every step.
        loss = DistributedDataParallel(
            BatchLoss(self.stepper), gradient_as_bucket_view=True, static_graph=True
        )
        self.stepper.step = plain_step(loss, self.stepper.optimizer)

    def shuffle(self, epoch: int) -> EpochOrder:
        order = super().shuffle(epoch)
        size = distributed.get_world_size()
        steps = -(-order.steps // size)  # of each process; the last may wrap around
        numbers = torch.arange(distributed.get_rank(), steps * size, size)
        return EpochOrder(order.batches[numbers % order.steps], order.samples)

    def is_time_to_read(self, step: int, seconds: float) -> bool:
        """All processes have to read after the same step, whatever their clocks say."""
        return not self.on_gpu or step % READ_STEPS == 0


class SharedTraining(Training):
    runner_type = SharedRunner

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        size = -(-self.settings.batch_size // distributed.get_world_size())
        self.settings = replace(self.settings, batch_size=size)
        # A single Ctrl-C arrives twice: the terminal and torchrun both pass it on.
        self.signals.may_interrupt = False
        self.refuse_differences()
        seed = int(torch.randint(1 << 31, ()))
        torch.manual_seed(seed + distributed.get_rank())  # dropout must differ

    def refuse_differences(self) -> None:
        """Raise an InputError, the same in every process, unless all train the same."""
        options = asdict(self.model.config) | asdict(self.settings) | asdict(self.state)
        options |= {"model": type(self.model).__name__, "items": self.model.items}
        options["dataset"] = self.data.fingerprint
        texts = {name: str(value) for name, value in options.items()}
        gathered: list[dict[str, str]] = [{}] * distributed.get_world_size()
        distributed.all_gather_object(gathered, texts)
        first = gathered[0]
        for rank, other in enumerate(gathered):
            pairs = [
                f"{name} is {first.get(name)}, and {other.get(name)}"
                for name in sorted({*first, *other})
                if first.get(name) != other.get(name)
            ]
            if pairs:
                raise InputError(
                    f"process 0 and process {rank} of the training have different data or options: "
                    f"{'; '.join(pairs)}; give all processes the same command, copies of one "
                    "prepared dataset, and one run folder"
                )

    def read(self, losses: Tensor) -> tuple[Tensor, bool]:
        """Means over all processes; if one has received a signal, all stop after this step."""
        received = losses.new_tensor([self.signals.received])
        total = torch.cat([losses, received]).double()
        distributed.all_reduce(total)
        *means, stop = (total / distributed.get_world_size()).tolist()
        return torch.tensor(means, dtype=torch.double), stop > 0

    def validate(self) -> dict[str, float]:
        metrics: list[Any] = [super().validate() if self.context.writes else None]
        distributed.broadcast_object_list(metrics)
        return dict(metrics[0])
