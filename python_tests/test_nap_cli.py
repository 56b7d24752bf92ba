"""``zb nap``: recording, counting, comparing and certifying from the command line, and how each of them fails."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner, Result

from zbkernels.cli import app
from zbkernels.data import load_digits
from zbkernels.models import ARCHITECTURES, build
from zbkernels.nap import Recording, certified_radius, patterns, record, show
from zbkernels.nap.certifying import certify_images
from zbkernels.nap.neighbours import neighbours
from zbkernels.nap.statistics import statistics


def zb(*arguments: object) -> Result:
    environment = {"ZBKERNELS_DATA": None, "COLUMNS": "200"}
    return CliRunner().invoke(app, ["nap", *map(str, arguments)], env=environment)


def values(*arguments: object) -> dict:
    result = zb(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def error(*arguments: object) -> str:
    result = zb(*arguments)
    assert result.exit_code == 1, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("zb:")]
    assert len(lines) == 1 and "Traceback" not in result.output
    return lines[0]


def network(name: str = "fcn-mnist", bias: bool = False) -> nn.Sequential:
    return build(ARCHITECTURES[name], (1, 8, 8), 10, bias=bias, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Weights of a small network and a recording of it over the digits."""
    path = tmp_path_factory.mktemp("nap")
    for name, bias in (("fcn", False), ("biased", True)):
        save_file(network(bias=bias).state_dict(), path / f"{name}.safetensors")
    shown = zb(
        "record",
        path / "fcn.safetensors",
        "digits:train",
        "--out",
        path / "rec",
        "--architecture",
        "fcn-mnist",
    )
    assert shown.exit_code == 0, shown.output
    assert "1,437 patterns of scikit-learn digits" in shown.output and "fc1" in shown.output
    return path


def with_architecture(path: Path) -> tuple[object, ...]:
    return path / "fcn.safetensors", "digits:train", "--architecture", "fcn-mnist"


def test_record_is_record(folder):
    digits = load_digits().train
    found = Recording.load(folder / "rec", verify=True)
    assert torch.equal(found.signatures, patterns(network(), digits.images))
    assert torch.equal(found.labels, digits.labels.int())
    shown = values(
        "record", *with_architecture(folder), "--out", folder / "rec"
    )  # complete: compared, not repeated
    right = 100 * (network()(digits.images).argmax(1) == digits.labels).float().mean().item()
    assert shown["inputs"] == 1437 and shown["accuracy"] == pytest.approx(right)
    assert shown["layers"][0]["name"] == "fc1" and shown["bytes"] == 1437 * 16


def test_record_options(folder, tmp_path):
    path = tmp_path / "cnn.safetensors"
    save_file(network("cnn-fashion").state_dict(), path)
    arguments = (
        path,
        "digits",
        "--architecture",
        "cnn-fashion",
        "--out",
        tmp_path / "rec",
        "--limit",
        7,
        "--batch",
        3,
    )
    shown = values("record", *arguments, "--units", "winner", "--layer", "conv*")
    assert [each["name"] for each in shown["layers"]] == ["conv1", "conv2"] and shown["inputs"] == 7
    expected = patterns(
        network("cnn-fashion"), load_digits().test.images[:7], units="winner", layers=["conv*"]
    )
    assert torch.equal(Recording.load(tmp_path / "rec").signatures, expected)
    assert "another choice of units: winner then, relu now" in error("record", *arguments, "--layer", "conv*")
    assert zb("record", *arguments, "--force").exit_code == 0


