"""Asks the authors' PyTorch code of Transformer-XL for the numbers that ours must give.

    git clone https://github.com/kimiyoung/transformer-xl
    git -C transformer-xl checkout 44781ed21dbaec88b280f74d9ae2877f52b492a5
    python tests/models/goldens/make_transformer_xl.py transformer-xl [FILE]

writes FILE, by default transformer_xl.json beside this script, with any recent PyTorch (2.13 made what is kept).
Weights and text are drawn by NumPy, so the file holds answers only: for every case each token's loss, and a digest of
the memory after each segment and of the gradient by each parameter; for the training loop, every update's loss and
learning rate, the losses of its own evaluation, and a digest of how far each parameter has moved.

The cases are computed in float64, so that what a float32 model differs by is its own rounding. The training loop is
the release's train.py, run whole in a copy of the folder, and as there in float32.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import runpy
import shutil
import sys
import tempfile
import types
import warnings
import zlib
from pathlib import Path
from unittest import mock

import numpy as np

COMMIT = "44781ed21dbaec88b280f74d9ae2877f52b492a5"
FILES = {  # of its folder pytorch/, and their SHA-256
    "mem_transformer.py": "38cbc93a8f7b06b85976e88e161349b34f2ac226b8a7796bd6d82c30dc592827",
    "utils/proj_adaptive_softmax.py": "fe7ff45785c24c200462f181206efed632036d658fa5a77a4968a987c3b924f4",
    "train.py": "5292e504be6d3ebfcd9ad5297c066f2c178e1e569c42258205e35b7ee79848aa",
    "data_utils.py": "4d55a4927bbb58f6cb6231ec08ec80362e11a98fbdf8d747ed15a9f9bf2d3431",
}
ANSWERS = Path(__file__).with_name("transformer_xl.json")

LANES, LENGTH, SEGMENTS = 3, 5, 4
SIZES = {  # the model's fields, as configs.common.transformer_xl has them; primes where they can be
    "vocab_size": 31,
    "cutoffs": (),
    "width": 12,
    "embed": 12,
    "divisor": 1,
    "tied_words": True,
    "shared_projections": "tails",
    "layers": 2,
    "heads": 3,
    "head_size": 5,
    "ff": 14,
    "memory": 7,
    "clamp": 0,
    "same_length": False,
}
CLUSTERS = {"cutoffs": (7, 17)}
NARROW = {"embed": 8}
CASES = {  # what differs
    "a memory longer than the row": {},
    "a memory shorter than the row": {"memory": 3},
    "a memory that takes three rows to fill": {"memory": 13},
    "same_length": {"same_length": True},
    "same_length, a memory shorter than the row": {"same_length": True, "memory": 3},
    "clamp": {"clamp": 4},
    "evaluation: same_length, clamp, a long memory": {"same_length": True, "clamp": 4, "memory": 13},
    "words not tied": {"tied_words": False},
    "narrow words, own projection": NARROW,
    "narrow words, shared projection": NARROW | {"shared_projections": "all"},
    "narrow words, not tied": NARROW | {"tied_words": False},
    "cutoffs": CLUSTERS,
    "cutoffs, words not tied": CLUSTERS | {"tied_words": False},
    "cutoffs, narrow words, tails shared": CLUSTERS | NARROW,
    "cutoffs, narrow words, all shared": CLUSTERS | NARROW | {"shared_projections": "all"},
    "cutoffs, narrow words, none shared": CLUSTERS | NARROW | {"shared_projections": "none"},
    "divisor 2, tails shared": CLUSTERS | {"divisor": 2},
    "divisor 2, all shared": CLUSTERS | {"divisor": 2, "shared_projections": "all"},
    "divisor 2, none shared": CLUSTERS | {"divisor": 2, "shared_projections": "none"},
    "divisor 2, narrow words, tails shared": CLUSTERS | NARROW | {"divisor": 2},
    "divisor 3, not tied, evaluated": CLUSTERS
    | {"divisor": 3, "tied_words": False, "same_length": True, "clamp": 4, "memory": 13},
    "divisor 2, no cutoffs": {"divisor": 2},
}
# Two epochs of ten updates, by Adam with a cosine that ends at the last; then train.py evaluates, in ten lanes.
UPDATES = {  # what differs, and updates of warm-up
    "cutoffs of one width": (CLUSTERS, 0),
    "divisor 2, tails shared": (CLUSTERS | {"divisor": 2}, 0),
    "warmed up": ({}, 6),
}
EPOCH, RATE, EVALUATED_LENGTH, EVALUATION_LANES, EVALUATION_ROWS = 10, 0.002, 3, 10, 4


def sizes(changes):
    """All fields of a case. The release projects words of the model's own width only where the divisor is not 1."""
    fields = SIZES | changes
    return fields | {"project_always": fields["divisor"] != 1}


