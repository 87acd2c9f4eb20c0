"""How fast training goes."""

import jax

from pretrain.costs.flops import flops_per_token
from pretrain.metrics.progress import Ledger
from pretrain.parallel.devices import peak_flops
from pretrain.step.train_spec import TrainSpec


class Rates:
    """Tokens per second, MFU and the share of time spent waiting for data, between two readings.

    Training alone is measured: the seconds that `ledger` charges to `step` and `data`, and not those of compiling,
    evaluating and saving. The first update compiles, so neither it nor the time until it is done counts. Tokens are
    those that the model reads, padding left out, whether or not a loss scores them.
    """

    def __init__(self, spec: TrainSpec, config, ledger: Ledger):
        self._peak = peak_flops(jax.devices()[0].device_kind, config.log.peak_flops)
        if self._peak:
            self._flops = flops_per_token(spec, config.data.length)["full"]
        self._ledger = ledger
        self._since: dict[str, float] | None = None  # seconds by category at the last reading
        self._done = ledger.seconds()  # the same when the last update was done
        self._tokens = 0.0

    def count(self, tokens: float, seconds: dict[str, float] | None = None) -> None:
        """An update is done that has read so many tokens, over all processes.

        `seconds` is what the ledger held when it was done, where that is known; else it is done just now.
        """
        # The last one's metrics may have been waited for while this one was made: seconds never go back.
        self._done = max(self._done, seconds or self._ledger.seconds(), key=_of_training)
        if self._since is None:
            self._since = self._done
        else:
            self._tokens += tokens

    def read(self) -> dict[str, float]:
        """`tokens_per_second`, `data_wait` and, where the device's peak is known, `mfu`, since the last reading.

        Empty where no update has been counted since, or none that took time.
        """
        now = self._done
        if not self._tokens or _of_training(now) <= _of_training(self._since):
            return {}
        elapsed = _of_training(now) - _of_training(self._since)
        rates = {
            "tokens_per_second": self._tokens / elapsed,
            "data_wait": (now["data"] - self._since["data"]) / elapsed,
        }
        if self._peak:
            rates["mfu"] = rates["tokens_per_second"] * self._flops / (self._peak * jax.device_count())
        self._since, self._tokens = now, 0.0
        return rates


def _of_training(seconds: dict[str, float]) -> float:
    return seconds["step"] + seconds["data"]
