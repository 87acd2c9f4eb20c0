"""Sections `objective` of a config, by kind: every key with its default, range and comment."""

from configs.ranges import (
    count,
    density,
    non_negative,
    positive,
    probability,
    real,
    section,
    share,
    span_length,
)


@section
def causal() -> dict:
    """Causal language modelling: each token is predicted from those before it."""
    return dict(
        kind="causal",  # name of the objective
        inputs="",  # field or template of a prompt, such as "Question: {question}"; empty: plain text, no records
        targets="",  # field or template of its answer, such as " {answer}" or "{label:negative|positive}"
        turns="",  # field with a conversation, a list of {role, content}, instead of inputs and targets
        turn="{role}: {content}\n",  # template of a turn
        answers=("assistant",),  # roles whose turns are answers
        loss_on="all",  # tokens that are scored: all, or targets (answers and their end)
        target_length=count(64),  # most tokens of an answer that evaluation writes
        stop="",  # text that ends an answer, such as "\\n", besides the end token
        labels=(),  # names of classes for accuracy and F1; empty: those of a template like {label:negative|positive}
        language="",  # of the answers: chooses BLEU's tokenizer (zh, ja, ko)
        metrics=(),  # figures of decoded answers in an evaluation, as of kind text (running.md)
        coded=False,  # rows and prompts begin with a control code, the option `code` of their source (CTRL)
        selects="loss",  # term whose lowest validation value selects the best checkpoint
    )


@section
def masked() -> dict:
    """Masked language modelling (BERT), with or without the prediction of the next sentence."""
    return dict(
        kind="masked",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss, mlm, nsp (swapped pairs: sop) or an accuracy
        next_sentence=True,  # rows of two segments; predict whether the second follows (data.layout=pairs)
        share=probability(0.15),  # share of a row's tokens that are predicted
        max_predictions=count(20, below=2**20),  # K, the most predictions in a row
        masked=share(0.8),  # share of the predicted tokens that are replaced by the mask
        random=share(0.1),  # share of them that are replaced by a random token; the rest is unchanged
        rounding="nearest",  # of the number predicted: nearest (at least 1), random (up or down), coins (per token)
        candidates="text",  # tokens that may be predicted: text (no special ids), any, after_first (not a text's first)
        replacements="any",  # tokens to draw random replacements from: any, or text (no special tokens)
        smoothing=non_negative(0.0),  # s: sampling weight of a token is count**-s (DistilBERT: 0.7)
        whole_words=False,  # predict all pieces of a word or none
        ngrams=count(1, below=2**6),  # most whole words in a row that are predicted together; n of them with weight 1/n
        masks=non_negative(0),  # number of fixed ways to mask a row (static masking); 0: a new one each time
        languages=False,  # the model reads each token's language (data.languages); rows of translations (XLM)
        swapped_pairs=False,  # a pair that does not follow is the same two segments swapped (ALBERT), not a random one
        short_pairs=share(0.1),  # layout pairs: share of the documents with rows of random length
        passes=count(10),  # layout pairs: number of different ways to cut the text into pairs
    )


@section
def spans() -> dict:
    """Span corruption (T5): an encoder reads text with gaps, a decoder writes the missing spans."""
    return dict(
        kind="spans",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss or accuracy
        noise="spans",  # what is missing: spans, a sentinel in place of each, or prefix (all that follows a prefix)
        density=density(0.15),  # share of the tokens that are missing
        mean_span=count(3.0),  # mean length of a span, in tokens
    )


@section
def replaced() -> dict:
    """Replaced token detection (ELECTRA): a generator fills in masks, a discriminator finds what it changed."""
    return dict(
        kind="replaced",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss, mlm, rtd, original or an accuracy
        share=probability(0.15),  # share of a row's tokens that are drawn, some of them more than once
        masked=share(0.85),  # share of those that the generator reads as the mask; the rest is unchanged
        scored="all",  # tokens in the discriminator's loss: all, or masked (those that were drawn)
        weight=positive(50.0),  # weight of the discriminator's loss; the generator's is 1
    )


