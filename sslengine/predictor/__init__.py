"""Apply a trained run to single images: features, classes, the nearest training images.

predictor = Predictor("runs/mine")
found = predictor("some.png")
"""

from sslengine.predictor.predictor import Neighbour, Prediction, Predictor

__all__ = ["Neighbour", "Prediction", "Predictor"]