def weights(fields, spread=0.3):
    """Parameters {path: array}, named and shaped as ours; wide: near 0 attention is uniform and hides mistakes."""
    L, D, N, H, F = (fields[name] for name in ("layers", "width", "heads", "head_size", "ff"))
    shapes = {"content_bias": (N, H), "position_bias": (N, H)}
    for name in ("query", "key", "value", "distance"):
        shapes[f"layers/attention/{name}/kernel"] = (L, D, N, H)
    shapes["layers/attention/output/kernel"] = (L, N, H, D)
    shapes |= {f"layers/feed_forward/{end}/bias": (L, size) for end, size in (("in", F), ("out", D))}
    shapes |= {"layers/feed_forward/in/kernel": (L, D, F), "layers/feed_forward/out/kernel": (L, F, D)}
    norms = itertools.product(("attention", "feed_forward"), ("scale", "bias"))
    shapes |= {f"layers/{branch}_norm/{name}": (L, D) for branch, name in norms}
    shapes |= {f"vocabulary/{name}": shape for name, shape in _vocabulary(fields).items()}

    def draw(path, shape):
        middle = 1.0 if path.endswith("scale") else 0.0
        noise = np.random.default_rng(zlib.crc32(path.encode())).standard_normal(shape)
        return (middle + spread * noise).astype(np.float32)

    return {path: draw(path, shape) for path, shape in shapes.items()}


