"""Which rule watches which layer of a network."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from noiseproof.engine.rules.attention import AttentionRule
from noiseproof.engine.rules.convolution import ConvolutionRule, TransposedConvolutionRule
from noiseproof.engine.rules.linear import ChannelNormRule, EmbeddingRule, LayerNormRule, LinearRule
from noiseproof.engine.rules.recurrent import CellRule, RecurrentRule
from noiseproof.engine.rules.rule import Rule
from noiseproof.engine.rules.vmap import VmapRule
from noiseproof.engine.tape import Tape

_RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Linear: LinearRule,
    NonDynamicallyQuantizableLinear: LinearRule,
    nn.Conv1d: ConvolutionRule,
    nn.Conv2d: ConvolutionRule,
    nn.ConvTranspose1d: TransposedConvolutionRule,
    nn.ConvTranspose2d: TransposedConvolutionRule,
    nn.Embedding: EmbeddingRule,
    nn.LayerNorm: LayerNormRule,
    nn.RMSNorm: LayerNormRule,
    nn.GroupNorm: ChannelNormRule,
    nn.InstanceNorm1d: ChannelNormRule,
    nn.InstanceNorm2d: ChannelNormRule,
    nn.InstanceNorm3d: ChannelNormRule,
    nn.LSTM: RecurrentRule,
    nn.GRU: RecurrentRule,
    nn.RNN: RecurrentRule,
    nn.LSTMCell: CellRule,
    nn.GRUCell: CellRule,
    nn.RNNCell: CellRule,
    nn.MultiheadAttention: AttentionRule,
}
_TRANSFORMERS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


def rules_for(network: nn.Module, tape: Tape, vmapped: Collection[str] = ()) -> Iterator[Rule]:
    """A rule for every layer of `network` that owns trainable parameters; modules named in `vmapped` are one layer."""
    yield from _walk(network, "", 0, tape, frozenset(vmapped), set())


def _walk(
    module: nn.Module, path: str, record_dim: int, tape: Tape, vmapped: frozenset[str], seen: set[int]
) -> Iterator[Rule]:
    if id(module) in seen or not any(parameter.requires_grad for parameter in module.parameters()):
        return
    seen.add(id(module))
    rule = None if path in vmapped else _RULES.get(type(module))
    if rule is not None and _is_plain(module):
        yield rule(module, path, tape, record_dim)
    elif path in vmapped or rule is not None or _owns_trainable(module):
        yield VmapRule(module, path, tape, record_dim)
    else:
        if isinstance(module, _TRANSFORMERS):
            record_dim = _record_dim(module)
        for name, child in module.named_children():
            yield from _walk(child, f"{path}.{name}" if path else name, record_dim, tape, vmapped, seen)


def _is_plain(module: nn.Module) -> bool:
    """Whether the layer computes with its own parameters as torch built it: no reparametrisation, no projection."""
    if hasattr(module, "parametrizations"):
        return False
    if isinstance(module, nn.RNNBase):
        return module.proj_size == 0 and set(module._parameters) == set(module._flat_weights_names)
    if isinstance(module, nn.MultiheadAttention):
        return not hasattr(module.out_proj, "parametrizations")
    if isinstance(module, nn.RNNCellBase):
        return set(module._parameters) <= {"weight_ih", "weight_hh", "bias_ih", "bias_hh"}
    return set(module._parameters) <= {"weight", "bias"}


def _owns_trainable(module: nn.Module) -> bool:
    return hasattr(module, "parametrizations") or any(
        parameter.requires_grad for parameter in module.parameters(recurse=False)
    )


def _record_dim(transformer: nn.Module) -> int:
    """Torch's transformers take sequences first unless told otherwise; their attention layers know."""
    first = next(part for part in transformer.modules() if isinstance(part, nn.MultiheadAttention))
    return 0 if first.batch_first else 1
