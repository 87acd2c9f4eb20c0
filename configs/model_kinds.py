"""Config sections of the kinds of models: every key with its default, range and comment.

Each section is splatted into its Flax module, `Decoder(**config.model)`. `configs/common.py` has all other sections.
"""

from configs.ranges import count, counts, non_negative, positive, positives, rate, real, section, share


@section
def decoder() -> dict:
    """A GPT-style decoder, `models.gpt.Decoder`."""
    return dict(
        kind="decoder",  # kind of model; a recipe selects it with the whole section
        vocab_size=count(50257),  # rows of the token table; at least the tokenizer's size
        context=count(1024),  # longest row, in tokens
        layers=count(12, below=2**16),  # number of blocks
        width=count(768),  # D, size of the residual stream
        heads=count(12, below=2**16),  # N, attention heads
        kv_heads=non_negative(0),  # key/value heads (grouped-query attention); 0 means `heads`
        head_size=non_negative(0),  # H, size of a head; 0 means width / heads
        query_size=non_negative(0),  # size of a head's queries and keys, if not that of its values; 0: head_size
        ff=count(3072),  # F, hidden size of the feed-forward block
        activation="gelu_tanh",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu; with "gated_" before it, gated
        norm="layer",  # layer or rms
        norm_offset=real(0.0),  # added to norm gains (Gemma: 1, with norm_init_mean=0)
        norm_epsilon=positive(1e-5),  # added to the variance
        final_norm_epsilon=non_negative(0.0),  # the same in the norm after the last layer; 0 means norm_epsilon
        placement="pre",  # of norms: pre, post, or replace (the normalised value becomes the residual)
        positions="learned",  # learned, sinusoid, sinusoid_concatenated (sines, then cosines), rotary, factorised, none
        position_axes=counts(()),  # factorised positions: sizes of the axes, the last varying fastest; a table for each
        rope_theta=positive(10_000.0),  # rotary positions: a pair of features i turns by theta^(-2i / H) a token
        rope_scaling=positives(()),  # rotary: (factor,) of linear scaling; Llama 3.1: (factor, low, high, old context)
        scale_embedding=False,  # multiply token embeddings by sqrt(width)
        start_row=False,  # one more row in the token table, of a start symbol that is never predicted
        bidirectional=False,  # every token sees all of its row, for masked objectives (hands-on model)
        attention=("dense",),  # attention pattern of each layer in turn; their number divides `layers`
        attention_path="auto",  # backend: auto, reference, xla, chunked, sparse, cudnn, triton, splash
        attention_bias=True,  # biases on query, key, value and output projections
        output_bias=True,  # with attention_bias, one on the output projection too (Qwen2: none)
        qk_norm=False,  # a norm of each head's query and key, before rotation (Qwen3)
        ff_bias=True,  # biases in the feed-forward block
        tied_head=True,  # output projection is the token table, transposed
        head_bias=False,  # bias on the logits
        dropout_embedding=rate(0.0),  # rate on the sum of the embeddings
        dropout_attention=rate(0.0),  # rate on attention probabilities
        dropout_residual=rate(0.0),  # rate on each branch's output before it joins the residual
        dropout_ff=rate(0.0),  # rate on the feed-forward hidden layer
        init_std=non_negative(0.02),  # initial standard deviation of matrices and tables
        init_gain=non_negative(0.0),  # above 0, matrices start at variance init_gain / inputs (Sparse Transformer)
        head_init_std=non_negative(0.02),  # initial standard deviation of an untied output projection
        position_init_std=non_negative(0.01),  # initial standard deviation of learned position tables
        norm_init_mean=real(1.0),  # initial mean of norm gains
        norm_init_std=non_negative(0.0),  # initial standard deviation of norm gains
        fused_glorot_init=False,  # query, key and value start as one Glorot-uniform matrix (PyTorch's attention module)
        scale_residual_init=True,  # divide output projections' init by sqrt(2 * layers), as GPT-2 does
        summary=(),  # steps to the classes of a task (docs/tasks.md)
        mix="none",  # what that head reads: the last layer (none), or a mix of all layers: plain, normed (ELMo)
        dtype="bfloat16",  # type of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # type of stored parameters
        scan=True,  # compile one layer and scan it; checkpoints do not depend on it
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
        lora=non_negative(0),  # rank of low-rank changes of the layers' matrices, the rest frozen (LoRA); 0: none
        lora_alpha=positive(16.0),  # LoRA: changes are multiplied by lora_alpha / lora
        lora_targets=("query", "value"),  # LoRA: matrices that change: query, key, value, output, in, gate, out
        adapter=non_negative(0),  # width of an adapter after each branch, the rest but norms frozen; 0: none
    )


