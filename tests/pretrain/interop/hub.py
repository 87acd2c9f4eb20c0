"""Hugging Face folders made without its library: configs that it wrote, random weights, tokenizers."""

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
ROWS, READ, WRITTEN = 2, 11, 7  # rows, source tokens, target tokens


def answers():
    """{case: {"config": class's config.json, "shapes": {name: shape}, "answers": {name: numbers}}}."""
    return json.loads(ANSWERS.read_text())


def weights(shapes, spread=0.3):
    """{name: array}, gains around 1. Wide: near 0 attention is uniform and hides mistakes."""

    def draw(name, shape):
        middle = 1.0 if name.endswith("weight") and ("norm" in name.lower() or ".ln_" in name) else 0.0
        noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        return (middle + spread * noise).astype(np.float32)

    return {name: draw(name, tuple(shape)) for name, shape in shapes.items()}


def batch(vocab_size):
    """Random rows of ids: `read` by encoders and decoders, `written` by decoders of encoder-decoders."""
    rng = np.random.default_rng(0)
    lengths = {"read": READ, "written": WRITTEN}
    return {name: rng.integers(3, vocab_size, (ROWS, length)) for name, length in lengths.items()}


def shifted(case, written):
    """Decoder inputs for target rows: the start token and all but the last; mBART starts with the last."""
    start = written[:, -1:] if case == "mbart" else np.full((len(written), 1), 2 if case == "bart" else 0)
    return np.concatenate([start, written[:, :-1]], axis=1)


def last_tokens(values):
    """Hidden states and logits of each row's last token; other values whole."""
    return {name: x[:, -1] if name in ("hidden", "encoder", "logits") else x for name, x in values.items()}


def make(folder, case, *, tensors=None, tokenizer=True, keys=None):
    """A folder of the case's model; `tensors` replaces its weights, `keys` updates its config.json."""
    folder.mkdir(parents=True)
    one = answers()[case]
    (folder / "config.json").write_text(json.dumps(one["config"] | (keys or {})))
    save_file(weights(one["shapes"]) if tensors is None else tensors, folder / "model.safetensors")
    if tokenizer:
        TOKENIZERS[one["config"]["model_type"]](folder)
    return folder


def write_settings(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def byte_level(folder, special=("<|endoftext|>",)):
    """A tokenizer.json as GPT-2's: bytes and a few merges."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=261 + len(special),
        special_tokens=list(special),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(TEXT, trainer)
    model.save(str(folder / "tokenizer.json"))


def byte_level_generic(folder):
    """The same for models whose own class of tokenizers reads other files."""
    byte_level(folder)
    write_settings(folder, tokenizer_class="PreTrainedTokenizerFast")


def byte_level_roberta(folder):
    """The same with RoBERTa's special tokens first."""
    byte_level(folder, ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))


def byte_fallback(folder):
    """A tokenizer.json as Llama 2's and Gemma's: SentencePiece's BPE with bytes, a symbol of the user, <s> in front."""
    parts = tokenizers
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"acdehinorst,.", "<user>"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("a", "t"), ("\u2581", "c"), ("\u2581c", "at")]
    pieces += [left + right for left, right in merges]
    ids = {piece: i for i, piece in enumerate(pieces)}
    model = parts.Tokenizer(parts.models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    model.normalizer = parts.normalizers.Sequence(
        [parts.normalizers.Prepend("\u2581"), parts.normalizers.Replace(" ", "\u2581")]
    )
    steps = [parts.decoders.Replace("\u2581", " "), parts.decoders.ByteFallback(), parts.decoders.Fuse()]
    model.decoder = parts.decoders.Sequence([*steps, parts.decoders.Strip(" ", 1, 0)])
    model.add_special_tokens(["<unk>", "<s>", "</s>"])
    model.add_tokens([tokenizers.AddedToken("<user>", normalized=False)])
    model.post_processor = parts.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    model.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_settings(folder, tokenizer_class="PreTrainedTokenizerFast", **names)


def byte_level_mbart(folder):
    """The same with an end after each text and without language codes."""
    byte_level_roberta(folder)
    model = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = ("</s>", model.token_to_id("</s>"))
    model.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", "$A $B </s>", [end])
    model.save(str(folder / "tokenizer.json"))
    write_settings(folder, tokenizer_class="PreTrainedTokenizerFast")


def unigram(folder, special=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), single="[CLS] $A [SEP]", tokens=(2, 3)):
    """A tokenizer.json as ALBERT's: SentencePiece's unigram model; `tokens` are the ids in `single`."""
    model = tokenizers.Tokenizer(tokenizers.models.Unigram())
    model.normalizer = tokenizers.normalizers.Lowercase()
    model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    model.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=60, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    model.train_from_iterator(TEXT, trainer)
    frame = [(special[i], i) for i in tokens]
    model.post_processor = tokenizers.processors.TemplateProcessing(single, special_tokens=frame)
    model.save(str(folder / "tokenizer.json"))
    write_settings(folder, tokenizer_class="PreTrainedTokenizerFast")


