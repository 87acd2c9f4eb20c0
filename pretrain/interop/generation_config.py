"""How text is written there, which an import leaves out: what is asked for here is asked of `pretrain generate`."""

from collections.abc import Mapping
from pathlib import Path

from input_pipeline.files import read_json
from pretrain.errors import UserError
from pretrain.workdir import CONFIG

FILE = "generation_config.json"
# Keys of config.json, and what each is there where nothing is asked for.
SETTINGS = {
    "max_length": 20,
    "min_length": 0,
    "do_sample": False,
    "early_stopping": False,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "num_return_sequences": 1,
    "remove_invalid_values": False,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "decoder_start_token_id": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "force_bos_token_to_be_generated": False,
    "prefix": None,
    "task_specific_params": None,
}
# Keys of the other file that say nothing of the text.
ABOUT = ("_from_model_config", "transformers_version", "use_cache", "return_dict_in_generate")
ABOUT += ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
BEGIN, END = "bos_token_id", "eos_token_id"
IDS = (BEGIN, END, "pad_token_id")


def left_out(given: Mapping, folder: Path, ids: Mapping[str, int | None]) -> str:
    """What is said of the settings of `given`, a config.json, and of the file beside it in `folder`; "" of none.

    `ids` are those that a text begins and ends with here, by their keys there. Errors: UserError for a damaged file.
    """
    ours = {END: ids.get(END)}  # where a text ends, if anywhere, is not for config.json to say
    ours |= {BEGIN: ids[BEGIN]} if BEGIN in ids else {}  # nor where it begins, of what begins there
    asked = _asked({name: given.get(name) for name in (*SETTINGS, *ours)}, ids)
    beside = _beside(folder / FILE)
    known = ids | {name: given.get(name) for name in (*IDS, *ids) if given.get(name) is not None} | ours
    more = _asked({name: value for name, value in beside.items() if name not in ABOUT}, known)
    parts = [f"{', '.join(names)} of {file}" for names, file in ((asked, CONFIG), (more, FILE)) if names]
    if not parts:
        return ""
    return f"left out how text is written there: {'; '.join(parts)}; `pretrain generate` has flags for what it can do"


def _asked(settings: Mapping, known: Mapping) -> list[str]:
    """The keys that ask for something that is neither usual nor `known`."""
    return [
        name
        for name, value in settings.items()
        if value not in (None, "", {}, []) and value != SETTINGS.get(name) and value != known.get(name)
    ]


def _beside(path: Path) -> dict:
    try:
        return dict(read_json(path)) if path.is_file() else {}
    except (ValueError, TypeError):
        raise UserError(f"{path} is not readable JSON of an object; fetch it again, or take it away") from None
