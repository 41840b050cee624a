"""A stranger's model in a process of its own, which can open no file once the model is there. Run as a script.

`python -I worker.py onnx|torchscript MODEL` reads arrays from its standard input and writes answers to its standard output,
each as eight bytes of length and an npy. What goes wrong is said as one word, which `foreign` has a sentence for.
"""

from __future__ import annotations

import ast
import io
import os
import resource
import signal
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

LARGEST = 1 << 31
"""Bytes that a model's file may have, and unpacked."""
_MEMORY = 4 << 30
"""Bytes that it may take beside what the libraries take."""

# What a network needs to answer; nothing here reads or writes files. In-place variants, with a line at the end, are meant too.
_NAMES = """
abs abs_value adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
add addcmul addmm alpha_dropout amax amin append arange argmax argmin avg_pool1d avg_pool2d avg_pool3d baddbmm
batch_norm bernoulli bilinear bitwise_and bitwise_not bitwise_or bmm Bool broadcast_tensors broadcast_to cat ceil
celu chunk clamp clamp_max clamp_min clone constant_pad_nd contiguous conv1d conv2d conv3d conv_transpose1d
conv_transpose2d conv_transpose3d copy cos cosine_similarity cumsum data detach device dim div dropout dtype einsum
elu embedding embedding_bag empty eq erf exp expand expand_as expm1 extend eye feature_dropout fill flatten flip
float Float FloatImplicit floor floor_div floor_divide floordiv format full full_like gather ge gelu get glu grad
group_norm gru gt hardsigmoid hardswish hardtanh index index_select insert instance_norm Int int IntImplicit
is_contiguous is_cuda is_floating_point is_nonzero isinf isnan item items keys layer_norm layout le leaky_relu len
lerp linear linspace log log10 log1p log2 log_sigmoid log_softmax logical_and logical_not logical_or logical_xor
logsumexp lstm lt masked_fill matmul max max_pool1d max_pool2d max_pool3d maximum mean min min_value minimum mish mm
movedim mul mv nan_to_num narrow ndim ne neg new_ones new_zeros nonzero norm normal numel NumToTensor one_hot ones
ones_like outer pad permute pixel_shuffle pop pow prelu prod RaiseException rand rand_like randn randn_like
reciprocal reflection_pad1d reflection_pad2d relu relu6 remainder repeat repeat_interleave replication_pad1d
replication_pad2d requires_grad reshape rms_norm rnn_relu rnn_tanh round rrelu rsqrt rsub ScalarImplicit
scaled_dot_product_attention scatter scatter_add select selu shape sigmoid sign silu sin size slice softmax softplus
softshrink softsign sort split split_with_sizes sqrt square squeeze stack std sub sum swapaxes t tan tanh tanhshrink
tensor tensor_split threshold tile to topk transpose tril triu true_divide TupleUnpack type type_as unbind
unchecked_cast unflatten unfold uninitialized unsqueeze unsqueeze_dim upsample_bicubic2d upsample_bilinear2d
upsample_nearest1d upsample_nearest2d values var view view_as where zeros zeros_like
"""
OPERATIONS = frozenset(_NAMES.split())


class RefusedError(Exception):
    """The model cannot be used; its one argument is the word for why."""


