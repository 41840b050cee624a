"""A stranger's model as something that can be attacked: an ONNX or TorchScript file, weights, or an HTTP address.

| what | what is run of it |
| --- | --- |
| `.safetensors` and a network's name | nothing: numbers are read into a network of this package |
| `.onnx` | ONNX's own operators, by onnxruntime |
| `.pt`, `.pth`, `.ts`, `.torchscript` | TorchScript whose code names no operator but those that networks need |
| `http://`, `https://` | nothing here; records are sent to that address and nowhere else |

ONNX and TorchScript run in a process of their own (`worker`), which from then on opens no file, no connection and no more
than 4 GB of memory, and is ended when it takes too long.
"""

from __future__ import annotations

import hashlib
import io
import json
import queue
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.attacks import worker
from noiseproof.attacks.attack import Predicts
from noiseproof.data.dataset import Public
from noiseproof.errors import DataError, SettingError
from noiseproof.networks import Network
from noiseproof.plugins import need

Outputs = Literal["probabilities", "logits", "labels"]
OUTPUTS: tuple[Outputs, ...] = ("probabilities", "logits", "labels")
Ask = Callable[[NDArray[Any]], NDArray[Any]]

_SCRIPTS = (".pt", ".pth", ".ts", ".torchscript")
_SENTENCES = {
    "large": f"is larger than {worker.LARGEST >> 30} GB",
    "unreadable": "is no model that can be read, or is not whole in one file",
    "operation": "uses an operation that networks do not need to answer, such as one on files, and was not loaded",
    "inputs": "does not take one array of numbers",
    "answers": "does not answer with an array of numbers",
    "memory": "needs more than 4 GB of memory",
    "fails": "fails on these records: their shape or kind is not what it takes",
    "missing": "needs a part that is not installed",
}
_START = 60.0
"""Seconds more for the first answer: libraries have to be loaded."""
_ANSWER = 1 << 27
"""Bytes that an HTTP answer may have."""
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_PATIENCE = 5
"""How often a request that was not answered is sent again."""


class ForeignModel(Predicts):
    """A model behind `predict`; records that were asked about before are not asked about again.

    Args:
        name: What it is called in messages.
        ask: From features (records, ...) to what the model answers: a row or a label for each.
        classes: The names of the classes, in the order of the answers' columns.
        outputs: What the answers are; without it, told by the first of them: rows that add up to 1 are probabilities, other
            rows logits, whole numbers and texts labels.

    Raises:
        SettingError: If `outputs` is none of these.

    Examples:
        >>> model = ForeignModel("mine", lambda features: features @ np.eye(4, 2), classes=("no", "yes"), outputs="logits")
        >>> model.predict(torch.zeros(3, 4, dtype=torch.float64)).tolist()
        [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]

    Formal guarantee
    ----------------
    None: it is asked about private records, on the trusted side. An HTTP endpoint gets to see them.
    """

    def __init__(self, name: str, ask: Ask, classes: tuple[str, ...], outputs: Outputs | None = None) -> None:
        if outputs is not None and outputs not in OUTPUTS:
            raise SettingError(f"a model answers {', '.join(OUTPUTS)}, not {outputs!r}.")
        self.name, self.outputs, self.classes = name, outputs, classes
        self.asked = 0
        """Records that the model was asked about."""
        self._ask, self._known = ask, dict[str, torch.Tensor]()

    @property
    def labels_only(self) -> bool:
        """Whether the answers are labels, as far as is known by now."""
        return self.outputs == "labels"

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        """Class probabilities, (records, classes); of labels, 0 and 1."""
        array = features.detach().cpu().numpy()
        key = hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()
        if key not in self._known:
            self._known[key] = self._read(self._ask(array), len(array))
            self.asked += len(array)
        return self._known[key]

    def _read(self, found: NDArray[Any], records: int) -> torch.Tensor:
        if found.ndim == 2 and found.shape[1] == 1:
            found = found[:, 0]
        if found.ndim not in (1, 2) or len(found) != records:
            raise DataError(f"{self.name} answered {'x'.join(map(str, found.shape))} numbers to {records} records.")
        if found.dtype.kind in "biuUS":
            self.outputs = self.outputs or "labels"
        if self.outputs == "labels":
            return torch.nn.functional.one_hot(self._labels(found), len(self.classes)).float()
        if found.dtype.kind != "f":
            raise DataError(f"{self.name} answered no numbers where {self.outputs} are due.")
        if not np.isfinite(found).all():
            raise DataError(f"{self.name} answered NaN or infinity, so there is nothing to attack.")
        rows = torch.from_numpy(np.ascontiguousarray(found))
        inside = bool((found >= -1e-6).all() and (found <= 1 + 1e-6).all())
        if rows.ndim == 1:
            # One number a record: of two classes, the second's.
            if len(self.classes) != 2:
                raise DataError(f"{self.name} answers one number a record, and there are {len(self.classes)} classes.")
            self.outputs = self.outputs or ("probabilities" if inside else "logits")
            second = rows if self.outputs == "probabilities" else rows.sigmoid()
            return torch.stack([1 - second, second], dim=1)
        if rows.shape[1] < len(self.classes):
            raise DataError(f"{self.name} answers {rows.shape[1]} classes, and the records have {len(self.classes)}.")
        sums = bool(((rows.double().sum(1) - 1).abs() < 1e-3).all())
        self.outputs = self.outputs or ("probabilities" if inside and sums else "logits")
        return rows if self.outputs == "probabilities" else rows.softmax(1)

    def _labels(self, found: NDArray[Any]) -> torch.Tensor:
        if found.ndim == 2:
            found = found.argmax(1)
        if found.dtype.kind in "US":
            places = {name: place for place, name in enumerate(self.classes)}
            numbers = [places.get(str(one), -1) for one in found.astype(str)]
        else:
            numbers = found.astype(np.int64).tolist()
        labels = torch.tensor(numbers)
        if ((labels < 0) | (labels >= len(self.classes))).any():
            raise DataError(f"{self.name} answers labels that are none of the {len(self.classes)} classes.")
        return labels


