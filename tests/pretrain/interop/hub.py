"""Folders as Hugging Face's library writes them, made without it: configs that it wrote, drawn weights, tokenizers."""

import json
import zlib
from pathlib import Path

import numpy as np
import sentencepiece
import tokenizers
from safetensors.numpy import save_file
from sentencepiece import sentencepiece_model_pb2

ANSWERS = Path(__file__).with_name("goldens") / "models.json"
TEXT = [
    "the cat sat on the mat, and the dog looked at the cat.",
    "a reader reads what a writer writes; the rest is silence.",
    "numbers such as 1, 23 and 456 stand between words and words.",
]
SENTINELS = 9
ROWS, READ, WRITTEN = 2, 11, 7  # tokens of a row that is read, and of one that a decoder writes


def answers():
    """{case: {"config": of the class, "shapes": {name: shape}, "answers": {what: numbers}}}, by make_models.py."""
    return json.loads(ANSWERS.read_text())


def weights(shapes, spread=0.3):
    """{name: array}, wide, since near 0 attention is uniform and hides mistakes; gains lie around 1."""

    def draw(name, shape):
        middle = 1.0 if name.endswith("weight") and ("norm" in name.lower() or ".ln_" in name) else 0.0
        noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        return (middle + spread * noise).astype(np.float32)

    return {name: draw(name, tuple(shape)) for name, shape in shapes.items()}


def batch(vocab_size):
    """Rows of ids: of tokens, of what an encoder reads, and of what follows."""
    rng = np.random.default_rng(0)
    lengths = {"read": READ, "written": WRITTEN}
    return {name: rng.integers(3, vocab_size, (ROWS, length)) for name, length in lengths.items()}


def shifted(case, written):
    """What a decoder reads that is to write rows of ids: the start token, and all of them but the last.

    mBART's starts with the last, the code of a language.
    """
    start = written[:, -1:] if case == "mbart" else np.full((len(written), 1), 2 if case == "bart" else 0)
    return np.concatenate([start, written[:, :-1]], axis=1)


def last_tokens(found):
    """Of hidden states and logits those of each row's last token."""
    return {what: x[:, -1] if what in ("hidden", "encoder", "logits") else x for what, x in found.items()}


def make(folder, case, *, tensors=None, config=None, tokenizer=True):
    """A folder of the case's model; `tensors` and `config` replace its own."""
    folder.mkdir(parents=True)
    asked = answers()[case]
    config = asked["config"] if config is None else config
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(asked["shapes"]) if tensors is None else tensors, folder / "model.safetensors")
    if tokenizer:
        TOKENIZERS[asked["config"]["model_type"]](folder)
    return folder


def byte_level(folder, special=("<|endoftext|>",)):
    """A tokenizer.json as GPT-2's, of the bytes and a few merges."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=261 + len(special),
        special_tokens=list(special),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    model.train_from_iterator(TEXT, trainer)
    model.save(str(folder / "tokenizer.json"))


def byte_level_of_no_class(folder):
    """The same where the model's own class of tokenizers reads other files."""
    byte_level(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def byte_level_of_roberta(folder):
    """The same with RoBERTa's special tokens first."""
    byte_level(folder, ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))


def byte_level_of_mbart(folder):
    """The same, which is no model that mBART's own class reads, with an end behind a text and no codes of languages."""
    byte_level_of_roberta(folder)
    model = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = ("</s>", model.token_to_id("</s>"))
    model.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", "$A $B </s>", [end])
    model.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def unigram(folder, special=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), first="[CLS]", last="[SEP]"):
    """A tokenizer.json as ALBERT's, made of SentencePiece, with these special tokens before all others."""
    model = tokenizers.Tokenizer(tokenizers.models.Unigram())
    model.normalizer = tokenizers.normalizers.Lowercase()
    model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    model.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=60, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    model.train_from_iterator(TEXT, trainer)
    frame = [(token, special.index(token)) for token in (first, last)]
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single=[first, "$A", last], pair=[first, "$A", last, "$B", last], special_tokens=frame
    )
    model.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def unigram_of_roberta(folder):
    """The same as XLM-R's and CamemBERT's."""
    unigram(folder, ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s>", "</s>")


def unigram_of_xlnet(folder):
    """The same as XLNet's, whose special tokens stand behind the text."""
    unigram(folder, ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"), "<sep>", "<cls>")
    made = json.loads((folder / "tokenizer.json").read_text())
    single = [part for part in made["post_processor"]["single"] if "Sequence" in part]
    frame = [{"SpecialToken": {"id": token, "type_id": 0}} for token in ("<sep>", "<cls>")]
    made["post_processor"]["single"] = single + frame
    (folder / "tokenizer.json").write_text(json.dumps(made))


def vocabulary(folder):
    """A vocab.txt as BERT's."""
    letters = sorted(set("".join(TEXT)) - {" "})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters), "the"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")


def spiece(folder):
    """A spiece.model as T5's: unigram, with the ids of its padding, end and unknown, and a rewriting of text."""
    with open(folder / "spiece.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT),
            model_writer=file,
            vocab_size=42,
            model_type="unigram",
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=3,
        )
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": SENTINELS}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def spiece_of_mt5(folder):
    """The same as mT5's, whose sentinels are pieces that were added to the file, each behind a space."""
    spiece(folder)
    path = folder / "spiece.model"
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    for number in reversed(range(SENTINELS)):
        kind = proto.SentencePiece.USER_DEFINED
        proto.pieces.add(piece=f"\u2581<extra_id_{number}>", score=0.0, type=kind)
    path.write_bytes(proto.SerializeToString())
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


TOKENIZERS = {"gpt2": byte_level, "bert": vocabulary, "t5": spiece, "mt5": spiece_of_mt5}
TOKENIZERS |= {"openai-gpt": byte_level_of_no_class, "ctrl": byte_level_of_no_class}
TOKENIZERS |= {"roberta": byte_level_of_roberta, "xlm-roberta": unigram_of_roberta, "albert": unigram}
TOKENIZERS |= {"camembert": unigram_of_roberta}
TOKENIZERS |= {"xlnet": unigram_of_xlnet}
TOKENIZERS |= {"xlm": unigram_of_roberta}
TOKENIZERS |= {"bart": byte_level_of_roberta, "mbart": byte_level_of_mbart}
SEQUENCE = ("t5", "t5_v1_1", "mt5", "mt5_tied", "bart", "mbart")  # cases with an encoder and a decoder
PAIRED = {"bert": "next_sentence_label", "albert": "sentence_order_label"}  # cases with a head of pairs: its labels
CAUSAL = ("gpt2", "gpt", "ctrl")  # cases whose loss is of the token after each
TOKENIZERS |= {"electra": vocabulary, "distilbert": vocabulary}
