"""Images from files to a picture of completions, through the commands themselves."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from input_pipeline.sources import images
from pretrain.cli import main

SHAPE = (8, 8, 3)
SMALL = {
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.ff": 32,
    "model.attention": "('strided_24',)",
    "model.remat": "none",
    "train.steps": 6,
    "train.batch_size": 8,
    "schedule.warmup": 1,
    "evaluate.every": 3,
    "evaluate.batch_size": 8,
    "log.tensorboard": "false",
}
COMPLETE = ("generate", "--rows=3", "--samples=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """40 images to train on and 8 for validation, all of few colours."""
    folder = tmp_path_factory.mktemp("images")
    drawn = np.random.default_rng(0).integers(0, 16, (48, *SHAPE), np.uint8)
    for number, pixels in enumerate(drawn):
        part = folder / ("train" if number < 40 else "validation")
        part.mkdir(exist_ok=True)
        images.write_png(part / f"{number:02d}.png", pixels)
    return folder


def train(workdir, folder, **changes) -> int:
    data = {f"data.{split}": f"images:{folder}/{split}/*.png" for split in ("train", "validation")}
    keys = SMALL | data | {name.replace("__", "."): value for name, value in changes.items()}
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return main(["train", "--config=configs/sparse_transformer.py:tiny_images", f"--workdir={workdir}", *flags])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, folder):
    """A work folder of six updates."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGHAUL_CACHE", "")
        assert train(workdir, folder) == 0
    return workdir


@pytest.fixture
def pretrain(capsys, no_cache, trained):
    """Runs a command on the trained work folder in this process and returns the JSON line that it prints."""

    def run(command, *arguments):
        assert main([command, f"--workdir={trained}", *arguments, "--format=json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def tiles(path, across: int, down: int) -> np.ndarray:
    """The images of a picture, uint8 [down, across, rows, columns, colours]: frames cut off, enlargement undone."""
    with Image.open(path) as image:
        picture = np.asarray(image)
    assert picture.shape == (down * 98 + 2, across * 98 + 2, 3)
    cells = picture[2:, 2:].reshape(down, 98, across, 98, 3).transpose(0, 2, 1, 3, 4)
    assert (cells[:, :, 96:] == 255).all() and (cells[:, :, :, 96:] == 255).all()
    small = cells[:, :, :96:12, :96:12]
    assert np.array_equal(cells[:, :, :96, :96], small.repeat(12, 2).repeat(12, 3))
    return small


def validation(folder) -> np.ndarray:
    return np.stack([images.decode(str(path), path.name) for path in sorted((folder / "validation").glob("*.png"))])


def test_bits_per_dim(pretrain, trained):
    row = pretrain("evaluate", "--gzip")
    assert row["bits_per_dim"] == pytest.approx(row["loss"] / math.log(2), rel=1e-6)
    assert 3.5 < row["bits_per_dim"] < 8  # 4 bits are there, and a uniform guess is 8
    assert row["tokens"] == 8 * 192
    assert 4 < row["gzip_bits_per_dim"] < 8
    assert "bits_per_byte" not in row
    logged = [json.loads(line) for line in (trained / "metrics/validation.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged] == [3, 6]
    assert logged[-1]["bits_per_dim"] == pytest.approx(row["bits_per_dim"], rel=1e-5)


def test_completions_begin_as_the_original(pretrain, folder, tmp_path):
    facts = pretrain(*COMPLETE, f"--complete={tmp_path}/a.png")
    assert facts == {"step": 6, "file": f"{tmp_path}/a.png", "images": 3, "samples": 2, "kept": 4}
    cut, first, second, whole = tiles(tmp_path / "a.png", across=4, down=3).swapaxes(0, 1)
    assert np.array_equal(whole, validation(folder)[:3])
    assert np.array_equal(cut[:, :4], whole[:, :4]) and (cut[:, 4:] == 128).all()
    for sample in (first, second):
        assert np.array_equal(sample[:, :4], whole[:, :4])
        assert not np.array_equal(sample[:, 4:], whole[:, 4:])
    assert not np.array_equal(first, second)
    pretrain(*COMPLETE, f"--complete={tmp_path}/b.png", f"--images=images:{folder}/validation/*.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    pretrain(*COMPLETE, f"--complete={tmp_path}/c.png", "--nocached")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "c.png").read_bytes()
