"""Why a request is refused. Every refusal is answered with its status and one sentence."""


class Refused(Exception):
    """The request is refused with this status, sentence and headers."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = headers or {}


class Disconnected(Refused):
    """The client has left before its request was answered. The status is only counted and logged."""

    def __init__(self) -> None:
        super().__init__(499, "the client has left")


class Overloaded(Refused):
    """The queue is full."""

    def __init__(self) -> None:
        super().__init__(503, "too many requests are waiting; try again shortly")
