"""The picture of what a model sees in images."""

from collections.abc import Sequence
from pathlib import Path

from t2t.analysis.attention_figure import Seen, draw_sights
from t2t.analysis.attention_rollout import look
from t2t.screen import counting
from t2t.serving.predictor import Prediction, Predictor


def draw_seen(
    predictor: Predictor, predictions: Sequence[Prediction], path: str
) -> Path:
    """Draws images that were predicted; they are read again."""
    seen = []
    with counting("looking") as progress:
        for number, prediction in enumerate(predictions):
            progress(number, len(predictions))
            pixels = predictor.see(prediction.image)
            best = prediction.best
            image = predictor.normalised(pixels)
            seen.append(
                Seen(
                    name=Path(prediction.image).name,
                    pixels=pixels,
                    guess=best.name,
                    probability=best.probability,
                    sight=look(predictor.model, image, best.index),
                )
            )
    trained = predictor.trained
    return draw_sights(seen, path, f"What {trained.name} ({trained.path}) sees")
