"""How many requests may wait, by the seconds that a request takes while the server is busy."""

import pytest

from posrec.server.batching import Batcher


@pytest.mark.parametrize(
    ("seconds_each", "most"),
    [
        (0.0, 128),  # nothing is known yet: the whole queue
        (0.0001, 128),  # 18 batches of 1.6 ms fit into 30 ms; the queue is the limit
        (0.0004, 64),  # four batches of 6.4 ms: 75 requests would fit, but eleven of them would wait for a fifth batch
        (0.0006, 48),  # three batches of 9.6 ms
        (0.02, 48),  # three full batches may always wait
    ],
)
def test_whole_batches_wait(seconds_each: float, most: int) -> None:
    batcher = Batcher(lambda queries: queries, queue=128, max_batch=16)
    batcher.seconds_each_busy = seconds_each
    batcher.waiting.extend([None] * (most - 1))  # type: ignore[list-item]
    assert not batcher.is_full()
    batcher.waiting.append(None)  # type: ignore[arg-type]
    assert batcher.is_full()
    batcher.thread.shutdown()