@section
def translation() -> dict:
    """Translation: an encoder reads one text, a decoder writes another."""
    return dict(
        kind="translation",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss or accuracy
    )


@section
def permutation() -> dict:
    """Permutation language modelling (XLNet): positions are predicted in a random order, from those before them."""
    return dict(
        kind="permutation",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss or accuracy
        reuse=count(256),  # tokens of a row that are text; two segments follow, and the next row starts after the text
        perm_size=count(256),  # tokens that are permuted together; divides reuse and the rest of a row
        predictions=count(85),  # K, predictions in a row; half, rounded up, among the first `reuse`
        longest=count(5, below=2**10),  # longest predicted n-gram, in pieces; n with weight 1/n
        stretch=count(6, below=2**10),  # an n-gram is drawn within n times this many pieces, which sets the share
        both_ways=True,  # the second half of a batch's lanes reads the text backwards
    )


@section
def denoising() -> dict:
    """Denoising (BART): an encoder reads a corrupted text, a decoder writes the original."""
    return dict(
        kind="denoising",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss or accuracy
        noise="infilling",  # one mask per span of words (infilling), one per token (masking), or none (deletion)
        share=share(0.3),  # share of the words (infilling) or tokens that are removed, rounded up
        mean_span=span_length(3.0),  # mean of the Poisson length of a span, in words; an empty span inserts a mask
        random=share(0.1),  # share of the masks that are random tokens instead
        permutation=share(1.0),  # share of the sentences that are shuffled
        stop=".",  # end of a sentence, with or without a space before it; of several tokens the last
        rotation=share(0.0),  # share of the texts that are rotated to begin at a random token
        languages=(),  # mBART: language codes, those of data.languages; empty means none
    )


@section
def classification() -> dict:
    """A class for each text or pair of texts."""
    return dict(
        kind="classification",  # name of the objective
        texts=("text",),  # one or two fields of a record, or templates such as "{title}: {body}"
        label="label",  # field with the name of the class, or its number
        labels=(),  # names of the classes in the order of their numbers; recorded with the run
        lm_weight=non_negative(0.0),  # weight of predicting each token of a row beside its class (GPT: 0.5)
        metrics=("accuracy",),  # figures of an evaluation: accuracy, f1, macro_f1, matthews
        selects="accuracy",  # figure or term (loss) that selects the best checkpoint
    )


@section
def regression() -> dict:
    """A number for each text or pair of texts, fitted by squared error."""
    return dict(
        kind="regression",  # name of the objective
        texts=("text",),  # one or two fields of a record, or templates such as "{title}: {body}"
        label="label",  # field with the number
        metrics=("pearson", "spearman"),  # figures of an evaluation
        selects="pearson",  # figure or term (loss) that selects the best checkpoint
    )


@section
def choice() -> dict:
    """One of several texts, each read behind what is asked (multiple choice)."""
    return dict(
        kind="choice",  # name of the objective
        text="question",  # field or template of what is asked; empty: the choices alone
        choices=("choice1", "choice2"),  # field or template of each choice; of one field: a list of texts
        number=count(2),  # choices of an example
        label="label",  # field with the number of the right choice, from 0, or its name in `labels`
        labels=(),  # names of the choices, such as ("A", "B", "C", "D"); empty: numbers from 0
        metrics=("accuracy",),  # figures of an evaluation
        selects="accuracy",  # figure or term (loss) that selects the best checkpoint
    )


