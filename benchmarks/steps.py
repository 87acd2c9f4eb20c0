"""Training steps to time: updates on one batch, of ours and of PyTorch, and random batches."""

from collections.abc import Callable, Mapping

import numpy as np

NO_DROPOUT = dict.fromkeys(("dropout_embedding", "dropout_attention", "dropout_residual", "dropout_ff"), 0.0)


def random_batch(spec, rows: int, length: int) -> dict[str, np.ndarray]:
    """Full rows of random ids."""
    from input_pipeline.batch_spec import empty

    draw = np.random.default_rng(0)
    batch = empty(spec.features(rows, length))
    for name, array in batch.items():
        if name.endswith("segments") or name == "weights":
            array[:] = 1
        elif name.endswith("positions"):
            array[:] = np.arange(array.shape[1])
        elif name == "slots":
            array[:] = np.sort(draw.permutation(length)[: array.shape[1]])
        else:
            array[:] = draw.integers(0, spec.model.vocab_size, array.shape)
    return batch | {"row": np.arange(rows, dtype=np.int32)}


def updates(spec, batch: Mapping[str, np.ndarray], rows: int) -> Callable:
    """Function that makes some updates of ours, waits, and returns the metrics of the last one."""
    import jax

    state, data = spec.init(0, rows), spec.put(batch, rows)

    def step(times: int = 1):
        nonlocal state  # each step donates it
        for _ in range(times):
            state, metrics = spec.train_step(state, data)
        return jax.block_until_ready(metrics)

    return step


def torch_updates(loss: Callable, parameters, optimizer) -> Callable:
    """Function that makes some updates of PyTorch, clipped at 1, and returns the last loss."""
    import torch

    parameters = list(parameters)  # a model gives a generator, which is empty after one update

    def step(times: int = 1) -> float:
        for _ in range(times):
            value = loss()
            value.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(value.detach())

    return step
