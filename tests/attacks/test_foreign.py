"""A stranger's model: attacked as the same model of this package is, and harmless whatever is in its file."""

from __future__ import annotations

import json
import threading
import warnings
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from noiseproof.attacks import (
    AttackSplit,
    ForeignModel,
    infer_by_all,
    infer_membership,
    open_model,
    read_members,
    worker,
)
from noiseproof.data.dataset import Public
from noiseproof.errors import DataError, SettingError

UNTRAINED = ["loss", "confidence", "entropy", "modified-entropy", "gap", "label-only"]
PUBLIC = Public((4,), ("a", "b"))


@pytest.fixture(scope="module")
def small(split):
    """As many members as non-members, for models that take a while to ask."""
    return AttackSplit(split.members.take(torch.arange(100)), split.nonmembers.take(torch.arange(100)))


def scripted(module, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(path)
    return str(path)


def as_onnx(module, path, features):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "records"}}
        torch.onnx.export(module, (features[:2],), path, dynamo=False, input_names=["x"], dynamic_axes=axes)
    return str(path)


def test_every_attack_on_an_onnx_file_gives_what_it_gives_on_the_native_model(target, memorised, small, tmp_path):
    model = open_model(as_onnx(memorised, tmp_path / "m.onnx", small.members.features), small.members.public)
    theirs, ours = (infer_by_all(each, small, UNTRAINED) for each in (model, target))
    for found, native in zip(theirs, ours, strict=True):
        torch.testing.assert_close(found.scores, native.scores, rtol=1e-4, atol=1e-5)
        assert found.tpr_at_fpr == native.tpr_at_fpr
        assert found.auc == pytest.approx(native.auc, abs=1e-9)
    assert model.outputs == "logits"
    assert model.asked == 200 * 11  # every attack but label-only looks at the same answers


def test_weights_and_torchscript_answer_as_the_native_model_does(target, memorised, network, small, tmp_path):
    save_file(memorised.state_dict(), tmp_path / "m.safetensors")
    script = open_model(scripted(memorised, tmp_path / "m.pt"), small.members.public)
    expected = target.predict(small.records.features)
    torch.testing.assert_close(script.predict(small.records.features), expected)
    with pytest.raises(DataError, match="not those of a linear"):
        open_model(str(tmp_path / "m.safetensors"), small.members.public, network="linear")
    with pytest.raises(SettingError, match="--network"):
        open_model(str(tmp_path / "m.safetensors"), small.members.public)
    with pytest.raises(SettingError, match="for weights"):
        open_model(str(tmp_path / "m.pt"), small.members.public, network="mlp")


def test_weights_go_into_the_named_network(tmp_path):
    linear = nn.Linear(4, 2)
    save_file({"1.weight": linear.weight.data, "1.bias": linear.bias.data}, tmp_path / "m.safetensors")
    model = open_model(str(tmp_path / "m.safetensors"), PUBLIC, network="linear")
    features = torch.rand(5, 4)
    torch.testing.assert_close(model.predict(features), linear(features).softmax(1).detach())


class ReadsAFile(nn.Module):
    def forward(self, x):
        return x + torch.from_file("/etc/hostname", False, 3, dtype=torch.uint8).sum()


class WritesAFile(nn.Module):
    def forward(self, x):
        torch.save(x, "/tmp/noiseproof-was-here")
        return x


@pytest.mark.slow
@pytest.mark.parametrize("module", [ReadsAFile, WritesAFile])
def test_torchscript_that_touches_files_is_not_even_loaded(module, tmp_path):
    with pytest.raises(DataError, match="operation that networks do not need"):
        open_model(scripted(module(), tmp_path / "m.pt"), PUBLIC).predict(torch.rand(3, 4))