def unigram_roberta(folder):
    """The same as XLM-R's and CamemBERT's."""
    unigram(folder, ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s> $A </s>", (0, 2))


def unigram_xlnet(folder):
    """The same as XLNet's, with special tokens after the text."""
    special = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>")
    unigram(folder, special, "$A <sep> <cls>", (4, 3))


def wordpiece(folder):
    """A vocab.txt as BERT's."""
    letters = sorted(set("".join(TEXT)) - {" "})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters), "the"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")


def wordpiece_json(folder, normalizer, pre_tokenizer, **settings):
    """A tokenizer.json of the pieces of vocab.txt, which it replaces, with these steps and settings."""
    pieces = (folder / "vocab.txt").read_text().split()
    (folder / "vocab.txt").unlink()
    model = tokenizers.models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.normalizer, made.pre_tokenizer = normalizer, pre_tokenizer
    made.add_special_tokens([piece for piece in pieces if piece.startswith("[")])
    made.save(str(folder / "tokenizer.json"))
    write_settings(folder, **settings)


def spiece(folder):
    """A spiece.model as T5's: unigram, with ids for padding, end and unknown, rewriting text."""
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
    write_settings(folder, tokenizer_class="T5Tokenizer", extra_ids=SENTINELS)


def spiece_mt5(folder):
    """The same as mT5's, whose sentinels are pieces of the file, each after a space."""
    spiece(folder)
    path = folder / "spiece.model"
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    for number in reversed(range(SENTINELS)):
        proto.pieces.add(piece=f"\u2581<extra_id_{number}>", score=0.0, type=proto.SentencePiece.USER_DEFINED)
    path.write_bytes(proto.SerializeToString())
    write_settings(folder, tokenizer_class="T5Tokenizer", extra_ids=0)


TOKENIZERS = {
    **dict.fromkeys(("bert", "electra", "distilbert"), wordpiece),
    **dict.fromkeys(("openai-gpt", "ctrl", "qwen2", "qwen3"), byte_level_generic),
    **dict.fromkeys(("llama", "mistral", "gemma"), byte_fallback),
    **dict.fromkeys(("roberta", "bart"), byte_level_roberta),
    **dict.fromkeys(("xlm-roberta", "camembert", "xlm"), unigram_roberta),
    **{"gpt2": byte_level, "mbart": byte_level_mbart, "albert": unigram, "xlnet": unigram_xlnet},
    **{"t5": spiece, "mt5": spiece_mt5},
}
SEQUENCE = ("t5", "t5_v1_1", "mt5", "mt5_tied", "bart", "mbart")  # encoder-decoders
PAIRED = {"bert": "next_sentence_label", "albert": "sentence_order_label"}  # pair head: name of its labels
LLAMA = ("llama", "llama3", "mistral", "qwen2", "qwen3", "gemma")
CAUSAL = ("gpt2", "gpt", "ctrl", *LLAMA)  # decoders that predict the next token