def check_script(content: bytes, operators: frozenset[str]) -> None:
    """Refuse a TorchScript archive whose code names an operator that no network needs, before any of it is loaded.

    A name that is no operator's can only be a method or an attribute of the archive's own classes, whose code is looked at too.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST:
                raise RefusedError("large")
            code = [
                archive.read(name)
                for name in archive.namelist()
                if "/code/" in name and not name.endswith(".debug_pkl")
            ]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        raise RefusedError("unreadable") from None
    if not code:
        raise RefusedError("unreadable")
    for text in code:
        try:
            names = set(_names(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise RefusedError("unreadable") from None
        if any(name in operators and name.rstrip("_") not in OPERATIONS for name in names):
            raise RefusedError("operation")


def _names(tree: ast.AST) -> Iterator[str]:
    """Every name that can stand for an operator: attributes, and texts, which `getattr` takes for them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def open_torchscript(content: bytes) -> Callable[[Any], Any]:
    """The model in a TorchScript archive."""
    import torch

    operators = frozenset(schema.name.rpartition("::")[2] for schema in torch._C._jit_get_all_schemas())
    check_script(content, operators)
    torch.set_num_threads(1)
    torch.zeros(2, 2) @ torch.zeros(2, 2)  # what is loaded lazily is loaded before the doors close
    lock()
    try:
        module = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
    except MemoryError:
        raise RefusedError("memory") from None
    except Exception:
        raise RefusedError("unreadable") from None

    def answer(features: Any) -> Any:
        with torch.no_grad():
            found = module(torch.from_numpy(features))
        found = found[0] if isinstance(found, tuple | list) and len(found) else found
        if not isinstance(found, torch.Tensor):
            raise RefusedError("answers")
        return found.detach().numpy()

    return answer


def open_onnx(content: bytes) -> Callable[[Any], Any]:
    """The model in an ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    lock()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise RefusedError("memory") from None
    except Exception:  # onnxruntime has a dozen classes of its own for it
        raise RefusedError("unreadable") from None
    inputs = session.get_inputs()
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
    if len(inputs) != 1 or inputs[0].type not in kinds:
        raise RefusedError("inputs")
    batch = inputs[0].shape[0] if inputs[0].shape and isinstance(inputs[0].shape[0], int) else None

    def answer(features: Any) -> Any:
        features = features.astype(kinds[inputs[0].type])
        if batch is None:
            return _best(session.run(None, {inputs[0].name: features}))
        # The model was exported for so many records at a time: the last ones are filled up.
        parts = []
        for start in range(0, len(features), batch):
            part = features[start : start + batch]
            full = np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)])
            parts.append(_best(session.run(None, {inputs[0].name: full}))[: len(part)])
        return np.concatenate(parts)

    return answer


def _best(outputs: list[Any]) -> Any:
    """Probabilities where there are some: scikit-learn's models answer a label and, beside it, a number for each class."""
    arrays = []
    for found in outputs:
        if isinstance(found, list) and found and isinstance(found[0], dict):
            found = np.array([list(one.values()) for one in found])
        arrays.append(np.asarray(found))
    floats = [array for array in arrays if array.dtype.kind == "f"]
    return (floats or arrays)[0]


def lock() -> None:
    """From now on this process opens no file and no connection, writes no file, and has bounded memory."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    taken = 0
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def send(pipe: BinaryIO, content: bytes) -> None:
    """Write a message."""
    pipe.write(struct.pack("<Q", len(content)) + content)
    pipe.flush()


def receive(pipe: BinaryIO, largest: int = LARGEST) -> bytes | None:
    """The next message; None at the end, or if it is no message."""
    head = pipe.read(8)
    if len(head) < 8 or (length := struct.unpack("<Q", head)[0]) > largest:
        return None
    content = pipe.read(length)
    return content if len(content) == length else None


def main() -> None:
    """Answer until there are no more questions."""
    warnings.simplefilter("ignore")
    kind, path = sys.argv[1:]
    # What the model prints goes nowhere: answers have the real output.
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise RefusedError("large")
        answer = {"onnx": open_onnx, "torchscript": open_torchscript}[kind](content)
        send(out, b"ready")
        while (asked := receive(source)) is not None:
            features = np.load(io.BytesIO(asked), allow_pickle=False)
            try:
                found = np.asarray(answer(features))
            except RefusedError:
                raise
            except MemoryError:
                raise RefusedError("memory") from None
            except Exception as error:
                raise RefusedError("memory" if "memory" in str(error).lower() else "fails") from None
            if found.dtype.kind == "O":
                found = found.astype(str)
            held = io.BytesIO()
            np.save(held, found, allow_pickle=False)
            send(out, b"npy:" + held.getvalue())
    except RefusedError as refused:
        send(out, b"no:" + str(refused).encode())
    except ImportError:
        send(out, b"no:missing")


if __name__ == "__main__":
    main()