@pytest.mark.parametrize("module", [ReadsAFile, WritesAFile])
def test_torchs_own_operators_on_files_are_refused(module, tmp_path):
    operators = frozenset(schema.name.rpartition("::")[2] for schema in torch._C._jit_get_all_schemas())
    scripted(module(), tmp_path / "m.pt")
    with pytest.raises(worker.RefusedError, match="operation"):
        worker.check_script((tmp_path / "m.pt").read_bytes(), operators)
    assert {"save", "from_file", "load"} & operators
    assert not {"save", "from_file", "load"} & worker.OPERATIONS


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n  return x.save('/tmp/x')",
        "def f(x):\n  g = torch.from_file\n  return g('/etc/passwd')",
        "def f(x):\n  return getattr(x, 'save')('/tmp/x')",
        "def f(x):\n  return ops.aten.from_file('/etc/passwd')",
        "def f(x):\n  return from_file('/etc/passwd')",
        "this is no code",
    ],
)
def test_an_operator_is_found_by_whatever_name_a_forged_archive_calls_it(code, tmp_path):
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/code/__torch__.py", code)
    operators = frozenset({"save", "from_file", "add", "relu"})
    with pytest.raises(worker.RefusedError, match=r"operation|unreadable"):
        worker.check_script((tmp_path / "m.pt").read_bytes(), operators)
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/code/__torch__.py", "def f(x):\n  return torch.relu_(torch.add(x, self.mine(x)))")
    worker.check_script((tmp_path / "m.pt").read_bytes(), operators)


class Endless(nn.Module):
    def forward(self, x):
        while bool((x == x).all()):
            x = x * 1.0
        return x


class Greedy(nn.Module):
    def forward(self, x):
        return x + torch.zeros([100000, 1000000]).sum()


@pytest.mark.slow
@pytest.mark.parametrize(("module", "words"), [(Endless, "no answer in 5"), (Greedy, "4 GB of memory")])
def test_a_model_that_takes_too_long_or_too_much_is_ended(module, words, tmp_path):
    model = open_model(scripted(module(), tmp_path / "m.pt"), PUBLIC, timeout=5.0)
    with pytest.raises(DataError, match=words):
        model.predict(torch.rand(3, 4))


@pytest.mark.parametrize("content", [b"", b"junk", b"\x08\x09" * 500])
def test_a_file_that_is_no_onnx_model_is_one_sentence(content, tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(DataError, match="is no model that can be read"):
        open_model(str(tmp_path / "m.onnx"), PUBLIC).predict(torch.rand(3, 4))


def test_an_onnx_model_reaches_no_other_file(tmp_path):
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    weight = onnx.numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    places = [onnx.helper.make_tensor_value_info(name, 1, ["n", width]) for name, width in (("x", 4), ("y", 2))]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", places[:1], places[1:], [weight]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "whole.onnx")
    assert open_model(str(tmp_path / "whole.onnx"), PUBLIC).predict(torch.rand(3, 4)).shape == (3, 2)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="secret.bin", size_threshold=0)
    assert (tmp_path / "secret.bin").is_file()
    with pytest.raises(DataError, match="not whole in one file"):
        open_model(str(tmp_path / "m.onnx"), PUBLIC).predict(torch.rand(3, 4))


def test_a_pickle_is_never_opened(tmp_path):
    torch.save(nn.Linear(4, 2), tmp_path / "m.pkl")
    with pytest.raises(SettingError, match="never opened"):
        open_model(str(tmp_path / "m.pkl"), PUBLIC)


# What models answer


def answering(found, classes=("a", "b"), outputs=None):
    return ForeignModel("m", lambda features: np.asarray(found), classes, outputs)


