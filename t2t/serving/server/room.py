"""How many requests are worked on at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from t2t.serving.server.problem import Problem


class Room:
    """Counts requests in progress, and refuses more than a number of them."""

    def __init__(self, most: int, refusal: Callable[[int], Problem]) -> None:
        self.most, self.refusal = most, refusal
        self.num_inside = 0

    def check(self) -> None:
        """Refuses a request if too many are in progress."""
        if self.num_inside >= self.most:
            raise self.refusal(self.num_inside)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Counts a request as in progress."""
        self.check()
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1
