"""The kinds of models: a section for each, with every key, typed by its default, with its range and a comment.

configs/common.py, which recipes stand on, has the rest of the configuration.
"""

from configs.ranges import count, counts, non_negative, positive, rate, real, section, share


@section
def decoder() -> dict:
    """A GPT-style decoder: the fields of `models.gpt.Decoder`, splatted into it unchanged."""
    return dict(
        kind="decoder",  # which model this section describes; a recipe chooses it with the whole section
        vocab_size=count(50257),  # rows of the token table; at least the tokenizer's size
        context=count(1024),  # longest sequence, in tokens (rows of a learned position table)
        layers=count(12, below=2**16),  # number of blocks
        width=count(768),  # D, size of the residual stream
        heads=count(12, below=2**16),  # N, attention heads
        kv_heads=non_negative(0),  # key/value heads (grouped-query attention); 0 means `heads`
        head_size=non_negative(0),  # H, size of one head; 0 means width / heads
        query_size=non_negative(0),  # size of a head's queries and keys, where not that of its values; 0: head_size
        ff=count(3072),  # F, hidden size of the feed-forward block
        activation="gelu_tanh",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu; "gated_" before a name gates it
        norm="layer",  # layer or rms
        norm_epsilon=positive(1e-5),  # added to the variance
        final_norm_epsilon=non_negative(0.0),  # the same in the norm after the last layer; 0 means norm_epsilon
        placement="pre",  # pre, post, or replace (the normalised value becomes the residual: hands-on model)
        positions="learned",  # learned, sinusoid, sinusoid_concatenated (sines, then cosines), rotary, factorised, none
        position_axes=counts(()),  # factorised positions: sizes of the axes, the last turning fastest; a table for each
        scale_embedding=False,  # token vectors are multiplied by sqrt(width) when they are read (CTRL)
        start_row=False,  # one more row in the token table, of a start symbol that is never predicted
        bidirectional=False,  # every token sees all of its row, as masked objectives need it (hands-on model)
        attention=("dense",),  # attention pattern of each layer in turn; their number divides `layers`
        attention_path="auto",  # implementation: auto, reference, xla, chunked, cudnn, ...
        attention_bias=True,  # biases on query, key, value and output projections
        ff_bias=True,  # biases in the feed-forward block
        tied_head=True,  # output projection is the token table, transposed
        head_bias=False,  # bias on the logits
        dropout_embedding=rate(0.0),  # rate on the sum of the embeddings
        dropout_attention=rate(0.0),  # rate on attention probabilities
        dropout_residual=rate(0.0),  # rate on each block's output before it joins the residual
        dropout_ff=rate(0.0),  # rate on the feed-forward hidden layer
        init_std=non_negative(0.02),  # standard deviation of matrices and token table at the start
        init_gain=non_negative(0.0),  # above 0, matrices start at variance init_gain / inputs (Sparse Transformer)
        head_init_std=non_negative(0.02),  # standard deviation of an untied output projection at the start
        position_init_std=non_negative(0.01),  # the same of the learned position table
        norm_init_mean=real(1.0),  # mean of the norms' gains at the start
        norm_init_std=non_negative(0.0),  # standard deviation of the norms' gains at the start
        fused_glorot_init=False,  # query, key and value start as one Glorot-uniform matrix (PyTorch's attention module)
        scale_residual_init=True,  # divide output projections' init by sqrt(2 * layers), as GPT-2 does
        dtype="bfloat16",  # arithmetic of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # storage of parameters
        scan=True,  # compile one layer and scan it; the checkpoint is the same either way
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
    )


@section
def recurrent() -> dict:
    """Transformer-XL: the fields of `models.transformer_xl.Recurrent`, splatted into it unchanged."""
    return dict(
        kind="recurrent",  # which model this section describes; a recipe chooses it with the whole section
        vocab_size=count(204),  # words, most frequent first where there are cutoffs
        context=count(8192),  # longest text that `generate` writes, prompt included
        cutoffs=counts(()),  # first words of the clusters after the first, for adaptive embedding and softmax
        embed=non_negative(0),  # width of the first cluster's word vectors; 0 means `width`
        divisor=count(1),  # each cluster's word vectors are so many times narrower than those of the one before
        project_always=False,  # project word vectors even where they have the model's width already
        tied_words=True,  # the output's word vectors are the input's
        shared_projections="tails",  # projections that the output shares with the input: all, tails or none
        layers=count(12, below=2**16),  # number of blocks
        width=count(512),  # D, size of the residual stream
        heads=count(8, below=2**16),  # N, attention heads
        head_size=non_negative(0),  # H, size of one head; 0 means width / heads
        ff=count(2048),  # F, hidden size of the feed-forward block
        memory=count(512),  # M, hidden states of earlier segments that a layer looks back at
        positions="relative",  # relative (vectors of distances, with parameters of their own) or rotary (without)
        clamp=non_negative(0),  # of relative positions: distances beyond this count as this; 0 means never
        same_length=False,  # every query sees exactly M keys, its own included; evaluation has it
        shared_biases=True,  # of relative positions: all layers share the two attention biases u and v
        activation="relu",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu
        norm_epsilon=positive(1e-5),  # added to the variance
        attention_path="auto",  # implementation: auto, reference, xla, chunked; of rotary positions cudnn, splash too
        dropout=rate(0.1),  # rate on embeddings, distances, branches, feed-forward hidden layer, last hidden states
        dropout_attention=rate(0.0),  # rate on attention probabilities
        init_std=non_negative(0.02),  # standard deviation of matrices, word vectors, u and v at the start
        projection_init_std=non_negative(0.01),  # the same of the projections of narrow word vectors
        norm_init_std=non_negative(0.02),  # the same of the norms' gains, whose mean is 1
        dtype="bfloat16",  # arithmetic of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # storage of parameters
        scan=True,  # compile one layer and scan it; the checkpoint is the same either way
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
    )


