"""Early stopping with the callbacks of Lightning, which RecTools and RePlay train with."""

from typing import Any

from benchmarks.peers.libraries.exchange import Job


def callbacks(job: Job, lightning: Any, metric: str, patience: int) -> list[Any]:
    """Those of a trainer that stops when `metric` no longer rises; the last keeps the best weights.

    The rule is asked before the limit of time, so that a training in whose last epoch both end is
    not said to be ended by the limit.

    Args:
        lightning: `pytorch_lightning` or `lightning.pytorch`, which have the same classes.
    """

    class Times(lightning.Callback):  # type: ignore[misc]
        def on_train_epoch_start(self, *_: Any) -> None:
            job.epoch_begins()

        def on_validation_epoch_start(self, *_: Any) -> None:
            job.epoch_ends()

        def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.should_stop or job.must_end()

    class Checkpoint(lightning.callbacks.ModelCheckpoint):  # type: ignore[misc]
        def _save_checkpoint(self, *arguments: Any) -> None:
            job.is_best()
            super()._save_checkpoint(*arguments)

    stop = lightning.callbacks.EarlyStopping(metric, mode="max", patience=patience)
    return [stop, Times(), Checkpoint(job.folder, monitor=metric, mode="max")]
