"""What every preparation of a log has to do, with polars alone: the baseline of
benchmarks/speed/prepare.py.

    python -m benchmarks.speed.bare_pipeline LOG OUT

It stands alone, so that its process imports nothing else.
"""

import sys

import polars as pl


def main(log: str, out: str) -> None:
    """Scan the file, parse the time, gather each session's items by time. Times are cut before they
    are parsed, and ids are read as integers, which keeps less and is faster than text."""
    schema = {
        "session": pl.Int64(),
        "time": pl.String(),
        "item": pl.Int64(),
        "category": pl.String(),
    }
    seconds = (
        pl.col("time")
        .str.slice(0, 19)
        .str.to_datetime("%Y-%m-%dT%H:%M:%S", time_unit="ms")
    )
    moment = (
        seconds.cast(pl.Int64) + pl.col("time").str.slice(20, 3).cast(pl.Int64)
    ).alias("time")
    clicks = pl.scan_csv(log, has_header=False, schema=schema)
    sessions = (
        clicks.with_columns(moment)
        .group_by("session")
        .agg(pl.col("item").sort_by("time"), pl.col("time").min())
    )
    sessions.sink_parquet(out, engine="streaming")


if __name__ == "__main__":
    main(*sys.argv[1:])
