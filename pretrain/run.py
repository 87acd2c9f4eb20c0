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
from pretrain.scoring.attention import Attention, attention
from pretrain.scoring.fill import Filled, fill
from pretrain.scoring.hidden import BATCH, embed, hidden
from pretrain.scoring.reader import Reader, Text
from pretrain.scoring.requests import Scorer
from pretrain.scoring.text_scores import score_texts
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
        self.spec = TrainSpec.build(spread, devices)
        check_vocabulary(self.spec.model, self.tokenizer.vocab_size)
        checkpoints = Checkpoints(workdir)
        shapes = self.spec.checkpoint_shapes(self.spec.layout.batch_shards()).params

        def read(number: int):
            checkpoints.check_made_with(number, self.tokenizer, self.config)
            return CheckpointAverage(checkpoints, average, report).restore_params(number, shapes)

        # Parameters are sharded over all devices by fsdp, whatever mesh trained them.
        with quiet():
            self.step, params = checkpoints.read(step, checkpoints.find(step), read)
        # Rows have any length here, so each gets the attention backend that supports it.
        self.model = self.spec.model.clone(attention_path="auto")
        self.variables = {"params": params}

    def logits(self, tokens, **inputs) -> jax.Array:
        """Logits at each token: tokens [B, T] -> float32 [B, T, V], or [T] -> [T, V]. Compiled.

        `inputs` are other inputs named by `model.inputs`, such as an encoder-decoder's `inputs`, with the same
        number of rows. Each row is a text from its beginning: recurrent memory starts empty. Errors: UserError for
        unknown inputs, wrong shapes and ids out of range; ModelError for rows that are too long.
        """
        known = [name for name, example in self.model.example().items() if example.ndim == 2]  # a number a token
        rows = {name: np.atleast_2d(np.asarray(values)) for name, values in ({"tokens": tokens} | inputs).items()}
        for name, values in rows.items():
            if name not in known:
                raise UserError(f"the model takes no '{name}'{nearest(name, known)}")
            self._check(name, values, rows)
        rows = {name: values.astype(np.int32) for name, values in rows.items()}
        count = len(rows["tokens"])
        more = self.spec.layout.filled(count) - count  # padding rows, so that the devices divide them
        filled = {name: np.pad(values, [(0, more)] + [(0, 0)] * (values.ndim - 1)) for name, values in rows.items()}
        with self.spec.scope():
            found = self._forward(self.variables, filled)[:count]
        return found[0] if np.ndim(tokens) == 1 else found

    def _check(self, name: str, values: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
        """Raises UserError for an input of another shape, or with ids outside its table."""
        # Annotations of an encoder's inputs have their length, all others that of the tokens.
        like = rows.get("inputs", rows["tokens"]) if name.startswith("input_") else rows["tokens"]
        expected = like.shape if name != "inputs" else (len(like), values.shape[-1])
        if values.shape != expected:
            raise UserError(f"{name}: shape {list(values.shape)}. It must be {list(expected)}.")
        end = self.model.input_limits.get(name, 2**31)
        # JAX would clip ids outside the table silently.
        if values.dtype.kind not in "iu" or not 0 <= values.min() <= values.max() < end:
            raise UserError(f"{name}: not integers from 0 to {end - 1}. Use the run's tokenizer.")

    def prompts(self, texts: Sequence[str]) -> Prompts:
        """The decoder's first ids and the model's other inputs for each of `texts`.

        `begun` are ids int32 [T], one array per text; `source` are inputs by name, one row per text. Errors: DataError
        for an objective that does not generate.
        """
        return self.objective.prompts(texts)

    @cached_property
    def objective(self):
        """The run's objective of pretraining (`input_pipeline.corruption`)."""
        return corruption.build(self.config.objective.to_dict(), self.tokenizer, self.frame)

    def generate(self, prompt: str, *, temperature: float = 0.8, **options) -> str:
        """Samples a text for `prompt`, which it starts with where the model continues it; `temperature` 0 is greedy.

        `options` are max_tokens (None: 100, or the room left in the context), top_k (0: all tokens), top_p,
        repetition_penalty and seed. `pretrain generate` takes several prompts and has beam search. Errors: UserError
        for a prompt that fills the context; DataError for an objective that does not generate.
        """
        begun, source, continued = self.prompts([prompt])
        before = prompt if continued else ""
        options |= {"end_id": self.tokenizer.end_id, "vocabulary": self.tokenizer.vocab_size, "source": source}
        ((new, _),) = generate(self.model, self.local_params, begun, temperature=temperature, **options)
        return before + self.tokenizer.continuation(begun[0], new, before)

    def scorer(self, **options) -> Scorer:
        """Scores requests; `options` are begins, within_word and tokens of `Scorer.build`."""
        return Scorer.build(self.model, self.variables, self.spec.layout, self.tokenizer, self.config, **options)

    def score(self, texts: Sequence[str | tuple[str, str]], tokens: bool = False, **options) -> list[dict]:
        """Nats, tokens, bytes, characters and words of each text, or of each (context, continuation).

        With `tokens` also the pieces and the log-probability of each; `options` as of `scorer`. Errors: UserError for
        models without likelihoods.
        """
        return score_texts(self.scorer(**options), texts, tokens)

    def fill(self, text: str, top: int = 5) -> list[list[Filled]]:
        """Candidates for each gap of a text, as `pretrain.scoring.fill.fill`."""
        return fill(self, text, top)

    def hidden(
        self,
        texts: Sequence[Text],
        layers: int | str | Sequence[int] = -1,
        pool: str = "none",
        *,
        stack: str = "",
        length: int = 0,
        batch_size: int = BATCH,
    ) -> np.ndarray | list[np.ndarray]:
        """Hidden states of texts, or of texts that are given as lists of words, float32.

        layers: 0 for embeddings to L, a sequence of them, "0,6" or "all"; several put an axis K before D or T.
        pool: "mean", "first" or "last" of a text's tokens, specials included, give an array [N, D]; "none", all tokens,
            a list of [T, D]; "word", means over the tokens of words, a list of [W, D], NaN for those that are cut off.
        stack: of encoder-decoders encoder (default) or decoder, which reads the text shifted right.
        length: tokens after which texts are cut, 0: the context. batch_size: rows read at once.
        Errors: UserError.
        """
        rows = self.reader.rows(texts, length, spans=pool == "word")
        return hidden(self.reader, rows, layers, pool, stack, batch_size)

    def embed(self, texts: Sequence[Text], pool: str = "mean", normalize: bool = True, **options) -> np.ndarray:
        """One vector for each text, float32 [N, D], of length 1 with `normalize`.

        `options` are layer (by default what heads of tasks read: the last one, or model.mix), and stack, length and
        batch_size as of `hidden`. Errors: UserError.
        """
        rows = self.reader.rows(texts, options.pop("length", 0))
        return embed(self.reader, rows, pool, normalize, **options)

    def attention(self, texts: Sequence[str], targets: Sequence[str] | None = None, length: int = 0) -> list[Attention]:
        """Attention probabilities in each text, by layer and head, from the reference backend.

        targets: of encoder-decoders the text that the decoder reads, by default the text itself, shifted right; with
        them the encoder reads the text as a prompt. length: tokens after which texts are cut, 0: the context.
        Errors: UserError.
        """
        return attention(self.reader, self.local_params, texts, targets, self.objective, length)

    @cached_property
    def reader(self) -> Reader:
        """Reads texts for hidden states and attention. Errors: UserError for a run of images."""
        if self.config.data.image:
            raise UserError(f"config.data.image={self.config.data.image}: reads no text. Name a run of texts.")
        return Reader(self.model, self.variables, self.tokenizer, self.frame, self.spec.layout)

    @property
    def frame(self) -> corruption.Frame:
        """Special tokens around a text, and around a pair."""
        single, pair = self.config.tokenizer.single, self.config.tokenizer.pair
        return corruption.Frame(single, pair, self.tokenizer.special)

    @property
    def local_params(self):
        """The parameters whole on one device, for decoding: one prompt is not sharded."""
        return self.spec.layout.local_copy(self.variables["params"])

    @cached_property
    def _forward(self):
        def forward(variables, inputs):
            hidden = self.model.apply(variables, **inputs).hidden
            return self.model.apply(variables, hidden, method="logits")

        return jax.jit(forward)
