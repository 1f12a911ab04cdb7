"""Training of the paper's adapter from pass rates of many models: projections and calibration head."""

from selector.adapter_training.data import RatedQuestions, rated_questions
from selector.adapter_training.errors import TrainingDataError
from selector.adapter_training.split import Split, split
from selector.adapter_training.training import Epoch, Trained, TrainingOptions, train

__all__ = [
    "Epoch",
    "RatedQuestions",
    "Split",
    "Trained",
    "TrainingDataError",
    "TrainingOptions",
    "rated_questions",
    "split",
    "train",
]
