"""The seam between searches and whatever measures for them."""

from collections.abc import Sequence
from typing import Protocol

from atoffer_rl.device import DeviceSpec
from atoffer_rl.trial import Request, Trial


class Measurer(Protocol):
    """Answers requests with trials.

    Attributes:
        name: `cuda` or `replay`.
        device: The GPU whose latencies it gives.
    """

    name: str
    device: DeviceSpec

    def measure(self, requests: Sequence[Request]) -> list[Trial]:
        """One trial a request, in order; failures are trials too.

        Raises:
            NotRecorded: In replay, if a request was never recorded.
            DeviceUnavailable: If a GPU was lost for good.
        """
        ...

    def known(self, request: Request) -> Trial | None:
        """The trial that a live store already holds for `request`; replay knows nothing in advance."""
        ...

    def close(self) -> None:
        """Release the device and its worker process."""
        ...
