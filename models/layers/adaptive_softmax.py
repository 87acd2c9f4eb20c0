"""Adaptive input and softmax: rare words get narrow vectors (Grave et al. 2017; Baevski & Auli 2019; Dai et al. 2019).

The vocabulary, sorted by frequency, is cut into clusters. Cluster i has vectors of width embed / divisor^i, projected
to the model's width. The output predicts, in one softmax, a word of the first cluster or one of the other clusters,
and then, in that cluster's softmax, a word of it:

    log p(w) = log p(w | head)                                w in the first cluster
    log p(w) = log p(cluster | head) + log p(w | cluster)     otherwise

The recipe says whether input and output share word vectors, and which projections.
"""

import itertools

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.init import constant, embedding_table, normal
from models.layers.logits import head_logits

SHARING = ("all", "tails", "none")  # which projections the output shares with the input


class AdaptiveVocabulary(nn.Module):
    """Embedding and softmax over `vocab_size` words, cut before each index of `cutoffs`; () means one cluster."""

    vocab_size: int
    cutoffs: tuple[int, ...]
    width: int
    embed: int
    divisor: int
    project_always: bool
    tied_words: bool
    shared_projections: str
    std: float
    projection_std: float
    dtype: str
    param_dtype: str

    def setup(self):
        self.edges = (0, *self.cutoffs, self.vocab_size)
        sizes = [stop - start for start, stop in itertools.pairwise(self.edges)]
        widths = [self.embed // self.divisor**i for i in range(len(sizes))]
        groups = list(enumerate(zip(sizes, widths, strict=True)))
        if self.divisor == 1:
            groups = [(0, (self.vocab_size, self.embed))]  # all words are equally wide: one table
        init = embedding_table(normal(self.std, "vocab", None))
        self.tables = [self.param(f"words_{i}", init, shape, self.param_dtype) for i, shape in groups]
        self.out_tables = self.tables
        if not self.tied_words:
            self.out_tables = [self._param(f"out_words_{i}", self.std, ("vocab", None), shape) for i, shape in groups]
        # With one width for all there is one projection at the input, but still one for each softmax at the output.
        self.projections = self._projections("in", range(len(groups)), widths)
        # Those the output does not share; the head's is never shared with `tails`.
        own = {"all": [], "tails": [0], "none": range(len(widths))}[self.shared_projections]
        self.out_projections = self._projections("out", own, widths)
        self.word_bias = self.param("word_bias", constant(0.0, "vocab"), (self.vocab_size,), self.param_dtype)
        if self.cutoffs:
            tails = len(self.cutoffs)
            self.clusters = self._param("clusters", self.std, (None, None), (tails, self.embed))
            self.cluster_bias = self.param("cluster_bias", constant(0.0, None), (tails,), self.param_dtype)

    def embed_tokens(self, tokens: jax.Array) -> jax.Array:
        """tokens [B, T] -> vectors [B, T, D], times sqrt(D)."""
        # Every table is looked up for every token and all but one result is dropped: shapes stay static, and narrow
        # clusters cost little. A scatter by cluster would have a size that depends on the data.
        total = jnp.zeros((*tokens.shape, self.width), self.dtype)
        for i, (start, table) in enumerate(zip(self.edges, self.tables, strict=False)):
            in_cluster = (tokens >= start) & (tokens < start + len(table))
            # Clipped where a token is in another cluster; that result is dropped.
            vectors = jnp.take(table, jnp.clip(tokens - start, 0, len(table) - 1), axis=0).astype(self.dtype)
            if i in self.projections:
                vectors = vectors @ self.projections[i].astype(self.dtype)
            total = jnp.where(in_cluster[..., None], vectors, total)
        # As the Transformer's embeddings (Vaswani et al. 2017, section 3.4).
        return total * self.width**0.5

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Log-probabilities of the whole vocabulary, float32 [..., V]: normalized logits."""
        head = self._log_softmax(hidden, 0)
        parts = [head[..., : self.edges[1]]]
        for i in range(1, len(self.edges) - 1):
            # log p(w) = log p(cluster | head) + log p(w | cluster)
            parts.append(self._log_softmax(hidden, i) + head[..., self.edges[1] + i - 1, None])
        return jnp.concatenate(parts, axis=-1)

    def cluster_inputs(self, hidden: jax.Array) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
        """`softmax_inputs` of every softmax, from hidden [..., D]."""
        return [self.softmax_inputs(hidden, i) for i in range(len(self.edges) - 1)]

    def softmax_inputs(self, hidden: jax.Array, i: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Inputs of softmax i's logits: hidden [..., E] after projection, matrix [C, E], bias [C].

        Softmax 0 chooses among the words of the first cluster, then the other clusters; softmax i among cluster i's.
        """
        start, stop = self.edges[i : i + 2]
        words = self.out_tables[0][start:stop] if self.divisor == 1 else self.out_tables[i]
        bias = self.word_bias[start:stop]
        if i == 0 and self.cutoffs:
            words = jnp.concatenate([words, self.clusters])
            bias = jnp.concatenate([bias, self.cluster_bias])
        projection = self.out_projections.get(i, self.projections.get(0 if self.divisor == 1 else i))
        if projection is not None:
            # (h P^T) W^T, not h (W P)^T: hidden states become narrow once, and no [C, D] matrix is made.
            hidden = hidden @ projection.astype(hidden.dtype).T
        return hidden, words, bias

    def _log_softmax(self, hidden, i):
        return jax.nn.log_softmax(head_logits(*self.softmax_inputs(hidden, i)))

    def _projections(self, end, clusters, widths):
        """{cluster: [its width, D]} for those of `clusters` that need one."""
        needed = [i for i in clusters if self.project_always or widths[i] != self.width]
        names = (None, "embed")
        return {i: self._param(f"{end}_{i}", self.projection_std, names, (widths[i], self.width)) for i in needed}

    def _param(self, name, std, names, shape):
        return self.param(name, normal(std, *names), shape, self.param_dtype)