@section
def two_stream() -> dict:
    """XLNet: the fields of `models.xlnet.TwoStream`, splatted into it unchanged."""
    return dict(
        kind="two_stream",  # which model this section describes; a recipe chooses it with the whole section
        vocab_size=count(32000),  # rows of the token table; at least the tokenizer's size
        context=count(512),  # longest row, in tokens; distances set no limit of their own
        layers=count(12, below=2**16),  # number of blocks
        width=count(768),  # D, size of the residual stream
        heads=count(12, below=2**16),  # N, attention heads
        head_size=non_negative(0),  # H, size of one head; 0 means width / heads
        ff=count(3072),  # F, hidden size of the feed-forward block
        memory=count(384),  # M, hidden states of earlier rows of its lane that a layer looks back at
        reuse=count(256),  # the first so many positions of a row are remembered; objective.reuse has to be the same
        clamp=non_negative(0),  # distances beyond this count as this; 0 means never
        activation="gelu_tanh",  # gelu_tanh, gelu_erf (Hugging Face's "gelu"), gelu_sigmoid, relu, silu
        norm_epsilon=positive(1e-12),  # added to the variance
        attention_path="auto",  # implementation: auto, reference, xla, chunked
        dropout=rate(0.1),  # rate on embeddings, distances, branches, feed-forward hidden layer, last hidden states
        dropout_attention=rate(0.1),  # rate on attention probabilities
        init_std=non_negative(0.02),  # standard deviation of everything but norms and biases at the start
        dtype="bfloat16",  # arithmetic of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # storage of parameters
        scan=True,  # compile one layer and scan it; the checkpoint is the same either way
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
    )


@section
def encoder() -> dict:
    """BERT and its kin: the fields of `models.bert.Encoder`, splatted into it unchanged."""
    return dict(
        kind="encoder",  # which model this section describes; a recipe chooses it with the whole section
        vocab_size=count(30522),  # rows of the token table; at least the tokenizer's size
        context=count(512),  # longest row, in tokens (rows of the position table)
        position_offset=non_negative(0),  # rows of the position table ahead of position 0's, never used (RoBERTa: 2)
        types=non_negative(2),  # rows of the type table: which of a pair's two texts a token is of; 0: no such table
        languages=non_negative(0),  # rows of the language table: which language a token is of (XLM); 0: no such table
        embed=non_negative(0),  # E, width of the tables and of the head before the token table; 0 means `width`
        project_always=False,  # project embeddings from E to D even where E is D (ALBERT's release)
        layers=count(12, below=2**16),  # number of blocks
        groups=non_negative(0),  # sets of parameters, each shared by layers / groups blocks; 0: each has its own
        width=count(768),  # D, size of the residual stream
        heads=count(12, below=2**16),  # N, attention heads
        ff=count(3072),  # F, hidden size of the feed-forward block
        activation="gelu_tanh",  # gelu_tanh (BERT's release), gelu_erf (its ports), gelu_sigmoid, relu, silu
        norm_epsilon=positive(1e-12),  # added to the variance
        attention=("dense",),  # attention pattern of each layer in turn; their number divides `layers`
        attention_path="auto",  # implementation: auto, reference, xla, chunked, cudnn, ...
        head_transform=True,  # a product, an activation and a norm between hidden states and the tied table (XLM: none)
        zero_padding=False,  # hidden states of padding are zero (XLM)
        pair_head=True,  # a pooler and a head of two logits on it, for next-sentence prediction
        dropout=rate(0.1),  # rate on the embeddings and on each branch's output before it joins the residual
        dropout_attention=rate(0.1),  # rate on attention probabilities
        initialiser="truncated",  # truncated (normal, cut off at 2 deviations), normal, or fan_in (uniform matrices)
        init_std=non_negative(0.02),  # standard deviation of that normal, with fan_in that of tables
        dtype="bfloat16",  # arithmetic of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # storage of parameters
        scan=True,  # compile one layer and scan it; the checkpoint is the same either way
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
    )


