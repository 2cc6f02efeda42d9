"""Batches whose images are streamed to the device and cropped there."""

from collections.abc import Generator

from t2t.data.crops import Crop
from t2t.data.loader import make_batch
from t2t.data.sampler import Batch
from t2t.data.streaming.stream import Decoded, ImageStream


class StreamBatches:
    """Batches whose images are streamed to the device and cropped there."""

    def __init__(
        self,
        stream: ImageStream,
        crops: tuple[Crop, ...] = (),
        *,
        description: str = "",
    ) -> None:
        self.stream = stream
        self.crops = crops
        self.description = description

    def steps(self, start: int, stop: int) -> Generator[Batch]:
        """The batches of these steps, in order; threads end with the iterator."""
        return self.stream.steps(start, stop, self._batch)

    def _batch(self, step: int, decoded: Decoded) -> Batch:
        stream = self.stream
        return make_batch(
            decoded.images,
            decoded.loaded,
            decoded.batch_indices,
            stream.loader.source.labels,
            self.crops,
            seed=stream.sampler.seed,
            step=step,
        )