def test_answers_are_told_by_the_first_of_them():
    ones = torch.ones(2, 4)
    assert answering([[0.2, 0.8], [1.0, 0.0]]).predict(ones).tolist() == [[0.2, 0.8], [1.0, 0.0]]
    torch.testing.assert_close(
        answering([[1.0, 3.0], [0.0, 0.0]]).predict(ones), torch.tensor([[1.0, 3.0], [0, 0]]).double().softmax(1)
    )
    assert answering([[0.25], [1.0]]).predict(ones)[:, 1].tolist() == [0.25, 1.0]
    labels = answering(["b", "a"])
    assert labels.predict(ones).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert labels.labels_only
    assert answering([1, 0]).predict(ones).argmax(1).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([[np.nan, 1.0], [0.0, 1.0]], "NaN or infinity"),
        ([[np.inf, 1.0], [0.0, 1.0]], "NaN or infinity"),
        ([[1.0, 0.0]], "answered 1x2 numbers to 2 records"),
        (["c", "a"], "none of the 2 classes"),
        ([-1, 0], "none of the 2 classes"),
        (np.zeros((2, 2, 2)), "2x2x2"),
    ],
)
def test_answers_that_cannot_be_attacked_are_one_sentence(found, words):
    with pytest.raises(DataError, match=words):
        answering(found).predict(torch.ones(2, 4))


def test_a_model_of_labels_alone_is_attacked_by_its_labels(target, small):
    def ask(features):
        return target.predict(torch.from_numpy(features)).argmax(1).numpy()

    model = ForeignModel("m", ask, small.members.public.classes)
    model.predict(small.records.features)
    assert infer_membership(model, small, "loss").attack == "gap"


def test_members_that_are_all_equal_and_scores_that_all_tie_name_nobody(small):
    same = replace(small, members=small.members.take(torch.zeros(100, dtype=torch.int64)))
    uniform = ForeignModel("m", lambda features: np.full((len(features), 3), 1 / 3), small.members.public.classes)
    for found in infer_by_all(uniform, same, ["loss", "confidence", "entropy", "modified-entropy"]):
        assert found.tpr_at_fpr == {0.001: 0.0, 0.01: 0.0}
        assert found.auc == pytest.approx(0.5, abs=0.02)


# An address


class Service(BaseHTTPRequestHandler):
    answers = "probabilities"
    busy = 0
    seen: ClassVar[list] = []

    def do_POST(self):
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers.get("Authorization"), len(document["instances"])))
        kind = type(self)
        if kind.busy:
            kind.busy -= 1
            return self.reply(429, {}, {"Retry-After": "0"})
        if kind.answers == "elsewhere":
            return self.reply(302, {}, {"Location": "http://127.0.0.1:9/steal"})
        rows = np.array(document["instances"])
        if kind.answers == "labels":
            return self.reply(200, {"labels": ["a" if row[0] > 0.5 else "b" for row in rows]})
        if kind.answers == "garbage":
            return self.reply(200, {"predictions": "SECRET"})
        return self.reply(200, {"predictions": [[float(row[0]), 1 - float(row[0])] for row in rows]})

    def reply(self, status, document, headers=None):
        content = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    Service.answers, Service.busy, Service.seen = "probabilities", 0, []
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/predict"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_address_is_asked_in_batches_at_its_rate_and_again_when_it_is_busy(service):
    Service.busy = 2
    model = open_model(service, PUBLIC, rate=1000, batch_size=4, token="key")
    features = torch.rand(10, 4)
    torch.testing.assert_close(model.predict(features)[:, 0], features[:, 0].double())
    assert [count for *_, count in Service.seen] == [4, 4, 4, 4, 2]
    assert {(path, token) for path, token, _ in Service.seen} == {("/v1/predict", "Bearer key")}
    model.predict(features)
    assert len(Service.seen) == 5


def test_an_addresss_rate_is_kept(service):
    import time

    started = time.monotonic()
    open_model(service, PUBLIC, rate=20, batch_size=1).predict(torch.rand(5, 4))
    assert time.monotonic() - started >= 4 / 20


