"""Numbers in the sentences that commands print."""


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "session"), plural(1200, "session")
    ('1 session', '1,200 sessions')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