def test_stats_count_what_is_there(folder):
    found = Recording.load(folder / "rec")
    rows = [tuple(row) for row in found.signatures.tolist()]
    counts = Counter(rows)
    (each,) = values("stats", folder / "rec", "--top", 3, "--verify")["layers"]
    assert each["patterns"] == len(counts) and each["alone"] == sum(n == 1 for n in counts.values())
    assert [group["size"] for group in each["largest"]] == [n for _, n in counts.most_common(3)]
    top = each["largest"][0]
    members = [i for i, row in enumerate(rows) if row == rows[top["first"]]]
    assert len(members) == top["size"] and members[0] == top["first"]
    labels = Counter(found.labels[members].tolist())
    assert dict(map(tuple, top["labels"])) == labels
    on = found.layers[0].decode(found.signatures).sum(0)
    assert each["never"] == (on == 0).sum() and each["always"] == (on == 1437).sum()

    of_group: dict = {}
    for row, label in zip(rows, found.labels.tolist(), strict=True):
        of_group.setdefault(row, Counter())[label] += 1
    assert each["purity"] == pytest.approx(sum(max(g.values()) for g in of_group.values()) / 1437)
    for one in each["classes"]:
        label = one["label"]
        mine = [g for g in of_group.values() if label in g]
        assert one["inputs"] == sum(g[label] for g in mine) and one["patterns"] == len(mine)
        assert one["shared"] == sum(g[label] for g in mine if sum(g.values()) > 1)
        assert one["pure"] == sum(g[label] for g in mine if len(g) == 1 and g[label] > 1)
    shown = zb("stats", folder / "rec").output
    assert "Biggest groups of one pattern: fc1" in shown and "By class: fc1" in shown


def test_stats_of_several_layers_and_of_winner_codes(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(40, 1, 8, 8)
    x[20:] = x[:20]
    model = network("cnn-fashion")
    model[0].weight.data[:4] = -model[0].weight.data[:4].abs()
    found = record(model, [x.abs()], units="winner", out=tmp_path)
    kept = statistics(found)
    assert [each.name for each in kept] == ["conv1", "conv2", "fc3", "all"]
    codes = found.layers[0].decode(found.signatures)
    assert kept[0].never == (codes == 0).all(0).sum() >= 4 * 16 and kept[0].always is None
    assert kept[3].patterns == 20 and kept[3].largest[0].size == 2 and kept[3].classes == ()
    assert kept[3].never == sum(each.never for each in kept[:3])
    assert [each.name for each in statistics(found, layers=["fc3"])] == ["fc3"]
    assert zb("stats", tmp_path, "--layer", "conv?").output.count("Biggest groups") == 3
    assert "no layer 'fc9'; there are conv1, conv2, fc3" in error("stats", tmp_path, "--layer", "fc9")


def test_nearest_are_the_nearest(folder):
    found = Recording.load(folder / "rec")
    images = load_digits().test.images[[3, 5, 6]]
    shown = values("nearest", folder / "rec", folder / "fcn.safetensors", "digits", "--architecture", "fcn-mnist",
                   "--pick", "3,5-6", "--k", 4)  # fmt: skip
    bits = [set(np.flatnonzero(row)) for row in found.layers[0].decode(found.signatures).numpy()]
    new = [set(np.flatnonzero(row)) for row in (found.layers[0].decode(patterns(network(), images))).numpy()]
    for image, pattern in zip(shown["images"], new, strict=True):
        distances = sorted((len(pattern ^ other), row) for row, other in enumerate(bits))[:4]
        assert list(zip(image["distances"], image["rows"], strict=True)) == distances
        assert image["labels"] == [int(found.labels[row]) for _, row in distances]
    assert [image["row"] for image in shown["images"]] == [3, 5, 6] and shown["bits"] == 32
    output = zb("nearest", folder / "rec", *with_architecture(folder), "--pick", "0", "--k", 1).output
    assert "nearest of 1,437 recorded patterns, in bits of 32" in output and "median" in output


def test_rarity_is_measured_against_recorded_inputs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64, bias=False), nn.ReLU())
    x = torch.randn(1, 1, 8, 8) + 0.1 * torch.randn(300, 1, 8, 8)
    found = record(model, [x])
    near = neighbours(found, model, torch.cat([x[:3], torch.randn(3, 1, 8, 8)]), k=2)
    assert near.distances[:3, 0].tolist() == [0, 0, 0] and near.rarer_than[:3].tolist() == [0, 0, 0]
    assert near.rarer_than[3:].tolist() == [1, 1, 1] and near.predictions is not None
    own = sorted(int(row.sort().values[1]) for row in zb_hamming(found.signatures))
    assert near.usual.tolist() == own


