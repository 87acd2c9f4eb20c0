"""Flax Linen models: shapes in, shapes out. They know nothing of data, loss, mesh or config files.

The axis alphabet, used in every shape comment and einsum of the project:

    B batch, T query length, S key length, D model width, N heads, G key/value heads, H head size,
    F feed-forward, V vocabulary, L layers, M memory length

`build(section)` makes a model from a config's model section. The interface of every model:

    inputs                 names of the batch features that its call takes
    example()              the smallest inputs, to initialize with
    model(**inputs, carried, row, train) -> Output(hidden, carried)
    init_memory(lanes)     memory at the start of lanes' streams, boxed with axis names; {} for models without
    init_cache(rows, length, **source)   empty cache for decoding; `source` holds an encoder's inputs
    vocab_size             number of ids that it predicts
    input_vocab_size       number of ids that it can read
    input_limits           {input: rows of the table that it indexes}
    causal                 no token sees a later one: padding, which comes last, then needs no segments
    has_branches           the call takes `branches`: texts of a row that continue the same beginning
    single_softmax         one softmax gives all probabilities
    head_inputs(hidden)    (hidden, matrix, bias) of that softmax, or None
    cluster_inputs(hidden) the same for each softmax of an adaptive vocabulary
    logits(hidden)         float32, over the whole vocabulary
    has_nsp_head           pooled(hidden) and pair_logits(hidden) predict whether the second text follows the first
    task                   what a task asks for, or None; then task_logits(hidden, places) are its predictions, and
                           summary_place says which token stands for a row
    types                  of encoders: rows of the table that distinguishes the texts of a row; 0 if there is none
    has_discriminator      a generator and a discriminator (ELECTRA) with `generator_size` and `head`. The generator has
                           generate(tokens, ...), like the call, and generator_inputs(hidden), like head_inputs; the
                           discriminator has replaced_logits(hidden) or copy_logits(hidden)

Arguments that all calls share:

    carried                what the call before returned, or `init_memory` or `init_cache`: {branch: memory or cache}
    row                    [B], each row's index in the global batch, by which dropout draws; by default its index here
    train                  dropout is on, with the rng named "dropout"
"""

from models.build import ABSENT, build
from models.errors import ModelError

__all__ = ["ABSENT", "ModelError", "build"]
