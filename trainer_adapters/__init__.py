"""What connects trainers to the service; one module per trainer, and the loss for replayed rollouts.

Importing this package loads nothing: ``trainer_adapters.loss`` needs torch, ``clients`` does not.
"""
