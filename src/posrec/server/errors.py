"""Why a request is refused. Every refusal is answered with its status and one sentence."""


class Refused(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Disconnected(Refused):
    """The status is only counted and logged."""

    def __init__(self) -> None:
        super().__init__(499, "the client has left")


class Overloaded(Refused):
    def __init__(self) -> None:
        super().__init__(503, "too many requests are waiting; try again shortly")