def zb_hamming(signatures: torch.Tensor) -> torch.Tensor:
    on = torch.from_numpy(np.unpackbits(signatures.numpy().view(np.uint8), axis=1)).float()
    return torch.cdist(on, on, p=1).round()


def test_certify(folder):
    shown = values(
        "certify", *with_architecture(folder), "--pick", "0-2,9", "--recording", folder / "rec", "--hull"
    )
    assert [image["row"] for image in shown["images"]] == [0, 1, 2, 9] and shown["lost"] == ""
    model, digits = network(), load_digits().train
    for image in shown["images"]:
        x = digits.images[image["row"]]
        radius = image["l2"]["certified"]
        assert 0 < radius <= min(image["l2"]["unit"], image["l2"]["decision"])
        assert image["l2"]["tie"] == certified_radius(model, x[None]).tie.item()
        around = x + 0.99 * radius * nn.functional.normalize(torch.randn(50, 64), dim=1).view(50, 1, 8, 8)
        assert len(patterns(model, torch.cat([x[None], around])).unique(dim=0)) == 1
        assert (model(around).argmax(1) == image["prediction"]).all()
    together, *groups = shown["regions"]
    assert (
        together["rows"] == [0, 1, 2, 9]
        and not together["certified"]
        and "inputs 0 and" in together["reason"]
    )
    assert len(groups) == 5 and groups[0]["inputs"] >= groups[-1]["inputs"] >= 2
    for group in groups:
        assert group["certified"] and group["kind"] == "cone" and group["margins"]["float32"]["holds"]
        mixed = (torch.rand(20, len(group["rows"])) @ digits.images[group["rows"]].flatten(1)).view(
            -1, 1, 8, 8
        )
        assert (model(mixed).argmax(1) == group["prediction"]).all()
    output = zb("certify", *with_architecture(folder), "--pick", "0", "--recording", folder / "rec").output
    assert "every conic combination" in output and "each region is a cone" in output


def test_certify_says_what_biases_cost(folder):
    arguments = (folder / "biased.safetensors", "digits", "--architecture", "fcn-mnist", "--pick", "0")
    shown = values("certify", *arguments, "--hull", "--arithmetic", "float32", "--vary", "nonzero")
    assert "polytopes" in shown["lost"] and shown["regions"][0]["kind"] == "hull"
    output = zb("certify", *arguments, "--hull").output
    assert "every convex combination" in output and "polytopes" in output
    assert "--vary: expected one of all, nonzero, got 'some'" in error(
        "certify", *arguments, "--vary", "some"
    )
    assert "--arithmetic: expected one of exact" in error("certify", *arguments, "--arithmetic", "int8")


def pooled_after(*before: nn.Module) -> nn.Module:
    return nn.Sequential(*before, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 2, bias=False)).eval()


@pytest.mark.parametrize(
    ("net", "pixels", "said"),
    [
        (
            pooled_after(),
            [[0.5, 0.5], [0.25, 0.125]],
            "two positions of a max pool's window are exactly tied",
        ),
        (pooled_after(nn.ReLU()), [[0.0, 0.0], [0.0, 0.0]], "a unit's input is exactly 0"),
    ],
)
def test_a_distance_of_0_is_told_by_its_cause(net, pixels, said):
    x = torch.tensor(pixels)[None, None]
    for vary in ("all", "nonzero"):
        radii = certify_images(net, x, vary=vary)
        assert not math.copysign(1, radii.l2.certified[0]) < 0  # no -0
        shown = [each for each in show.certificates(radii, [], [7], None, "x", vary) if isinstance(each, str)]
        zero = [text for text in shown if "A distance of 0" in text]
        if vary == "nonzero" and not x.any():
            assert zero == []  # nothing may change
            continue
        assert said in zero[0] and "image 7" in zero[0] and len(zero) == 1
        assert ("--vary nonzero" in zero[0]) == (vary == "all" and not x.all())
        assert bool(radii.l2.tie[0]) == ("tied" in said)


