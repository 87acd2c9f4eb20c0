"""Hidden states and attention of imported models, from texts, against Hugging Face's library on the same ids."""

import hub
import numpy as np
import pytest
from goldens import make_models as peer
from test_live import imported_peer

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

TEXTS = ["the cat", "a reader, and", "the mat"]
FAST = ("bert", "gpt2", "xlnet", "t5")
ALIKE = ("bert_masked", "albert_masked", "electra_masked", "xlm-roberta", "camembert", "mt5", "mt5_tied", "llama")
CASES = [
    case if case in FAST else pytest.param(case, marks=pytest.mark.slow) for case in peer.CASES if case not in ALIKE
]


@pytest.fixture(scope="module", params=CASES)
def peers(request, tmp_path_factory):
    """(case, their model, our run of it)."""
    model, run = imported_peer(request.param, tmp_path_factory.mktemp(request.param))
    model.set_attn_implementation("eager")
    return request.param, model, run


def ask(case, model, row, target=None, **asked):
    """Their output for the ids of one row, without padding; decoders read `target`, or the row shifted right."""
    given = {"input_ids": torch.tensor(row.ids[None])}
    if case in hub.SEQUENCE:
        target = np.roll(row.ids, 1) if target is None else target
        given["decoder_input_ids"] = torch.tensor(target[None])
    elif case != "xlm" and "xlm" in case:
        given["langs"] = torch.zeros_like(given["input_ids"])
    elif "token_type_ids" in model.forward.__code__.co_varnames and row.types.any():
        given["token_type_ids"] = torch.tensor(row.types[None])
    with torch.no_grad():
        return model(**given, use_cache=False, **asked) if case in hub.SEQUENCE else model(**given, **asked)


def test_hidden_states(peers):
    case, model, run = peers
    stacks = {"encoder": "encoder_", "decoder": "decoder_"} if case in hub.SEQUENCE else {"": ""}
    rows = run.reader.rows(TEXTS)
    assert len({len(row.ids) for row in rows}) > 1
    for stack, prefix in stacks.items():
        ours = run.hidden(TEXTS, "all", stack=stack, batch_size=2)
        means = run.hidden(TEXTS, [0, -1], "mean", stack=stack)
        for row, own, mean in zip(rows, ours, means, strict=True):
            states = ask(case, model, row, output_hidden_states=True)[f"{prefix}hidden_states"]
            expected = np.stack([state[0].numpy() for state in states])
            np.testing.assert_allclose(own, expected, atol=1e-4, rtol=0, err_msg=f"{case} {stack}")
            np.testing.assert_allclose(mean, expected[[0, -1]].mean(axis=1), atol=1e-4, rtol=0)


def test_attention(peers):
    case, model, run = peers
    kinds = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    kinds = kinds if case in hub.SEQUENCE else {"self": "attentions"}
    for row, own in zip(run.reader.rows(TEXTS), run.attention(TEXTS), strict=True):
        theirs = ask(case, model, row, output_attentions=True)
        assert own.weights.keys() == kinds.keys()
        for kind, name in kinds.items():
            expected = np.stack([layer[0].numpy() for layer in theirs[name]])
            np.testing.assert_allclose(own.weights[kind], expected, atol=1e-4, rtol=0, err_msg=f"{case} {kind}")


@pytest.mark.parametrize("peers", ["t5", pytest.param("bart", marks=pytest.mark.slow)], indirect=True)
def test_cross_attention_to_a_prompt(peers):
    case, model, run = peers
    (own,) = run.attention(TEXTS[:1], targets=["the mat"])
    begun, source, _ = run.prompts(TEXTS[:1])
    # BART's texts begin with <s>, behind the </s> of every decoder's start.
    front = [run.tokenizer.special["classifier"]] if case == "bart" else []
    written = np.concatenate([begun[0], front, run.tokenizer.encode("the mat")]).astype(np.int64)
    row = run.reader.rows(TEXTS[:1])[0]._replace(ids=source["inputs"][0])
    theirs = ask(case, model, row, written, output_attentions=True)
    expected = np.stack([layer[0].numpy() for layer in theirs.cross_attentions])
    np.testing.assert_allclose(own.weights["cross"], expected, atol=1e-4, rtol=0)
    assert [len(side) for side in own.sides("cross")] == list(expected.shape[2:])