@section
def replaced_tokens() -> dict:
    """ELECTRA: the fields of `models.electra.ReplacedTokens`, splatted into it unchanged."""
    return dict(
        kind="replaced_tokens",  # which model this section describes; a recipe chooses it with the whole section
        vocab_size=count(30522),  # rows of the token table; at least the tokenizer's size
        context=count(512),  # longest row, in tokens (rows of the position table)
        position_offset=non_negative(0),  # rows of the position table before that of position 0, never used
        types=non_negative(2),  # rows of the type table: which of a row's two texts a token is of; 0: no such table
        embed=non_negative(0),  # E, width of the tables, which generator and discriminator share; 0 means `width`
        project_always=False,  # project embeddings from E to D even where E is D
        layers=count(12, below=2**16),  # number of blocks of the discriminator, and of the generator
        groups=non_negative(0),  # sets of a block's parameters, each for layers / groups of them; 0: all have their own
        width=count(768),  # D, size of the discriminator's residual stream
        heads=count(12, below=2**16),  # N, attention heads of the discriminator; the generator's are of the same size
        ff=count(3072),  # F, hidden size of the discriminator's feed-forward block; the generator's is 4 of its widths
        generator_size=share(0.25),  # the generator's width as a share of D; 0: tokens are replaced by any at random
        head="replaced",  # what the discriminator tells: replaced tokens, the text's tokens, or those or copied
        activation="gelu_erf",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu
        norm_epsilon=positive(1e-12),  # added to the variance
        attention=("dense",),  # attention pattern of each layer in turn; their number divides `layers`
        attention_path="auto",  # implementation: auto, reference, xla, chunked, cudnn, ...
        dropout=rate(0.1),  # rate on the embeddings and on each branch's output before it joins the residual
        dropout_attention=rate(0.1),  # rate on attention probabilities
        initialiser="truncated",  # how matrices and tables start: truncated (normal, cut off at 2 deviations) or normal
        init_std=non_negative(0.02),  # standard deviation of that normal
        dtype="bfloat16",  # arithmetic of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # storage of parameters
        scan=True,  # compile one layer and scan it; the checkpoint is the same either way
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
    )


@section
def encoder_decoder() -> dict:
    """T5, BART, the original Transformer: the fields of `models.t5.EncoderDecoder`, splatted unchanged."""
    return dict(
        kind="encoder_decoder",  # which model this section describes; a recipe chooses it with the whole section
        vocab_size=count(32128),  # rows of the token table, which both stacks read; at least the tokenizer's size
        context=count(512),  # longest row of inputs or of targets, in tokens (rows of learned position tables)
        layers=count(12, below=2**16),  # number of blocks of the encoder, and of the decoder
        decoder_layers=non_negative(0, below=2**16),  # number of blocks of the decoder; 0 means `layers`
        width=count(768),  # D, size of the residual stream
        heads=count(12, below=2**16),  # N, attention heads
        head_size=count(64),  # H, size of one head; heads * head_size need not be the width
        ff=count(3072),  # F, hidden size of the feed-forward block
        activation="relu",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu; "gated_" before a name gates it
        norm="rms",  # layer or rms
        norm_epsilon=positive(1e-6),  # added to the mean square
        placement="pre",  # of norms: pre, post, or replace (the normalised value becomes the residual)
        embedding_norm=False,  # a norm on what each stack begins with
        final_norm=True,  # a norm on what each stack ends with
        positions="buckets",  # buckets (of distances, a bias on scores), learned or sinusoid (added to the tokens)
        position_offset=non_negative(0, below=2**10),  # learned positions: first rows of the tables, never used
        buckets=count(32, below=2**10),  # buckets of distances, each of which has a bias for each head
        max_distance=count(128, below=2**16),  # distances from here on share the last bucket
        attention=("dense",),  # pattern of each of the encoder's layers in turn; the decoder's are dense
        attention_path="auto",  # implementation: auto, reference, xla, chunked, ...
        attention_bias=False,  # biases on query, key, value and output projections
        ff_bias=False,  # biases in the feed-forward block
        tied_head=True,  # output projection is the token table, transposed
        head_bias=False,  # bias on the logits
        scale_embedding=False,  # token embeddings are multiplied by sqrt(width)
        scale_scores=False,  # attention's scores are divided by sqrt(head_size)
        scale_head=True,  # of a tied head: hidden states are divided by sqrt(width)
        dropout=rate(0.1),  # rate on embeddings and on each branch's output before it joins the residual
        dropout_attention=rate(0.1),  # rate on attention probabilities
        dropout_ff=rate(0.1),  # rate on the feed-forward hidden layer
        dropout_hidden=rate(0.1),  # rate on what each stack ends with
        initialiser="fan_in",  # how matrices start: fan_in (T5), glorot (the Transformer), normal (BART)
        init_scale=positive(1.0),  # normal: the standard deviation of all; else what theirs are multiplied by
        dtype="bfloat16",  # arithmetic of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # storage of parameters
        scan=True,  # compile one layer and scan it; the checkpoint is the same either way
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
    )


MODELS = {
    "decoder": decoder,
    "recurrent": recurrent,
    "two_stream": two_stream,
    "encoder": encoder,
    "encoder_decoder": encoder_decoder,
    "replaced_tokens": replaced_tokens,
}
