"""The batches of an epoch, and how they are read from the dataset: sample by sample, or whole
sessions at once.

`SampleBatches` has a session's prefix for each sample; most models read them one by one.
`PassBatches` is for causal models, which read a session once and have a loss at every click. Both
arrange their units, samples or passes, into batches `[steps, width]` of unit numbers, with -1 where
a batch has fewer; and both read several batches at once: what does not depend on the weights is
done for many steps together on a GPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from posrec.data.dataset import SessionDataset, collate
from posrec.data.passes import collate_passes, cut_into_batches, passes_over
from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph
from posrec.nn.packing import pack, pack_many

ROWS_MULTIPLE = 64  # of the rows that are reserved for a batch
PASSES_SORTED_TOGETHER = 8192  # by length: batches of like length have little padding, and each epoch has others


class Batches(Protocol):
    """What training needs of both kinds."""

    samples_of_units: Tensor  # [units], on the CPU
    capacity: int | None  # the most clicks of any batch, if that is known beforehand

    def arrange(self, units: Tensor, random: torch.Generator) -> Tensor:
        """Unit numbers in random order -> batches [steps, width]."""

    def units_of(self, of_samples: Tensor) -> Tensor:
        """[samples] what is the same for all samples of a unit -> [units]; on the CPU."""

    def total_weights(self, batches: Tensor) -> Tensor:
        """[steps, width] -> [steps] the sum of the weights of all samples of a batch."""

    def clicks(self, batches: Tensor) -> Tensor:
        """[steps, width] -> [steps, width] how many clicks each unit reads."""

    def read(
        self, batches: Tensor, width: int, capacity: int | None
    ) -> list[tuple[SessionBatch, Tensor]]:
        """[steps, width] -> the batch of each step, in arrays for sessions of `width` clicks, and
        the weights of its samples, [B] or [T]. With `capacity` there are rows for so many clicks;
        without it only one step is read."""


class SampleBatches:
    """A unit is a sample. Where a batch has fewer, samples of weight 0 fill it up."""

    capacity: int | None = None

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
        self.weights = torch.cat([weights, torch.zeros(1)]).to(
            samples.items.device
        )  # the last is that of number -1
        clicks = samples.clicks_before(
            torch.arange(len(samples), device=samples.items.device)
        )
        self.filler = (
            int(clicks.argmin()) if len(clicks) else 0
        )  # it takes the least room

    def arrange(self, units: Tensor, random: torch.Generator) -> Tensor:
        steps = -(-len(units) // self.size)
        return functional.pad(
            units, (0, steps * self.size - len(units)), value=-1
        ).view(steps, self.size)

    def units_of(self, of_samples: Tensor) -> Tensor:
        return of_samples

    def total_weights(self, batches: Tensor) -> Tensor:
        return self.weights[batches].sum(1)

    def clicks(self, batches: Tensor) -> Tensor:
        return self.samples.clicks_before(self.filled(batches)).clamp(
            max=self.max_length
        )

    def filled(self, batches: Tensor) -> Tensor:
        return torch.where(batches >= 0, batches, self.filler)

    def read(
        self, batches: Tensor, width: int, capacity: int | None
    ) -> list[tuple[SessionBatch, Tensor]]:
        ids = self.filled(batches).flatten()
        size = batches.shape[1]
        everything = replace(
            collate(self.samples, ids, width),
            when=self.samples.moments(ids),
            capacity=capacity,
        )
        everything = replace(everything, graph=self.build_graph(everything))
        found = [
            everything.rows(number * size, (number + 1) * size)
            for number in range(len(batches))
        ]
        if capacity is not None:
            filled = (
                everything.mask if everything.graph is None else everything.graph.nodes
            )
            packings = pack_many(filled, capacity, size)
            found = [
                replace(one, packing=packing)
                for one, packing in zip(found, packings, strict=True)
            ]
        return list(zip(found, self.weights[batches], strict=True))


class PassBatches:
    """A unit is a pass over a session, and a batch has passes of like length that read `size`
    clicks, or a few less."""

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
        clicks = len(samples.items)
        self.weights = torch.zeros(clicks + 1, device=device).scatter(
            0, target, weights.to(device)
        )  # by target
        passes = passes_over(samples, max_length, stride)
        # of its targets
        first = passes.start + passes.skipped + 1
        end = passes.start + passes.clicks + 1
        before = torch.searchsorted(
            target, torch.stack([first, end])
        )  # samples before each of them
        counts = before[1] - before[0]
        used = counts > 0
        self.first_sample = before[0][used].cpu()
        self.samples_of_units = counts[used].cpu()
        summed = torch.cat(
            [torch.zeros(1, device=device), self.weights.double().cumsum(0)]
        )
        nothing = torch.zeros(
            1, dtype=torch.int64, device=device
        )  # what number -1 reads
        self.start, self.length, self.skipped = (
            torch.cat([part[used], nothing])
            for part in (passes.start, passes.clicks, passes.skipped)
        )
        self.pass_weights = torch.cat(
            [(summed[end] - summed[first])[used], nothing.double()]
        ).float()
        longest = int(self.length.max())
        self.capacity = -(-max(size, longest) // ROWS_MULTIPLE) * ROWS_MULTIPLE

    def arrange(self, units: Tensor, random: torch.Generator) -> Tensor:
        lengths = self.length.cpu()[units]
        # By length inside each of the parts that are sorted at once; `units` are in random order.
        part = torch.arange(len(units)) // PASSES_SORTED_TOGETHER
        order = (part * (int(lengths.max()) + 1) + lengths).sort(stable=True).indices
        ends = cut_into_batches(lengths[order], self.size)
        number = torch.arange(len(order))
        batches = torch.full((len(ends), self.size), -1)
        step = torch.bucketize(number, ends, right=True)
        batches[step, number - functional.pad(ends, (1, 0))[step]] = units[order]
        return batches[torch.randperm(len(ends), generator=random)]

    def units_of(self, of_samples: Tensor) -> Tensor:
        return of_samples[self.first_sample]

    def total_weights(self, batches: Tensor) -> Tensor:
        return self.pass_weights[batches].sum(1)

    def clicks(self, batches: Tensor) -> Tensor:
        return self.length[batches]

    def read(
        self, batches: Tensor, width: int, capacity: int | None
    ) -> list[tuple[SessionBatch, Tensor]]:
        if capacity is None:
            batches = batches[:, (batches >= 0).any(0)]
        size = batches.shape[1]
        units = batches.flatten()
        everything = collate_passes(
            self.samples, self.start[units], self.length[units], width
        )
        packings = (
            [pack(everything.mask)]
            if capacity is None
            else pack_many(everything.mask, capacity, size)
        )
        slots = torch.stack([one.slot_of_row for one in packings])  # [steps, T]
        unit = batches.gather(1, slots // width)
        place = slots % width
        target = (self.start[unit] + place + 1).clamp(max=len(self.samples.items) - 1)
        weights = torch.where(place >= self.skipped[unit], self.weights[target], 0)
        if capacity is not None:
            used = [one.used for one in packings if one.used is not None]
            weights = torch.where(torch.stack(used), weights, 0)
        items = self.samples.items[target].long()
        when = self.samples.moment_of(target)
        steps = []
        for number, packing in enumerate(packings):
            part = everything.rows(number * size, (number + 1) * size)
            part = replace(
                part,
                targets=items[number],
                when=when[number],
                packing=packing,
                capacity=capacity,
            )
            steps.append((part, weights[number]))
        return steps