@section
def tagging() -> dict:
    """A tag for each word: parts of speech, names."""
    return dict(
        kind="tagging",  # name of the objective
        words="words",  # field with the words of a sentence, a list or a text with spaces between them
        tags="tags",  # field with their tags, likewise
        labels=(),  # names of the tags in the order of their numbers; recorded with the run
        scheme="BIO",  # of tags that mark spans: BIO, IOB1, IOBES; empty: every word by itself
        metrics=("span_f1",),  # figures of an evaluation: span_f1, span_f1_strict, accuracy
        selects="span_f1",  # figure or term (loss) that selects the best checkpoint
    )


@section
def extraction() -> dict:
    """The part of a text that answers a question (SQuAD)."""
    return dict(
        kind="extraction",  # name of the objective
        texts=("question", "context"),  # fields of the question and of the text that holds its answer
        answers="answers",  # field with `text` and `answer_start` of each answer, the first character of it
        no_answer=False,  # questions with an empty list of answers have none (SQuAD 2.0); False: they are left out
        threshold=real(0.0),  # what no answer must score above the best one to be given; see best_f1_thresh
        question=count(64),  # most tokens of a question
        stride=count(128),  # tokens from the begin of a window to that of the next one
        max_answer=count(30),  # most tokens of an answer
        best=count(20),  # spans that are kept of each window, and answers that are written of each question
        joint=False,  # predict the last token given the first, and whether there is an answer (XLNet, ELECTRA, XLM)
        joint_starts=count(5),  # joint: first tokens that are tried of each window
        head=(),  # steps to the two scores of a token, such as ("dropout",) (DistilBERT)
        language="",  # of answers, for mlqa_f1 and mlqa_exact
        metrics=("exact", "f1"),  # figures of an evaluation; with no_answer also HasAns_f1, NoAns_f1, best_f1
        selects="f1",  # figure or term (loss) that selects the best checkpoint
    )


@section
def text() -> dict:
    """Text to text: an encoder reads a prompt, a decoder writes its answer."""
    return dict(
        kind="text",  # name of the objective
        inputs="inputs",  # field or template of a prompt, such as "sst2 sentence: {sentence}"
        targets="targets",  # field or template of its answer, such as "{label:negative|positive}"; of a list, any
        start="",  # special id that the decoder begins with, such as mBART's de_DE; empty: pad (T5) or end
        target_length=non_negative(0),  # most tokens of an answer; 0 means data.length
        stop="",  # text that ends an answer, such as "\\n", besides the end token
        labels=(),  # names of classes for accuracy and F1; empty: those of a template like {label:negative|positive}
        language="",  # of the answers: chooses BLEU's tokenizer (zh, ja, ko)
        metrics=("exact_match",),  # figures of decoded answers in an evaluation (running.md)
        selects="exact_match",  # figure or term (loss) that selects the best checkpoint
    )


@section
def siamese() -> dict:
    """Sentence embeddings: two texts, each read by itself, are compared (Reimers and Gurevych 2019)."""
    return dict(
        kind="siamese",  # name of the objective
        texts=("sentence1", "sentence2"),  # the two fields of a record, or templates
        loss="cosine",  # cosine (squared error against label / highest), softmax (labels), ranking (in-batch negatives)
        label="label",  # field with the number (cosine) or the class (softmax); ranking needs none
        labels=(),  # softmax: names of the classes in the order of their numbers; recorded with the run
        highest=positive(5.0),  # cosine: label of texts that mean the same
        scale=positive(20.0),  # ranking: logits are cosines times this
        metrics=("spearman",),  # figures: spearman, pearson (of cosines), accuracy (softmax), retrieval, retrieval_back
        selects="spearman",  # figure or term (loss) that selects the best checkpoint
    )


# Sections of objectives by kind.
OBJECTIVES = {
    "causal": causal,
    "masked": masked,
    "spans": spans,
    "replaced": replaced,
    "translation": translation,
    "permutation": permutation,
    "denoising": denoising,
    "classification": classification,
    "regression": regression,
    "choice": choice,
    "tagging": tagging,
    "extraction": extraction,
    "text": text,
    "siamese": siamese,
}
