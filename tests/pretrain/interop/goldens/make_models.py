"""Records the numbers of Hugging Face's models, which ours must give after an import.

    python tests/pretrain/interop/goldens/make_models.py [FILE]

writes FILE, by default models.json next to this script: hidden states and logits of each row's last token. NumPy draws
weights and rows (`hub.py`); everything is computed in float64. test_live.py compares all tokens with the library.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import hub

BERT = {"vocab_size": 67, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 29}
BERT |= {"max_position_embeddings": 23}
ROBERTA = {**BERT, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
ALBERT = {**BERT, "num_hidden_layers": 4, "num_hidden_groups": 2, "embedding_size": 7}
ALBERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
XLM = {"vocab_size": 67, "emb_dim": 15, "n_layers": 2, "n_heads": 3, "max_position_embeddings": 23, "n_langs": 1}
XLM |= {"use_lang_emb": False, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
T5 = {"vocab_size": 61, "d_model": 14, "d_kv": 5, "d_ff": 23, "num_layers": 2, "num_heads": 3}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 9, "decoder_start_token_id": 0}
MT5 = {**T5, "feed_forward_proj": "gated-gelu"}
GPT2 = {"vocab_size": 263, "n_positions": 19, "n_embd": 15, "n_layer": 3, "n_head": 5, "n_inner": 31}
GPT = {name: size for name, size in GPT2.items() if name != "n_inner"}
CTRL = {"vocab_size": 263, "n_positions": 19, "n_embd": 14, "n_layer": 2, "n_head": 7, "dff": 31}
LLAMA = {"vocab_size": 307, "max_position_embeddings": 31, "hidden_size": 36, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 29, "rope_theta": 50.0}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE |= {"original_max_position_embeddings": 9}
QWEN = {**LLAMA, "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
XLNET = {"vocab_size": 61, "d_model": 14, "n_layer": 2, "n_head": 7, "d_inner": 23, "ff_activation": "relu"}
BART = {"vocab_size": 271, "max_position_embeddings": 31, "d_model": 15, "encoder_layers": 2, "decoder_layers": 3}
BART |= {"encoder_attention_heads": 5, "decoder_attention_heads": 5, "encoder_ffn_dim": 23, "decoder_ffn_dim": 23}
DISTILBERT = {"vocab_size": 67, "dim": 15, "n_layers": 2, "n_heads": 3, "hidden_dim": 29}
DISTILBERT |= {"max_position_embeddings": 23}
ELECTRA = {**BERT, "embedding_size": 7}
CASES = {  # class and fields; sizes with few common divisors, so that a transposed axis shows
    "gpt2": ("GPT2LMHeadModel", {**GPT2, "bos_token_id": 0, "eos_token_id": 0}),
    "gpt": ("OpenAIGPTLMHeadModel", GPT),
    "ctrl": ("CTRLLMHeadModel", CTRL),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama3": ("LlamaForCausalLM", {**LLAMA, "attention_bias": True, "mlp_bias": True, "rope_scaling": ROPE}),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4, "head_dim": 10}),
    "qwen2": ("Qwen2ForCausalLM", {**QWEN, "rope_scaling": {"type": "linear", "factor": 2.5}}),
    "qwen3": ("Qwen3ForCausalLM", {**QWEN, "head_dim": 10, "tie_word_embeddings": True}),
    "gemma": ("GemmaForCausalLM", {**LLAMA, "num_key_value_heads": 1, "head_dim": 10}),
    "bert": ("BertForPreTraining", BERT),
    "bert_masked": ("BertForMaskedLM", {**BERT, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    "roberta": ("RobertaForMaskedLM", {**ROBERTA, "vocab_size": 269}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", ROBERTA),
    "camembert": ("CamembertForMaskedLM", {**ROBERTA, "vocab_size": 65}),
    "xlm": ("XLMWithLMHeadModel", XLM),
    "xlm_languages": ("XLMWithLMHeadModel", {**XLM, "n_langs": 3, "use_lang_emb": True}),
    "albert": ("AlbertForPreTraining", ALBERT),
    "albert_masked": ("AlbertForMaskedLM", {**ALBERT, "embedding_size": 15, "num_hidden_groups": 1}),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT),
    "electra": ("ElectraForPreTraining", {**ELECTRA, "hidden_act": "gelu_new"}),
    "electra_masked": ("ElectraForMaskedLM", ELECTRA),
    "xlnet": ("XLNetLMHeadModel", XLNET),
    "bart": ("BartForConditionalGeneration", BART),
    "mbart": ("MBartForConditionalGeneration", {**BART, "scale_embedding": True}),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5_v1_1": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5ForConditionalGeneration", MT5),
    "mt5_tied": ("MT5ForConditionalGeneration", MT5),
}
OWN_HEAD = ("t5_v1_1", "mt5")  # untied in the released files, though the class ties


def model_of(case):
    """(model with drawn weights, {name: weights})."""
    import torch
    import transformers

    name, fields = CASES[case]
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**fields))
    if case in OWN_HEAD:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    drawn = hub.weights({name: tuple(parameter.shape) for name, parameter in model.named_parameters()})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(drawn[name]))
    return model.eval(), drawn


def ask(case, model):
    """{name: numbers}: last hidden states and logits of every token, the encoder's, pair logits, mean loss."""
    import torch

    rows = {name: torch.tensor(ids) for name, ids in hub.batch(CASES[case][1]["vocab_size"]).items()}
    given = {"input_ids": rows["read"], "labels": rows["read"], "output_hidden_states": True}
    if case in hub.SEQUENCE:
        given["labels"] = rows["written"]
    if case == "xlm_languages":
        given["langs"] = rows["read"] % 3
    if case == "electra":  # every third id counts as replaced
        given["labels"] = (rows["read"] % 3 == 0).long()
    if case in hub.PAIRED:
        given[hub.PAIRED[case]] = torch.tensor([0, 1])
    with torch.no_grad():
        output = model(**given)
    hidden = output.decoder_hidden_states if case in hub.SEQUENCE else output.hidden_states
    logits = output.prediction_logits if case in hub.PAIRED else output.logits
    values = {"hidden": hidden[-1], "logits": logits, "loss": output.loss}
    if case in hub.SEQUENCE:
        values["encoder"] = output.encoder_last_hidden_state
    if case in hub.PAIRED:
        values["pair logits"] = output.seq_relationship_logits if case == "bert" else output.sop_logits
    return {name: x.numpy() for name, x in values.items()}


def main():
    cases = {}
    for case in CASES:
        model, drawn = model_of(case)
        answers = hub.last_tokens(ask(case, model.double()))
        numbers = {name: np.round(x.astype(float), 7).tolist() for name, x in answers.items()}
        shapes = {name: list(array.shape) for name, array in drawn.items()}
        config = json.loads(model.float().config.to_json_string(use_diff=False))
        config["architectures"] = [type(model).__name__]
        cases[case] = {"config": config, "shapes": shapes, "answers": numbers}
    text = "{\n" + ",\n".join(f" {json.dumps(case)}: {json.dumps(one)}" for case, one in cases.items()) + "\n}\n"
    Path(*sys.argv[1:2] or [hub.ANSWERS]).write_text(text)


if __name__ == "__main__":
    main()