def open_model(
    target: str,
    public: Public,
    *,
    network: str | None = None,
    outputs: Outputs | None = None,
    timeout: float = 120.0,
    rate: float = 5.0,
    batch_size: int = 100,
    field: str = "instances",
    token: str | None = None,
) -> ForeignModel:
    """A stranger's model from a file or an address.

    Args:
        target: A file, by its ending (see above), or an address that starts with http:// or https://.
        public: The shape of a record and the classes.
        network: The network that weights are for.
        outputs: What it answers (see `ForeignModel`).
        timeout: Seconds that one answer may take.
        rate: Requests a second to an address, at most.
        batch_size: Records in a request.
        field: What the records are called in a request.
        token: Sent to the address as `Authorization: Bearer`.

    Returns:
        The model.

    Raises:
        SettingError: If the options do not go together.
        DataError: If the file cannot be used.
        MissingPartError: If onnxruntime is needed and not installed.

    Examples:
        >>> from safetensors.torch import save_file
        >>> network = Network("mlp", (4,), 2)
        >>> save_file(network.build(0).state_dict(), "weights.safetensors")
        >>> model = open_model("weights.safetensors", Public((4,), ("no", "yes")), network="mlp")
        >>> model.predict(torch.rand(3, 4)).shape
        torch.Size([3, 2])
    """
    if target.startswith(("http://", "https://")):
        return ForeignModel(
            target.partition("?")[0],
            _Endpoint(target, rate=rate, batch_size=batch_size, field=field, token=token, timeout=timeout),
            public.classes,
            outputs,
        )
    path = Path(target)
    ending = path.suffix.lower()
    if not path.is_file():
        raise DataError(f"there is no file {path}.")
    if path.stat().st_size > worker.LARGEST:
        raise DataError(f"{path} {_SENTENCES['large']}.")
    if ending == ".safetensors":
        return ForeignModel(str(path), _weights(path, public, network), public.classes, outputs or "logits")
    if network is not None:
        raise SettingError("--network is for weights in a .safetensors file; other models bring their own.")
    if ending == ".onnx":
        need("an ONNX model needs", "onnx", "onnxruntime")
        return ForeignModel(str(path), _Worker(path, "onnx", timeout), public.classes, outputs)
    if ending in _SCRIPTS:
        return ForeignModel(str(path), _Worker(path, "torchscript", timeout), public.classes, outputs)
    raise SettingError(
        f"{path} is neither .onnx, .safetensors nor TorchScript ({', '.join(_SCRIPTS)}); a pickled model is never opened."
    )


def _weights(path: Path, public: Public, network: str | None) -> Ask:
    from noiseproof.methods.parameters.publishing import read_network

    if network is None:
        raise SettingError(f"{path} holds weights alone; say with --network which network they are for.")
    tensors = read_network(path)
    module = Network(network, public.shape, public.outputs).build()
    try:
        module.load_state_dict({name: value.to(torch.get_default_dtype()) for name, value in tensors.items()})
    except RuntimeError:
        raise DataError(f"the weights in {path} are not those of a {network} for these records.") from None
    module.eval()

    def ask(features: NDArray[Any]) -> NDArray[Any]:
        with torch.no_grad():
            return module(torch.from_numpy(features)).numpy()

    return ask


