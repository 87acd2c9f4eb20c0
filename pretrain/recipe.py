"""From a config to what a train step is made of."""

import models
from pretrain import optimizers
from pretrain.step import Recipe


def make_recipe(config) -> Recipe:
    """Model, optimiser and loss of a config."""
    return Recipe(
        model=models.build(config.architecture, config.model.to_dict()),
        evaluated=models.build(config.architecture, config.model.to_dict() | config.evaluate.model.to_dict()),
        segmented=config.data.layout == "packed",
        optimizer=optimizers.build(config.optimizer, config.schedule, config.train.steps),
        rate=optimizers.schedule(config.schedule, config.train.steps),
        accumulate=config.train.accumulate,
        z_loss=config.train.z_loss,
        label_smoothing=config.train.label_smoothing,
    )
