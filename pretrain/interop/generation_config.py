"""Generation settings, which an import ignores: here they are flags of `pretrain generate`."""

from collections.abc import Mapping
from pathlib import Path

from input_pipeline.io import read_json
from pretrain.workdir import CONFIG

FILE = "generation_config.json"
# Settings that older models have in config.json, with Hugging Face's defaults.
SETTINGS = (
    {"max_length": 20, "top_k": 50}
    | dict.fromkeys(("min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "diversity_penalty"), 0)
    | dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "temperature", "top_p", "typical_p"), 1)
    | dict.fromkeys(("repetition_penalty", "length_penalty"), 1)
    | dict.fromkeys(("do_sample", "early_stopping", "remove_invalid_values", "force_bos_token_to_be_generated"), False)
    | dict.fromkeys(("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"))
    | dict.fromkeys(("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "prefix"))
    | {"task_specific_params": None}
)
# Keys of generation_config.json without effect on the text.
NEUTRAL = ("_from_model_config", "transformers_version", "use_cache", "return_dict_in_generate")
NEUTRAL += ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def ignored_settings(given: Mapping, folder: Path, ids: Mapping[str, int | None]) -> str:
    """A line that names the generation settings of a config.json and its folder, or "" if they are the defaults.

    `ids` are the special ids that generation uses here, by config.json key.
    """
    ends = ("bos_token_id", "eos_token_id")
    # The tokenizer here decides where a text ends, and where it begins if it has such a token.
    ours = {"eos_token_id": ids.get("eos_token_id")} | {name: ids[name] for name in ends if name in ids}
    names = _unusual({name: given.get(name) for name in (*SETTINGS, *ours)}, ids)
    path = folder / FILE
    beside = {name: value for name, value in (read_json(path) if path.is_file() else {}).items() if name not in NEUTRAL}
    known = {**ids, **{name: given[name] for name in ("pad_token_id", *ends, *ids) if given.get(name) is not None}}
    parts = [(CONFIG, names), (FILE, _unusual(beside, known | ours))]
    settings = "; ".join(f"{', '.join(names)} of {file}" for file, names in parts if names)
    return f"ignored generation settings: {settings}. Use the flags of `pretrain generate`." if settings else ""


def _unusual(settings: Mapping, known: Mapping) -> list[str]:
    """Names of settings that are neither empty, nor the default, nor the `known` value."""
    return [
        name
        for name, value in settings.items()
        if value not in (None, "", {}, []) and value != SETTINGS.get(name) and value != known.get(name)
    ]
