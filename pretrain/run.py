"""A trained run, read-only: for notebooks and for the commands that generate text."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import jax
import numpy as np

from input_pipeline import corruption, pipeline
from input_pipeline.corruption.base import Prompts
from pretrain import config as configs
from pretrain.checkpoints.average import CheckpointAverage
from pretrain.checkpoints.restore import Checkpoints
from pretrain.decoding.sampling import generate
from pretrain.distributed.init import quiet
from pretrain.errors import UserError, nearest
from pretrain.parallel.mesh import ANY_DEVICES
from pretrain.step.checks import check_vocabulary
from pretrain.step.train_spec import TrainSpec
from pretrain.workdir import Workdir


class Run:
    """One checkpoint of a work folder, or the mean of its last ones, on the present devices.

    config: the run's resolved config. tokenizer: `encode(text)`, `decode(ids)`. step: number of updates.
    model: a Flax module. variables: {"params": ...} for `model.apply`, sharded over `devices` along any axis that they
    divide, whatever mesh the run was trained on.
    """

    def __init__(
        self,
        workdir: str,
        step: str = "latest",
        devices: Sequence[jax.Device] | None = None,
        average: int = 1,
        report: Callable[[str], None] = lambda message: None,
    ):
        self.config = configs.saved(workdir)
        self.tokenizer = pipeline.open_tokenizer(Workdir(workdir).folders.tokenizer)
        spread = copy.deepcopy(self.config)
        with spread.unlocked():
            spread.train.backend = "jit"
            spread.mesh.update(ANY_DEVICES)
        self._spec = TrainSpec.build(spread, devices)
        check_vocabulary(self._spec.model, self.tokenizer.vocab_size)
        checkpoints = Checkpoints(workdir)
        shapes = self._spec.checkpoint_shapes(self._spec.layout.batch_shards()).params

        def read(number: int):
            checkpoints.check_made_with(number, self.tokenizer, self.config)
            return CheckpointAverage(checkpoints, self.config.checkpoint, average, report).restore_params(
                number, shapes
            )

        # Parameters are sharded over all devices by fsdp, whatever mesh trained them.
        with quiet():
            self.step, params = checkpoints.read(step, checkpoints.find(step), read)
        # Rows have any length here, so each gets the attention backend that supports it.
        self.model = self._spec.model.clone(attention_path="auto")
        self.variables = {"params": params}

    def logits(self, tokens, **inputs) -> jax.Array:
        """Logits at each token: tokens [B, T] -> float32 [B, T, V], or [T] -> [T, V]. Compiled.

        `inputs` are other inputs named by `model.inputs`, such as an encoder-decoder's `inputs`, with the same
        number of rows. Each row is a text from its beginning: recurrent memory starts empty. Errors: UserError for
        unknown inputs, arrays not of integers, and ids out of range; ModelError for rows that are too long.
        """
        known = [name for name, example in self.model.example().items() if example.ndim == 2]  # a number a token
        given = {"tokens": tokens} | inputs
        for name in given:
            if name not in known:
                raise UserError(f"the model takes no '{name}'{nearest(name, known)}")
        if "inputs" in known and inputs.get("inputs") is None:
            raise UserError("inputs: missing, and the model reads them. Give **run.prompts([text]).source.")
        rows = {name: np.atleast_2d(_whole_numbers(name, values)) for name, values in given.items()}
        for name, values in rows.items():
            self._check_range(name, values)
            _check_shape(name, values, rows)
        rows = {name: values.astype(np.int32) for name, values in rows.items()}
        count = len(rows["tokens"])
        more = self._spec.layout.filled(count) - count  # padding rows, so that the devices divide them
        filled = {name: np.pad(values, [(0, more)] + [(0, 0)] * (values.ndim - 1)) for name, values in rows.items()}
        with self._spec.scope():
            found = self._forward(self.variables, filled)[:count]
        return found[0] if np.ndim(tokens) == 1 else found

    def prompts(self, texts: Sequence[str]) -> Prompts:
        """The decoder's first ids and the model's other inputs for each of `texts`.

        `begun` are ids int32 [T], one array per text; `source` are inputs by name, one row per text. Errors: UserError
        for values that are not texts; DataError for an objective that does not generate.
        """
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(t, str) for t in texts):
            raise UserError(f"prompts={texts!r:.60}: not a list of texts. Give one, such as ['once', 'twice'].")
        if not len(texts):
            raise UserError("prompts: empty. Give at least one text.")
        return corruption.build(self.config.objective.to_dict(), self.tokenizer).prompts(texts)

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
    ) -> str:
        """Samples a text for `prompt`, which it starts with where the model continues it; `temperature` 0 is greedy.

        `max_tokens` None means 100, or the room left in the context. `top_k` 0 and `top_p` 1 keep every token.
        `pretrain generate` takes several prompts and has beam search. Errors: UserError for a run of images and for a
        prompt that fills the context; DataError for an objective that does not generate.
        """
        if self.config.data.image:
            raise UserError("prompt: this run was trained on images. Use `pretrain generate --complete`.")
        if not isinstance(prompt, str):
            raise UserError(f"prompt={prompt!r:.60}: not a text. Give one str.")
        begun, source, continued = self.prompts([prompt])
        before = prompt if continued else ""
        ((new, _),) = generate(
            self.model,
            self.local_params,
            begun,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            end_id=self.tokenizer.end_id,
            vocabulary=self.tokenizer.vocab_size,
            seed=seed,
            source=source,
        )
        return before + self.tokenizer.continuation(begun[0], new, before)

    @property
    def local_params(self):
        """The parameters whole on one device, for decoding: one prompt is not sharded."""
        return jax.device_put(self.variables["params"], self._spec.mesh.local_devices[0])

    @cached_property
    def _forward(self):
        def forward(variables, inputs):
            hidden = self.model.apply(variables, **inputs).hidden
            return self.model.apply(variables, hidden, method="logits")

        return jax.jit(forward)

    def _check_range(self, name: str, values: np.ndarray) -> None:
        """Raises UserError for ids outside the input's table, which JAX would clip silently."""
        end = self.model.input_limits.get(name, 2**31)
        if not 0 <= values.min() <= values.max() < end:
            found = f"from {values.min()} to {values.max()}"
            raise UserError(f"{name}: ids {found} are outside 0 to {end - 1}. Use the run's tokenizer.")


def _check_shape(name: str, values: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
    """Raises UserError where an input lacks the rows of the tokens, or the length of what it annotates."""
    like = "inputs" if name.startswith("input_") and "inputs" in rows else "tokens"
    expected = rows[like].shape if name != "inputs" else (len(rows["tokens"]), values.shape[-1])
    if values.shape != expected:
        raise UserError(f"{name}: shape {list(values.shape)}. It must be {list(expected)}, as '{like}'.")


def _whole_numbers(name: str, values) -> np.ndarray:
    """`values` as an integer array, rows of one length. Errors: UserError."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{name}: rows of unequal lengths. Give rows of one length.") from None
    if not array.size or array.dtype.kind not in "iu":
        raise UserError(f"{name}: empty, or not of integers. Give ids, such as run.prompts([text]).begun[0].")
    return array