@section
def recurrent() -> dict:
    """Transformer-XL, `models.transformer_xl.TransformerXL`."""
    return dict(
        kind="recurrent",  # kind of model; a recipe selects it with the whole section
        vocab_size=count(204),  # words, most frequent first if there are cutoffs
        context=count(8192),  # longest text that `generate` writes, prompt included
        cutoffs=counts(()),  # first words of the clusters after the first, for adaptive embedding and softmax
        embed=non_negative(0),  # width of the first cluster's word vectors; 0 means `width`
        divisor=count(1),  # each cluster's word vectors are narrower than the previous by this factor
        project_always=False,  # project embeddings even if they have the model's width
        tied_words=True,  # the output's word vectors are the input's
        shared_projections="tails",  # projections shared by input and output: all, tails or none
        layers=count(12, below=2**16),  # number of blocks
        width=count(512),  # D, size of the residual stream
        heads=count(8, below=2**16),  # N, attention heads
        head_size=non_negative(0),  # H, size of a head; 0 means width / heads
        ff=count(2048),  # F, hidden size of the feed-forward block
        memory=count(512),  # M, hidden states of earlier positions that a layer sees
        positions="relative",  # relative (distance vectors with their own parameters) or rotary (none)
        clamp=non_negative(0),  # relative positions: larger distances count as this one; 0 means never
        same_length=False,  # every query sees exactly M keys, its own included; evaluation sets it
        shared_biases=True,  # relative positions: all layers share the attention biases u and v
        activation="relu",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu
        norm_epsilon=positive(1e-5),  # added to the variance
        attention_path="auto",  # backend: auto, reference, xla, chunked; with rotary positions also cudnn, splash
        dropout=rate(0.1),  # rate on embeddings, distances, branches, feed-forward hidden layer, last hidden states
        dropout_attention=rate(0.0),  # rate on attention probabilities
        init_std=non_negative(0.02),  # initial standard deviation of everything but norms, biases and projections
        projection_init_std=non_negative(0.01),  # initial standard deviation of projections of narrow word vectors
        norm_init_std=non_negative(0.02),  # initial standard deviation of norm gains
        dtype="bfloat16",  # type of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # type of stored parameters
        scan=True,  # compile one layer and scan it; checkpoints do not depend on it
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
        lora=non_negative(0),  # rank of low-rank changes of the layers' matrices, the rest frozen (LoRA); 0: none
        lora_alpha=positive(16.0),  # LoRA: changes are multiplied by lora_alpha / lora
        lora_targets=("query", "value"),  # LoRA: matrices that change: query, key, value, output, in, gate, out
        adapter=non_negative(0),  # width of an adapter after each branch, the rest but norms frozen; 0: none
    )


@section
def two_stream() -> dict:
    """XLNet, `models.xlnet.XLNet`."""
    return dict(
        kind="two_stream",  # kind of model; a recipe selects it with the whole section
        vocab_size=count(32000),  # rows of the token table; at least the tokenizer's size
        context=count(512),  # longest row, in tokens
        layers=count(12, below=2**16),  # number of blocks
        width=count(768),  # D, size of the residual stream
        heads=count(12, below=2**16),  # N, attention heads
        head_size=non_negative(0),  # H, size of a head; 0 means width / heads
        ff=count(3072),  # F, hidden size of the feed-forward block
        memory=count(384),  # M, hidden states of earlier positions that a layer sees
        reuse=count(256),  # the first positions of a row, which are remembered; equal to objective.reuse
        clamp=non_negative(0),  # relative positions: larger distances count as this one; 0 means never
        activation="gelu_tanh",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu
        norm_epsilon=positive(1e-12),  # added to the variance
        attention_path="auto",  # backend: auto, reference, xla, chunked
        dropout=rate(0.1),  # rate on embeddings, distances, branches, feed-forward hidden layer, last hidden states
        dropout_attention=rate(0.1),  # rate on attention probabilities
        init_std=non_negative(0.02),  # initial standard deviation of everything but norms, biases and projections
        summary=("dense", "tanh", "dropout"),  # steps to the classes of a task (docs/tasks.md)
        mix="none",  # what that head reads: the last layer (none), or a mix of all layers: plain, normed (ELMo)
        dtype="bfloat16",  # type of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # type of stored parameters
        scan=True,  # compile one layer and scan it; checkpoints do not depend on it
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
        lora=non_negative(0),  # rank of low-rank changes of the layers' matrices, the rest frozen (LoRA); 0: none
        lora_alpha=positive(16.0),  # LoRA: changes are multiplied by lora_alpha / lora
        lora_targets=("query", "value"),  # LoRA: matrices that change: query, key, value, output, in, gate, out
        adapter=non_negative(0),  # width of an adapter after each branch, the rest but norms frozen; 0: none
    )