@pytest.mark.parametrize(
    ("answers", "words"), [("elsewhere", "status 302"), ("garbage", "a row or a label for each record")]
)
def test_an_address_is_not_followed_elsewhere_and_what_it_says_is_not_shown(service, answers, words):
    Service.answers = answers
    with pytest.raises(DataError, match=words) as caught:
        open_model(service, PUBLIC, rate=1000).predict(torch.rand(3, 4))
    assert "SECRET" not in str(caught.value)
    assert len(Service.seen) == 1


def test_an_address_may_answer_labels_alone(service):
    Service.answers = "labels"
    model = open_model(service, PUBLIC, rate=1000)
    model.predict(torch.rand(6, 4))
    assert model.labels_only


# Members and non-members from files


SCHEMA = {"columns": {"age": {"low": 0, "high": 100}}, "target": {"name": "ill", "classes": ["no", "yes"]}}


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "in.csv").write_text("age,ill\n30,no\n60,yes\n")
    (tmp_path / "out.csv").write_text("age,ill\n31,no\n61,yes\n150,yes\n")
    return tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "s.json"


def test_tables_are_read_as_they_are_or_coded(tables):
    members, others, schema = tables
    raw = read_members(members, others, schema=schema)
    assert raw.members.features.tolist() == [[30.0], [60.0]]
    assert raw.nonmembers.features[2].tolist() == [150.0]
    coded = read_members(members, others, schema=schema, coded=True)
    assert coded.nonmembers.features[:, 0].tolist() == pytest.approx([0.31, 0.61, 1.0])
    assert raw.members.labels.tolist() == [0, 1]


def test_files_that_cannot_be_members_and_others_are_one_sentence(tables, tmp_path):
    members, others, schema = tables
    np.savez(tmp_path / "a.npz", x=np.ones((3, 4)), y=np.array([0, 1, 2]))
    np.savez(tmp_path / "b.npz", x=np.ones((3, 5)), y=np.array([0, 1, 2]))
    np.savez(tmp_path / "empty.npz", x=np.ones((0, 4)), y=np.array([], dtype=int))
    np.savez(tmp_path / "nan.npz", x=np.full((3, 4), np.nan), y=np.array([0, 1, 2]))
    np.savez(tmp_path / "names.npz", x=np.ones((3, 4)), y=np.array(["a", "b", "c"]))
    np.savez(tmp_path / "objects.npz", x=np.array([{}]), y=np.array([0]))
    (tmp_path / "none.csv").write_text("age,ill\n")
    (tmp_path / "words.json").write_text(json.dumps({**SCHEMA, "columns": {"age": {"categories": ["30", "60"]}}}))
    bad = [
        ((members, members, schema), "one and the same file"),
        ((members, others, None), "--schema"),
        ((members, tmp_path / "a.npz", schema), "two tables or as two npz"),
        ((members, tmp_path / "none.csv", schema), "no records"),
        ((members, others, tmp_path / "words.json"), "holds words"),
        ((tmp_path / "a.npz", tmp_path / "b.npz", None), "different shapes"),
        ((tmp_path / "a.npz", tmp_path / "empty.npz", None), "0 records"),
        ((tmp_path / "a.npz", tmp_path / "nan.npz", None), "not all finite"),
        ((tmp_path / "a.npz", tmp_path / "names.npz", None), "whole numbers from 0"),
        ((tmp_path / "a.npz", tmp_path / "objects.npz", None), "Python objects"),
        ((tmp_path / "a.npz", tmp_path / "missing.npz", None), "missing.npz"),
    ]
    for (one, other, about), words in bad:
        with pytest.raises((DataError, SettingError), match=words):
            read_members(one, other, schema=about)


def test_one_class_alone_can_be_attacked(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", x=rng.random((20, 4)), y=np.zeros(20, dtype=int))
    split = read_members(tmp_path / "a.npz", tmp_path / "b.npz")
    model = ForeignModel(
        "m", lambda features: np.stack([features[:, 0], 1 - features[:, 0]], 1), split.members.public.classes
    )
    assert 0 <= infer_membership(model, split, "loss").auc <= 1