class _Worker:
    """A process that holds an untrusted model and answers; it is started when it is first asked."""

    def __init__(self, path: Path, kind: str, timeout: float) -> None:
        self._path, self._kind, self._timeout = path, kind, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._heard: queue.Queue[bytes | None] = queue.Queue()

    def __call__(self, features: NDArray[Any]) -> NDArray[Any]:
        if self._process is None:
            self._start()
            self._receive(_START)
        held = io.BytesIO()
        np.save(held, features, allow_pickle=False)
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            worker.send(self._process.stdin, held.getvalue())  # type: ignore[arg-type]
        except OSError:
            raise self._refused("took its process down") from None
        said = self._receive()
        try:
            return np.load(io.BytesIO(said.removeprefix(b"npy:")), allow_pickle=False)
        except (ValueError, EOFError, OSError):
            raise self._refused(_SENTENCES["answers"]) from None

    def _start(self) -> None:
        command = [sys.executable, "-I", worker.__file__, self._kind, str(self._path.resolve())]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd="/")
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as pipe:
            while (said := worker.receive(pipe)) is not None:  # type: ignore[arg-type]
                self._heard.put(said)
        self._heard.put(None)

    def _receive(self, more: float = 0.0) -> bytes:
        try:
            said = self._heard.get(timeout=self._timeout + more)
        except queue.Empty:
            raise self._refused(f"gave no answer in {self._timeout + more:g} seconds") from None
        if said is None:
            raise self._refused("took its process down")
        if said.startswith(b"no:"):
            raise self._refused(_SENTENCES.get(said[3:].decode(errors="replace"), "cannot be used"))
        return said

    def _refused(self, words: str) -> DataError:
        self.close()
        return DataError(f"{self._path} {words}.")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()
            self._process = None

    def __del__(self) -> None:
        self.close()


class _SameAddress(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: records go to the address that the user gave and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Endpoint:
    """An HTTP address that gets `{"instances": [...]}` and answers with rows of probabilities or with labels."""

    def __init__(
        self, url: str, *, rate: float, batch_size: int, field: str, token: str | None, timeout: float
    ) -> None:
        if not rate > 0 or batch_size < 1:
            raise SettingError(f"the rate must be above 0 and a request hold a record, not {rate} and {batch_size}.")
        if not urllib.parse.urlsplit(url).hostname:
            raise SettingError("the address of a model is http://HOST/PATH or https://HOST/PATH.")
        self._url, self._rate, self._size, self._field, self._timeout = url, rate, batch_size, field, timeout
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameAddress())
        self._next = 0.0

    def __call__(self, features: NDArray[Any]) -> NDArray[Any]:
        parts = [self._once(features[start : start + self._size]) for start in range(0, len(features), self._size)]
        if len({part.shape[1:] for part in parts}) != 1:
            raise self._failed("answers now so, now otherwise")
        return np.concatenate(parts)

    def _once(self, features: NDArray[Any]) -> NDArray[Any]:
        body = json.dumps({self._field: features.tolist()}).encode()
        for attempt in range(_PATIENCE + 1):
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._next = time.monotonic() + 1 / self._rate
            request = urllib.request.Request(self._url, body, self._headers, method="POST")
            try:
                with self._opener.open(request, timeout=self._timeout) as response:
                    content = response.read(_ANSWER + 1)
                return self._rows(content, len(features))
            except urllib.error.HTTPError as error:
                with error:
                    status, after = error.code, error.headers.get("Retry-After", "")
                if status not in _RETRIED:
                    raise self._failed(f"answered with status {status}") from None
                wait = float(after) if after.isdecimal() else 0.5 * 2**attempt
                reason = f"answered with status {status} again and again; lower --rate, or ask its operator"
            except (OSError, TimeoutError, ValueError):
                wait, reason = 0.5 * 2**attempt, "cannot be reached"
            if attempt < _PATIENCE:
                time.sleep(min(wait, 60.0))
        raise self._failed(reason)

    def _rows(self, content: bytes, records: int) -> NDArray[Any]:
        if len(content) > _ANSWER:
            raise self._failed(f"answered more than {_ANSWER >> 20} MB")
        try:
            document = json.loads(content)
            if isinstance(document, dict):
                named = (
                    document[name]
                    for name in ("probabilities", "predictions", "outputs", "labels")
                    if document.get(name)
                )
                document = next(named)
            found = np.array(document)
        except (ValueError, RecursionError, StopIteration):
            raise self._failed("answers no JSON with predictions, probabilities, outputs or labels") from None
        if found.dtype.kind not in "fiuUb" or found.ndim == 0 or len(found) != records:
            raise self._failed("does not answer with a row or a label for each record")
        # A row of probabilities of only 0 and 1 is written in whole numbers.
        return found.astype(np.float64) if found.ndim == 2 and found.dtype.kind in "iub" else found

    def _failed(self, words: str) -> DataError:
        return DataError(f"{self._url.partition('?')[0]} {words}.")
