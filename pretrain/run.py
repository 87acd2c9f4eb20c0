"""A trained run, to be read and not changed: for notebooks, and for the commands that write text."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import jax
import numpy as np

from input_pipeline import corruption, pipeline
from input_pipeline.corruption.prompts import Prompts
from pretrain import config as configs
from pretrain.assemble import check_vocabulary
from pretrain.checkpoints.average import Averaged
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.config.values import shown
from pretrain.decoding.decoding import generate
from pretrain.distributed.init import quiet
from pretrain.errors import UserError, nearest
from pretrain.parallel.mesh import OF_ANY_NUMBER
from pretrain.step.engine import make_engine
from pretrain.step.train_spec import make_learner
from pretrain.workdir import Workdir


class Run:
    """What a work folder holds of one checkpoint, or of the mean of its last ones, on the devices that there are.

    config: the run's, as resolved. tokenizer: `encode(text)`, `decode(ids)`. step: updates that were made.
    model: a Flax module. variables: what `model.apply` takes, {"params": arrays of their true shapes}, split over
    `devices` along any axis that they divide, whatever mesh the run was trained on.
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
        check_vocabulary(self.config, self.tokenizer.vocab_size)
        spread = copy.deepcopy(self.config)
        with spread.unlocked():
            spread.train.backend = "jit"
            spread.mesh.update(OF_ANY_NUMBER)
        self._engine = make_engine(make_learner(spread), spread, devices)
        checkpoints = Checkpoints(workdir)
        shapes = self._engine.shapes(self._engine.layout.batch_shards()).params

        def read(number: int):
            checkpoints.check_made_with(number, self.tokenizer, self.config)
            return Averaged(checkpoints, self.config.checkpoint, average, report).restore_params(number, shapes)

        with quiet():
            self.step, params = checkpoints.read(step, checkpoints.find(step), read)
        # Rows of any length, and of any number, are read: each is given the path that serves it.
        self.model = self._engine.learner.model.clone(attention_path="auto")
        self.variables = {"params": params}

    def logits(self, tokens, **inputs) -> jax.Array:
        """What the model says at each token: tokens [B, T] -> float32 [B, T, V]; or [T] -> [T, V]. Compiled.

        `inputs` are the others that `model.inputs` names, such as an encoder-decoder's `inputs`, with as many rows.
        Each row is a text of its own, from its beginning: a recurrent model remembers nothing before it. Errors:
        UserError for inputs that the model has not, what is no array of whole numbers, and ids that it cannot read;
        ModelError for rows too long.
        """
        known = [name for name, example in self.model.example().items() if example.ndim == 2]  # a number a token
        given = {"tokens": tokens} | inputs
        for name in given:
            if name not in known:
                raise UserError(f"the model takes no '{name}'{nearest(name, known)}")
        if "inputs" in known and inputs.get("inputs") is None:
            raise UserError(
                "the model writes for a text that it reads, its 'inputs'; give run.logits(tokens, "
                "**run.prompts([text]).source)"
            )
        rows = {name: np.atleast_2d(_whole_numbers(name, values)) for name, values in given.items()}
        for name, values in rows.items():
            self._check_range(name, values)
            _check_shape(name, values, rows)
        rows = {name: values.astype(np.int32) for name, values in rows.items()}
        count = len(rows["tokens"])
        more = self._engine.layout.filled(count) - count  # rows of nothing, so that the devices share them evenly
        filled = {name: np.pad(values, [(0, more)] + [(0, 0)] * (values.ndim - 1)) for name, values in rows.items()}
        with self._engine.scope():
            found = self._forward(self.variables, filled)[:count]
        return found[0] if np.ndim(tokens) == 1 else found

    def prompts(self, texts: Sequence[str]) -> Prompts:
        """The ids that stand before what the model writes for `texts`, and its other inputs, as its task has them.

        `begun` are ids int32 [T], one array a text; `source` inputs by name, a row a text. Errors: UserError for what
        is no text; DataError where the task writes nothing.
        """
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(t, str) for t in texts):
            raise UserError(f"the prompts are {shown(texts)}, not a list of texts; give one, such as ['once', 'twice']")
        if not len(texts):
            raise UserError("there is no prompt; give at least one text")
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError:  # a half of a character; of a command line, bytes that Python could not decode
                raise UserError(f"the prompt {text!a:.60} is not UTF-8; write it in UTF-8") from None
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
        """What a model writes for `prompt`, behind it where it goes on with it, sampled; `temperature` 0 is greedy.

        At most `max_tokens` tokens are written, of which None are 100, or as many as the context leaves room for.
        `top_k` 0 and `top_p` 1 leave no token out; `repetition_penalty` makes those that are there less likely.
        `pretrain generate` takes several prompts at once, and searches with beams. Errors: UserError for a run of
        images, and for a prompt that leaves no room in the context; DataError where the run's task writes nothing.
        """
        if self.config.data.image:
            raise UserError(
                "this run was trained on images, which no prompt begins; give `pretrain generate --complete`"
            )
        if not isinstance(prompt, str):
            raise UserError(
                f"the prompt is {shown(prompt)}, not a text; give one str at a time, or several to `pretrain generate`"
            )
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
        """The parameters whole on one device, as decoding takes them: one prompt is not split. Those of `variables`."""
        return jax.device_put(self.variables["params"], self._engine.mesh.local_devices[0])

    @cached_property
    def _forward(self):
        def forward(variables, inputs):
            hidden = self.model.apply(variables, **inputs).hidden
            return self.model.apply(variables, hidden, method="logits")

        return jax.jit(forward)

    def _check_range(self, name: str, values: np.ndarray) -> None:
        """Raises UserError for numbers of an input that index no row of its table: JAX would read another."""
        end = self.model.limits.get(name, 2**31)
        if not 0 <= values.min() <= values.max() < end:
            remedy = "use the run's own tokenizer" if end == self.model.reads else "give only those"
            found = f"'{name}' go from {values.min()} to {values.max()}"
            raise UserError(f"{found}, and the model reads those from 0 to {end - 1}; {remedy}")


def _check_shape(name: str, values: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
    """Raises UserError where an input has not the rows of the tokens, or not a number for each that it says more of."""
    like = "inputs" if name.startswith("input_") and "inputs" in rows else "tokens"
    there, same_rows = rows[like].shape, len(values) == len(rows["tokens"])
    if values.ndim > 2:
        raise UserError(f"'{name}' is {list(values.shape)}; give rows of numbers, or one row")
    if not same_rows or (name != "inputs" and values.shape != there):
        wanted = f"as many rows as '{like}'" if name == "inputs" else f"a number for each of '{like}'"
        raise UserError(f"'{name}' is {list(values.shape)} and '{like}' {list(there)}; give {wanted}, in rows")


def _whole_numbers(name: str, values) -> np.ndarray:
    """The array of a model's input. Errors: UserError where it is none of whole numbers, all rows of one length."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(
            f"'{name}' has rows of unequal lengths; give rows of one length, or one row at a time"
        ) from None
    if not array.size or array.dtype.kind not in "iu":
        what = f"of {array.dtype.name}" if array.size else "empty"
        raise UserError(f"'{name}' is {what}; give whole numbers, such as run.prompts(['some text']).begun[0]")
    return array