def test_certify_refuses_another_recording(folder, tmp_path):
    other = (folder / "biased.safetensors", "digits:train", "--architecture", "fcn-mnist")
    assert "holds the recording of another model" in error("certify", *other, "--recording", folder / "rec")
    test = (folder / "fcn.safetensors", "digits:test", "--architecture", "fcn-mnist")
    assert "give the images that were recorded" in error("certify", *test, "--recording", folder / "rec")
    np.save(tmp_path / "shuffled.npy", load_digits().train.images.flip(0).numpy())
    shuffled = (folder / "fcn.safetensors", tmp_path / "shuffled.npy", "--architecture", "fcn-mnist")
    assert "are not the images that were recorded" in error(
        "certify", *shuffled, "--recording", folder / "rec"
    )


def test_images_from_files(folder, tmp_path):
    from PIL import Image

    digits = load_digits().test
    pixels = (digits.images[:6, 0] * 255).round().to(torch.uint8).numpy()
    x = torch.from_numpy(pixels).float().div(255).unsqueeze(1)
    np.save(tmp_path / "images.npy", pixels)
    np.savez(tmp_path / "both.npz", images=x.numpy(), labels=digits.labels[:6].numpy())
    Image.fromarray(pixels[0]).save(tmp_path / "one.png")
    expected = patterns(network(), x)
    for name, rows in (("images.npy", 6), ("both.npz", 6), ("one.png", 1)):
        source = (folder / "fcn.safetensors", tmp_path / name, "--architecture", "fcn-mnist")
        assert values("record", *source, "--out", tmp_path / f"rec-{name}")["inputs"] == rows
        found = Recording.load(tmp_path / f"rec-{name}")
        assert torch.equal(found.signatures, expected[:rows]) and (found.labels is None) == (
            name != "both.npz"
        )


def test_images_that_cannot_be_used(folder, tmp_path):
    def said(name: str, write=None) -> str:
        if write is not None:
            write(tmp_path / name)
        return error("record", folder / "fcn.safetensors", tmp_path / name if write else name, "--out", tmp_path / "x",
                     "--architecture", "fcn-mnist")  # fmt: skip

    assert "there is no such file" in said("digitz")
    assert "expected digits:train or digits:test" in said("digits:all")
    assert "pass --data DIR or set ZBKERNELS_DATA" in said("mnist")
    assert "cannot be read as arrays" in said("a.npy", lambda p: p.write_text("no"))
    assert "expected images [N, C, H, W]" in said("b.npy", lambda p: np.save(p, np.zeros((3, 4))))
    assert "expected images [N, C, H, W]" in said("c.npy", lambda p: np.save(p, np.zeros((3, 8, 8), int)))
    assert "expected an array 'images'" in said("d.npz", lambda p: np.savez(p, x=np.zeros(3)))
    both = {"images": np.zeros((3, 8, 8), np.uint8), "labels": np.zeros(2, int)}
    assert "expected labels to be integers [3]" in said("e.npz", lambda p: np.savez(p, **both))
    assert "cannot be read as a picture" in said("f.png", lambda p: p.write_text("no"))
    assert "expected mnist" in said("g.txt", lambda p: p.write_text("no"))
    assert "the weights don't fit fcn-mnist for images of shape [1, 9, 8]" in said(
        "h.npy", lambda p: np.save(p, np.zeros((3, 9, 8), np.uint8))
    )