@section
def encoder() -> dict:
    """BERT, RoBERTa, ALBERT, XLM, DistilBERT: `models.bert.Encoder`."""
    return dict(
        kind="encoder",  # kind of model; a recipe selects it with the whole section
        vocab_size=count(30522),  # rows of the token table; at least the tokenizer's size
        context=count(512),  # longest row, in tokens
        position_offset=non_negative(0),  # unused rows of the position table before position 0 (RoBERTa: 2)
        types=non_negative(2),  # rows of the type table, which tells a pair's two texts apart; 0: no table
        languages=non_negative(0),  # rows of the language table (XLM); 0: no table
        embed=non_negative(0),  # E, width of the tables and of the head; 0 means `width`
        project_always=False,  # project embeddings even if they have the model's width
        layers=count(12, below=2**16),  # number of blocks
        groups=non_negative(0),  # sets of parameters, each shared by layers / groups blocks; 0: one per block
        width=count(768),  # D, size of the residual stream
        heads=count(12, below=2**16),  # N, attention heads
        ff=count(3072),  # F, hidden size of the feed-forward block
        activation="gelu_tanh",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu
        norm_epsilon=positive(1e-12),  # added to the variance
        attention=("dense",),  # attention pattern of each layer in turn; their number divides `layers`
        attention_path="auto",  # backend: auto, reference, xla, chunked, sparse, cudnn, triton, splash
        head_transform=True,  # dense layer, activation and norm between hidden states and the tied table (XLM: none)
        zero_padding=False,  # hidden states of padding are zero (XLM)
        pair_head=True,  # pooler and a head of two logits, for next-sentence prediction
        dropout=rate(0.1),  # rate on embeddings and on each branch's output before it joins the residual
        dropout_attention=rate(0.1),  # rate on attention probabilities
        initialiser="truncated",  # of matrices: truncated (normal, cut at 2 deviations), normal, fan_in (uniform)
        init_std=non_negative(0.02),  # initial standard deviation of matrices and tables
        summary=("dense", "tanh", "dropout"),  # steps to the classes of a task (docs/tasks.md)
        mix="none",  # what that head reads: the last layer (none), or a mix of all layers: plain, normed (ELMo)
        dtype="bfloat16",  # type of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # type of stored parameters
        scan=True,  # compile one layer and scan it; checkpoints do not depend on it
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
        lora=non_negative(0),  # rank of low-rank changes of the layers' matrices, the rest frozen (LoRA); 0: none
        lora_alpha=positive(16.0),  # LoRA: changes are multiplied by lora_alpha / lora
        lora_targets=("query", "value"),  # LoRA: matrices that change: query, key, value, output, in, gate, out
        adapter=non_negative(0),  # width of an adapter after each branch, the rest but norms frozen; 0: none
    )


@section
def replaced_tokens() -> dict:
    """ELECTRA, generator and discriminator: `models.electra.Electra`."""
    return dict(
        kind="replaced_tokens",  # kind of model; a recipe selects it with the whole section
        vocab_size=count(30522),  # rows of the token table; at least the tokenizer's size
        context=count(512),  # longest row, in tokens
        position_offset=non_negative(0),  # unused rows of the position table before position 0 (RoBERTa: 2)
        types=non_negative(2),  # rows of the type table, which tells a pair's two texts apart; 0: no table
        embed=non_negative(0),  # E, width of the tables, which generator and discriminator share; 0 means `width`
        project_always=False,  # project embeddings even if they have the model's width
        layers=count(12, below=2**16),  # number of blocks of the discriminator, and of the generator
        groups=non_negative(0),  # sets of parameters, each shared by layers / groups blocks; 0: one per block
        width=count(768),  # D, size of the discriminator's residual stream
        heads=count(12, below=2**16),  # N, attention heads of the discriminator; the generator's have the same size
        ff=count(3072),  # F, hidden size of the discriminator's feed-forward block; the generator's is 4 of its widths
        generator_size=share(0.25),  # the generator's width as a share of D; 0: replacements are random tokens
        head="replaced",  # the discriminator's prediction: replaced, tokens (of the text), copied (tokens, with a gate)
        activation="gelu_erf",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu
        norm_epsilon=positive(1e-12),  # added to the variance
        attention=("dense",),  # attention pattern of each layer in turn; their number divides `layers`
        attention_path="auto",  # backend: auto, reference, xla, chunked, sparse, cudnn, triton, splash
        dropout=rate(0.1),  # rate on embeddings and on each branch's output before it joins the residual
        dropout_attention=rate(0.1),  # rate on attention probabilities
        initialiser="truncated",  # of matrices and tables: truncated (normal, cut at 2 deviations) or normal
        init_std=non_negative(0.02),  # initial standard deviation of matrices and tables
        summary=("dropout", "dense", "gelu_erf", "dropout"),  # steps to the classes of a task (docs/tasks.md)
        mix="none",  # what that head reads: the last layer (none), or a mix of all layers: plain, normed (ELMo)
        dtype="bfloat16",  # type of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # type of stored parameters
        scan=True,  # compile one layer and scan it; checkpoints do not depend on it
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
        lora=non_negative(0),  # rank of low-rank changes of the layers' matrices, the rest frozen (LoRA); 0: none
        lora_alpha=positive(16.0),  # LoRA: changes are multiplied by lora_alpha / lora
        lora_targets=("query", "value"),  # LoRA: matrices that change: query, key, value, output, in, gate, out
        adapter=non_negative(0),  # width of an adapter after each branch, the rest but norms frozen; 0: none
    )