def _vocabulary(fields):
    V, D, E, divisor = (fields[name] for name in ("vocab_size", "width", "embed", "divisor"))
    edges = (0, *fields["cutoffs"], V)
    clusters = [(stop - start, E // divisor**i) for i, (start, stop) in enumerate(itertools.pairwise(edges))]
    tables = [(V, E)] if divisor == 1 else clusters
    shapes = {"word_bias": (V,)} | {f"words_{i}": shape for i, shape in enumerate(tables)}
    if not fields["tied_words"]:
        shapes |= {f"out_words_{i}": shape for i, shape in enumerate(tables)}
    if fields["cutoffs"]:
        shapes |= {"clusters": (len(clusters) - 1, E), "cluster_bias": (len(clusters) - 1,)}
    if divisor != 1 or E != D:
        own = {"all": 0, "tails": 1, "none": len(clusters)}[fields["shared_projections"]]
        shapes |= {f"in_{i}": (width, D) for i, (_, width) in enumerate(tables)}
        shapes |= {f"out_{i}": (width, D) for i, (_, width) in enumerate(clusters[:own])}
    return shapes


def text(lanes, length, seed=0):
    """Tokens [lanes, length + 1], of which the last is only predicted."""
    return np.random.default_rng(seed).integers(0, SIZES["vocab_size"], (lanes, length + 1))


def validation():
    """The text that train.py evaluates."""
    return text(EVALUATION_LANES, EVALUATION_ROWS * EVALUATED_LENGTH, seed=2)


def token_weights():
    """How much each token of the text counts in the sum that is differentiated: [LANES, SEGMENTS * LENGTH]."""
    return np.random.default_rng(1).uniform(0.1, 1.0, (LANES, SEGMENTS * LENGTH)).astype(np.float32)


def digest(array):
    """Eight numbers that no other array of this shape is likely to have: its length, and seven sums of random signs."""
    flat = np.asarray(array, np.float64).ravel()
    signs = np.random.default_rng(flat.size).choice((-1.0, 1.0), (7, flat.size))
    return [float(x) for x in (np.linalg.norm(flat), *(signs @ flat))]


def to_release(fields, ours):
    """The release's parameters {name: array} from ours {path: array}."""
    width, layers, divisor = fields["width"], fields["layers"], fields["divisor"]
    theirs = {"r_w_bias": ours["content_bias"], "r_r_bias": ours["position_bias"]}
    for layer in range(layers):
        get = {path.removeprefix("layers/"): x[layer] for path, x in ours.items() if path.startswith("layers/")}
        kernel = {name: get[f"attention/{name}/kernel"].reshape(width, -1).T for name in ("query", "key", "value")}
        theirs |= {
            f"layers.{layer}.{name}": x
            for name, x in {
                "dec_attn.qkv_net.weight": np.concatenate(list(kernel.values())),
                "dec_attn.r_net.weight": get["attention/distance/kernel"].reshape(width, -1).T,
                "dec_attn.o_net.weight": get["attention/output/kernel"].reshape(-1, width).T,
                "dec_attn.layer_norm.weight": get["attention_norm/scale"],
                "dec_attn.layer_norm.bias": get["attention_norm/bias"],
                "pos_ff.CoreNet.0.weight": get["feed_forward/in/kernel"].T,
                "pos_ff.CoreNet.0.bias": get["feed_forward/in/bias"],
                "pos_ff.CoreNet.3.weight": get["feed_forward/out/kernel"].T,
                "pos_ff.CoreNet.3.bias": get["feed_forward/out/bias"],
                "pos_ff.layer_norm.weight": get["feed_forward_norm/scale"],
                "pos_ff.layer_norm.bias": get["feed_forward_norm/bias"],
            }.items()
        }
    get = {path.removeprefix("vocabulary/"): x for path, x in ours.items() if path.startswith("vocabulary/")}
    bias = [get.pop("word_bias")] if divisor == 1 else np.split(get.pop("word_bias"), fields["cutoffs"])
    theirs |= {f"crit.out_layers.{i}.bias": part for i, part in enumerate(bias)}
    if fields["cutoffs"]:  # cluster i is the i-th from the end there
        theirs |= {"crit.cluster_weight": get.pop("clusters")[::-1], "crit.cluster_bias": get.pop("cluster_bias")[::-1]}
    names = {"words": "word_emb.emb_layers.{}.weight", "out_words": "crit.out_layers.{}.weight"}
    names |= {"in": "word_emb.emb_projs.{}", "out": "crit.out_projs.{}"}
    for path, x in get.items():
        kind, _, i = path.rpartition("_")
        theirs[names[kind].format(i)] = x.T if kind in ("in", "out") else x
    return theirs


def from_release(fields, theirs):
    """The inverse, for gradients and parameters alike: every number goes back to where `to_release` takes it from."""
    shapes = {path: x.shape for path, x in weights(fields).items()}
    ends = np.cumsum([0, *(np.prod(shape) for shape in shapes.values())])
    starts = dict(zip(shapes, ends, strict=False))
    places = {path: start + np.arange(np.prod(shapes[path])).reshape(shapes[path]) for path, start in starts.items()}
    flat = np.full(ends[-1], np.nan)
    for name, place in to_release(fields, places).items():
        flat[place] = theirs[name]
    return {path: flat[place] for path, place in places.items()}


def build(release, fields):
    """The release's model with a case's weights; `release` is its module mem_transformer."""
    import torch

    clusters = 1 + len(fields["cutoffs"])
    shared = {"all": [True] * clusters, "tails": [False] + [True] * (clusters - 1), "none": [False] * clusters}
    model = release.MemTransformerLM(
        *(fields[name] for name in ("vocab_size", "layers", "heads", "width", "head_size", "ff")),
        dropout=0.0,
        dropatt=0.0,
        tie_weight=fields["tied_words"],
        d_embed=fields["embed"],
        div_val=fields["divisor"],
        tie_projs=shared[fields["shared_projections"]],
        tgt_len=LENGTH,
        ext_len=0,
        mem_len=fields["memory"],
        cutoffs=list(fields["cutoffs"]),
        same_length=fields["same_length"],
        attn_type=0,
        clamp_len=fields["clamp"] or -1,
    )
    values, parameters = to_release(fields, weights(fields)), dict(model.named_parameters())
    assert values.keys() == parameters.keys(), values.keys() ^ parameters.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            assert parameter.shape == values[name].shape, name
            parameter.copy_(torch.tensor(values[name].copy()))
    return model


def case_answers(release, fields):
    """{what: numbers} of a case: losses [SEGMENTS, LANES, LENGTH], digests of memory and gradients."""
    import torch

    model = build(release, fields).double()
    model.crit.keep_order = True  # else losses come cluster by cluster, which their mean does not mind
    tokens, counts = (torch.tensor(x.T.copy()) for x in (text(LANES, SEGMENTS * LENGTH), token_weights()))
    losses, digests, memory = [], [], ()
    for start in range(0, SEGMENTS * LENGTH, LENGTH):
        row = slice(start, start + LENGTH)
        loss, *memory = model(tokens[row], tokens[start + 1 : start + LENGTH + 1], *memory)
        (loss * counts[row]).sum().backward()
        losses.append(loss.detach().T.numpy())
        inputs = torch.stack(memory[:-1])  # the last is the output of the last layer, which nothing reads
        digests += digest(inputs.transpose(1, 2).numpy())
    gradient = from_release(fields, {name: parameter.grad.numpy() for name, parameter in model.named_parameters()})
    answers = {"losses": np.ravel(losses), "memory": digests}
    return answers | {f"gradient of {path}": digest(x) for path, x in gradient.items()}


def settled(path, moved):
    """What Adam's rounding leaves of how a parameter moved: all, but for the distances' slowest cosines.

    Over a few positions those are 1 to four digits and more. Softmax does not see what all keys are given alike, so the
    gradient there is little more than rounding, which Adam makes full steps of: the release in float32 and in float64
    differ by 1 % of this kernel's whole movement.
    """
    return moved[:, :-3] if path == "layers/attention/distance/kernel" else moved


def update_answers(release, fields, warmup):
    """{what: numbers} of train.py, run in the present folder: losses, rates, evaluation, how far parameters moved."""
    import data_utils
    import torch

    texts = {"train": text(LANES, EPOCH * LENGTH), "valid": validation(), "test": validation()}

    def iterator(split, *args, **options):
        return data_utils.LMOrderedIterator(torch.tensor(texts[split]).ravel(), *args, **options)

    corpus = types.SimpleNamespace(vocab=range(fields["vocab_size"]), get_iterator=iterator)
    data_utils.get_lm_corpus = lambda folder, name: corpus
    losses, rates = {True: [], False: []}, []
    whole_forward, whole_step = release.MemTransformerLM.forward, torch.optim.Adam.step

    def forward(model, *args):
        output = whole_forward(model, *args)
        losses[model.training].append(output[0].mean().item())
        return output

    def step(optimizer, *args):
        rates.append(optimizer.param_groups[0]["lr"])
        return whole_step(optimizer, *args)

    Path("start").mkdir(exist_ok=True)
    torch.save(build(release, fields), "start/model.pt")
    options = {"restart_dir": "start", "work_dir": "work", "batch_size": LANES, "tgt_len": LENGTH}
    options |= {"mem_len": fields["memory"], "eval_tgt_len": EVALUATED_LENGTH, "lr": RATE, "max_step": 2 * EPOCH}
    options |= {"eval-interval": 2 * EPOCH, "dataset": "enwik8", "warmup_step": warmup}
    sys.argv = ["train.py", "--restart", *(f"--{name}={value}" for name, value in options.items())]
    with (
        mock.patch.object(release.MemTransformerLM, "forward", forward),
        mock.patch.object(torch.optim.Adam, "step", step),
    ):
        model = runpy.run_path("train.py")["model"]
    if warmup:  # which ours makes an update earlier, so that only the rates can be compared
        return {"rates": rates}
    parameters = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    ended, began = from_release(fields, parameters), weights(fields)
    answers = {"losses": losses[True], "rates": rates, "evaluation": losses[False][-EVALUATION_ROWS:]}
    return answers | {f"moved {path}": digest(settled(path, x - began[path])) for path, x in ended.items()}


@contextlib.contextmanager
def release_of(checkout):
    """The release's module mem_transformer, from a copy of its folder, which is the present folder meanwhile.

    Raises SystemExit unless the files are those of COMMIT. What PyTorch has changed since is put right: masks of bytes
    are masks of booleans, a CPU's torch.version.cuda is no string, and torch.load opens whole models only if told to.
    """
    import torch

    for name, expected in FILES.items():
        found = hashlib.sha256((checkout / "pytorch" / name).read_bytes()).hexdigest()
        if found != expected:
            sys.exit(f"{checkout}/pytorch/{name} is not the file of commit {COMMIT}; check out that commit")
    warnings.simplefilter("ignore")  # of old habits
    torch.set_num_threads(1)
    torch.Tensor.byte = torch.Tensor.bool
    torch.version.cuda = torch.version.cuda or "0.0"
    torch.load = functools.partial(torch.load, weights_only=False)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "pytorch"
        shutil.copytree(checkout / "pytorch", copy)
        os.chdir(copy)
        sys.path[:0] = [str(copy), str(copy / "utils")]
        try:
            import mem_transformer

            yield mem_transformer
        finally:
            os.chdir(before)


def main(checkout, file=ANSWERS):
    """Write the answers of the release in folder `checkout`, one list of numbers a line."""
    file = file.absolute()
    answers = {}
    with release_of(checkout) as release:
        for name, changes in CASES.items():
            answers |= {f"{name}: {what}": x for what, x in case_answers(release, sizes(changes)).items()}
        for name, (changes, warmup) in UPDATES.items():
            found = update_answers(release, sizes(changes), warmup)
            answers |= {f"{name}, trained: {what}": x for what, x in found.items()}
    lines = [f"{json.dumps(what)}: [{', '.join(f'{x:.9g}' for x in numbers)}]" for what, numbers in answers.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