def test_models_from_runs_exports_and_functions(tmp_path, monkeypatch):
    unit = tmp_path / "run" / "units" / "without-bias-seed0"
    for folder, bias in (
        (unit, False),
        (unit.with_name("with-bias-seed0"), True),
    ):  # as experiments leave them
        folder.mkdir(parents=True)
        save_file(network(bias=bias).state_dict(), folder / "model.safetensors")
        settings = {"architecture": str(ARCHITECTURES["fcn-mnist"]), "form": "plain" if bias else "fused"}
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    options = ("digits", "--limit", 3)
    assert values("record", unit, *options, "--out", tmp_path / "a")["layers"][0]["kind"] == "linear_relu"
    biased = unit.with_name("with-bias-seed0") / "model.safetensors"  # settings.json lies beside it
    assert values("record", biased, *options, "--out", tmp_path / "b")["layers"][0]["kind"] == "relu"
    assert f"there are {unit.with_name('with-bias-seed0')}, {unit}" in error(
        "record", tmp_path / "run", *options, "--out", tmp_path / "c"
    )

    x = load_digits().test.images
    plain = build(ARCHITECTURES["cnn-fashion"], (1, 8, 8), 10, fused=False)
    batch = torch.export.Dim("batch")
    torch.export.save(
        torch.export.export(plain.eval(), (x[:2],), dynamic_shapes=({0: batch},)), tmp_path / "m.pt2"
    )
    values("record", tmp_path / "m.pt2", *options, "--out", tmp_path / "d", "--units", "winner")
    assert torch.equal(Recording.load(tmp_path / "d").signatures, patterns(plain, x[:3], units="winner"))

    (tmp_path / "my_models.py").write_text(
        "import torch.nn as nn\nclass Own(nn.Module):\n    def forward(self, x):\n"
        "        return (x - 0.5).relu().flatten(1)\n"
        "def number():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (
        values("record", "my_models:Own", *options, "--out", tmp_path / "e")["layers"][0]["name"] == "forward"
    )
    assert "expected it to give an nn.Module, got int" in error(
        "record", "my_models:number", *options, "--out", tmp_path / "f"
    )
    assert "no such function" in error("record", "my_models:none", *options, "--out", tmp_path / "f")
    sys.modules.pop("my_models", None)


def test_models_that_cannot_be_used(folder, tmp_path):
    def said(model: object, *more: object) -> str:
        return error("record", model, "digits", "--out", tmp_path / "x", *more)

    weights = folder / "fcn.safetensors"
    assert "no settings.json says what network it is; pass --architecture" in said(weights)
    assert "--architecture: expected one of fcn-mnist" in said(weights, "--architecture", "cnn")
    assert "the weights don't fit cnn-fashion" in said(weights, "--architecture", "cnn-fashion")
    assert "expected a trained network's folder" in said(tmp_path / "nothing")
    assert "no model.safetensors is there" in said(tmp_path)
    (tmp_path / "m.pt").write_bytes(b"")
    assert "a pickle could run code" in said(tmp_path / "m.pt")
    for name in ("m.safetensors", "m.pt2"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
    assert "cannot be read" in said(tmp_path / "m.safetensors", "--architecture", "fcn-mnist")
    assert "cannot be read as an exported program" in said(tmp_path / "m.pt2")
    (tmp_path / "settings.json").write_text('{"architecture": "fc(7)"}')
    save_file(network().state_dict(), tmp_path / "model.safetensors")
    assert "no network of this version is 'fc(7)'" in said(tmp_path)
    assert "unknown device 'tpu0'" in said(weights, "--architecture", "fcn-mnist", "--device", "tpu0")


def test_other_errors_are_one_line(folder, tmp_path):
    model = with_architecture(folder)
    assert "no recording is there" in error("stats", tmp_path)
    for pick in ("a", "3-1", "-1", ""):
        shown = zb("nearest", folder / "rec", *model, "--pick", pick)
        assert shown.exit_code == 2 and f"such as 0,5,7-9, got {pick!r}" in " ".join(shown.output.split())
    assert "no image 5000; there are 1,437" in error("nearest", folder / "rec", *model, "--pick", "5000")
    assert "expected 1 <= k <= 1437" in error("nearest", folder / "rec", *model, "--k", 2000)
    assert "another model" in error("nearest", folder / "rec", folder / "biased.safetensors", *model[1:])
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "recording.json").write_text("{")
    assert "cannot be read as a recording's header" in error("stats", tmp_path / "rec")
    assert zb().exit_code == 2 and "certify" in zb("--help").output