@section
def encoder_decoder() -> dict:
    """T5, BART and the original Transformer: `models.t5.EncoderDecoder`."""
    return dict(
        kind="encoder_decoder",  # kind of model; a recipe selects it with the whole section
        vocab_size=count(32128),  # rows of the token table, which both stacks read; at least the tokenizer's size
        context=count(512),  # longest row of inputs or of targets, in tokens
        layers=count(12, below=2**16),  # number of blocks of the encoder, and of the decoder
        decoder_layers=non_negative(0, below=2**16),  # number of blocks of the decoder; 0 means `layers`
        width=count(768),  # D, size of the residual stream
        heads=count(12, below=2**16),  # N, attention heads
        head_size=count(64),  # H, size of a head; heads * head_size need not be the width
        ff=count(3072),  # F, hidden size of the feed-forward block
        activation="relu",  # gelu_tanh, gelu_erf, gelu_sigmoid, relu, silu; with "gated_" before it, gated
        norm="rms",  # layer or rms
        norm_epsilon=positive(1e-6),  # added to the variance
        placement="pre",  # of norms: pre, post, or replace (the normalised value becomes the residual)
        embedding_norm=False,  # a norm on the input of each stack
        final_norm=True,  # a norm on the output of each stack
        positions="buckets",  # buckets (of distances, a bias on scores), learned or sinusoid (added to the tokens)
        position_offset=non_negative(0, below=2**10),  # unused rows of learned position tables before position 0
        buckets=count(32, below=2**10),  # buckets of distances, each with a bias per head
        max_distance=count(128, below=2**16),  # distances from here on share the last bucket
        attention=("dense",),  # pattern of each of the encoder's layers in turn; the decoder's are dense
        attention_path="auto",  # backend: auto, reference, xla, chunked, sparse, cudnn, triton, splash
        attention_bias=False,  # biases on query, key, value and output projections
        ff_bias=False,  # biases in the feed-forward block
        tied_head=True,  # output projection is the token table, transposed
        head_bias=False,  # bias on the logits
        scale_embedding=False,  # multiply token embeddings by sqrt(width)
        scale_scores=False,  # divide attention scores by sqrt(head_size)
        scale_head=True,  # tied head: divide hidden states by sqrt(width)
        dropout=rate(0.1),  # rate on embeddings and on each branch's output before it joins the residual
        dropout_attention=rate(0.1),  # rate on attention probabilities
        dropout_ff=rate(0.1),  # rate on the feed-forward hidden layer
        dropout_hidden=rate(0.1),  # rate on the output of each stack
        initialiser="fan_in",  # of matrices: fan_in (T5), glorot (the Transformer), normal (BART)
        init_scale=positive(1.0),  # normal: standard deviation of everything; else a factor on theirs
        summary=("dropout", "dense", "tanh", "dropout"),  # steps to the classes of a task (docs/tasks.md)
        mix="none",  # what that head reads: the last layer (none), or a mix of all layers: plain, normed (ELMo)
        dtype="bfloat16",  # type of matrix products; norms, softmax and loss stay float32
        param_dtype="float32",  # type of stored parameters
        scan=True,  # compile one layer and scan it; checkpoints do not depend on it
        remat="none",  # recompute in the backward pass: none, full, dots, dots_no_batch
        lora=non_negative(0),  # rank of low-rank changes of the layers' matrices, the rest frozen (LoRA); 0: none
        lora_alpha=positive(16.0),  # LoRA: changes are multiplied by lora_alpha / lora
        lora_targets=("query", "value"),  # LoRA: matrices that change: query, key, value, output, in, gate, out
        adapter=non_negative(0),  # width of an adapter after each branch, the rest but norms frozen; 0: none
    )


MODELS = {
    "decoder": decoder,
    "recurrent": recurrent,
    "two_stream": two_stream,
    "encoder": encoder,
    "encoder_decoder": encoder_decoder,
    "replaced_tokens": replaced_tokens,
}
