"""How many requests may wait, by the seconds that a request takes while the server is busy."""

import pytest

from posrec.server.batching import Batcher


@pytest.mark.parametrize(
    ("seconds_each", "most"),
    [
        (0.0, 128),  # nothing is known yet: the whole queue
        (0.0001, 128),  # 15 batches of 3.2 ms fit into 50 ms; the queue is the limit
        (0.0005, 96),  # three batches of 16 ms
        (0.0007, 64),  # two batches of 22.4 ms: 71 requests would fit, but seven of them would wait for a third batch
        (0.00133, 32),  # one batch of 42.6 ms
        (0.02, 32),  # a full batch may always wait
    ],
)
def test_whole_batches_wait(seconds_each: float, most: int) -> None:
    batcher = Batcher(lambda queries: queries, queue=128, max_batch=32)
    batcher.seconds_each_busy = seconds_each
    batcher.waiting.extend([None] * (most - 1))  # type: ignore[list-item]
    assert not batcher.is_full()
    batcher.waiting.append(None)  # type: ignore[arg-type]
    assert batcher.is_full()
    batcher.thread.shutdown()
