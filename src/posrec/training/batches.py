"""The batches of an epoch, and how they are read from the dataset: sample by sample, or whole
sessions at once.

Batches are `[steps, width]` numbers of units, samples or passes, with -1 where a batch has fewer.
A GPU reads many at once."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from posrec.data.dataset import SessionDataset, collate
from posrec.data.passes import collate_passes, cut_into_batches, passes_over
from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph
from posrec.nn.packing import pack, pack_many

ROWS_MULTIPLE = 64  # of the rows that are reserved for a batch
# Passes are sorted by length in groups of this size: for little padding, but other batches in every
# epoch.
PASSES_SORTED_TOGETHER = 8192


class SampleBatches:
    """A unit is a sample: the prefix of a session that comes before its target. Where a batch has
    fewer, samples of weight 0 fill it up."""

    samples_of_units: Tensor  # [units], on the CPU
    unit_weights: Tensor  # [units + 1] of all samples of a unit; number -1 has 0
    first_sample = slice(None)  # of each unit
    capacity: int | None = None  # the most clicks of any batch, if known beforehand

    def __init__(
        self,
        samples: SessionDataset,
        weights: Tensor,
        size: int,
        max_length: int,
        build_graph: Callable[[SessionBatch], SessionGraph | None],
    ) -> None:
        self.samples = samples
        self.size = size
        self.max_length = max_length
        self.build_graph = build_graph
        self.samples_of_units = torch.ones(len(samples), dtype=torch.int64)
        device = samples.items.device
        self.unit_weights = functional.pad(weights, (0, 1)).to(device)
        clicks = samples.clicks_before(torch.arange(len(samples), device=device))
        # The shortest sample, which takes the least room.
        self.filler = int(clicks.argmin()) if len(clicks) else 0

    def arrange(self, units: Tensor, random: torch.Generator) -> Tensor:
        """Unit numbers in random order -> batches [steps, width]."""
        missing = -len(units) % self.size
        return functional.pad(units, (0, missing), value=-1).view(-1, self.size)

    def clicks(self, batches: Tensor) -> Tensor:
        """[steps, width] -> [steps, width] how many clicks of each unit are read."""
        clicks = self.samples.clicks_before(self.filled(batches))
        return clicks.clamp(max=self.max_length)

    def filled(self, batches: Tensor) -> Tensor:
        return torch.where(batches >= 0, batches, self.filler)

    def read(
        self, batches: Tensor, width: int, capacity: int | None
    ) -> list[tuple[SessionBatch, Tensor]]:
        """[steps, width] -> the batch of each step, in arrays for sessions of `width` clicks, and
        the weights of its samples, [B] or [T]. With `capacity` there are rows for that many clicks,
        without it only one step."""
        ids = self.filled(batches).flatten()
        size = batches.shape[1]
        sessions = collate(self.samples, ids, width)
        moments = self.samples.moments(ids)
        sessions = replace(sessions, when=moments, capacity=capacity)
        sessions = replace(sessions, graph=self.build_graph(sessions))
        steps = [
            sessions.rows(start, start + size) for start in range(0, len(ids), size)
        ]
        if capacity is not None:
            graph = sessions.graph
            filled = sessions.mask if graph is None else graph.nodes
            packings = pack_many(filled, capacity, size)
            steps = [
                replace(batch, packing=packing)
                for batch, packing in zip(steps, packings, strict=True)
            ]
        return list(zip(steps, self.unit_weights[batches], strict=True))


class PassBatches:
    """The same for causal models, which read a session once and have a loss at every click: a unit
    is a pass over a session, and a batch has passes of similar length with about `size` clicks."""

    capacity: int | None

    def __init__(
        self,
        samples: SessionDataset,
        weights: Tensor,
        size: int,
        max_length: int,
        stride: int,
    ) -> None:
        self.samples = samples
        self.size = size
        device = samples.items.device
        _, target = samples.locate(torch.arange(len(samples), device=device))
        weight_of_click = torch.zeros(len(samples.items) + 1, device=device)
        self.weights = weight_of_click.scatter(0, target, weights.to(device))
        passes = passes_over(samples, max_length, stride)
        # The targets of a pass are the clicks first..end-1.
        first = passes.start + passes.skipped + 1
        end = passes.start + passes.clicks + 1
        samples_before = torch.searchsorted(target, torch.stack([first, end]))
        counts = samples_before[1] - samples_before[0]
        used = counts > 0
        self.first_sample = samples_before[0][used].cpu()
        self.samples_of_units = counts[used].cpu()
        # The last entry of each is for number -1, which reads nothing.
        self.start = functional.pad(passes.start[used], (0, 1))
        self.length = functional.pad(passes.clicks[used], (0, 1))
        self.skipped = functional.pad(passes.skipped[used], (0, 1))
        weights_before = functional.pad(self.weights.double().cumsum(0), (1, 0))
        pass_weights = (weights_before[end] - weights_before[first])[used]
        self.unit_weights = functional.pad(pass_weights, (0, 1)).float()
        longest = int(self.length.max())
        self.capacity = -(-max(size, longest) // ROWS_MULTIPLE) * ROWS_MULTIPLE

    def arrange(self, units: Tensor, random: torch.Generator) -> Tensor:
        lengths = self.length.cpu()[units]
        number = torch.arange(len(units))
        # By length inside each group; `units` are in random order.
        group = number // PASSES_SORTED_TOGETHER
        order = (group * (int(lengths.max()) + 1) + lengths).sort(stable=True).indices
        ends = cut_into_batches(lengths[order], self.size)
        step = torch.bucketize(number, ends, right=True)
        column = number - functional.pad(ends, (1, 0))[step]
        batches = torch.full((len(ends), self.size), -1)
        batches[step, column] = units[order]
        return batches[torch.randperm(len(ends), generator=random)]

    def clicks(self, batches: Tensor) -> Tensor:
        return self.length[batches]

    def read(
        self, batches: Tensor, width: int, capacity: int | None
    ) -> list[tuple[SessionBatch, Tensor]]:
        if capacity is None:
            batches = batches[:, (batches >= 0).any(0)]
        size = batches.shape[1]
        units = batches.flatten()
        sessions = collate_passes(
            self.samples, self.start[units], self.length[units], width
        )
        if capacity is None:
            packings = [pack(sessions.mask)]
        else:
            packings = pack_many(sessions.mask, capacity, size)
        slots = torch.stack([packing.slot_of_row for packing in packings])  # [steps, T]
        unit = batches.gather(1, slots // width)
        position = slots % width
        last_click = len(self.samples.items) - 1
        target = (self.start[unit] + position + 1).clamp(max=last_click)
        counts = position >= self.skipped[unit]
        weights = torch.where(counts, self.weights[target], 0)
        if capacity is not None:
            used = [packing.used for packing in packings if packing.used is not None]
            weights = torch.where(torch.stack(used), weights, 0)
        items = self.samples.items[target].long()
        when = self.samples.moment_of(target)
        steps = []
        for step, packing in enumerate(packings):
            batch = replace(
                sessions.rows(step * size, (step + 1) * size),
                targets=items[step],
                when=when[step],
                packing=packing,
                capacity=capacity,
            )
            steps.append((batch, weights[step]))
        return steps


Batches = SampleBatches | PassBatches
