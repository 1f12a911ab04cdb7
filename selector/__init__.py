"""Curriculum Selector: a service that chooses what a language model practises on during RL fine-tuning.

This package imports nothing heavy by itself: clients and trainer adapters load ``selector.v1`` (the generated
protocol) from it in environments that hold only grpcio, protobuf and numpy.
"""

__version__ = "0.1.0"
