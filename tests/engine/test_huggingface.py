"""Networks of Hugging Face as they are, from tiny random configurations: every record's gradient is that of the record alone."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from noiseproof.engine import PerRecordGradients, PrivateGradients
from noiseproof.engine.graph import Following
from noiseproof.privacy import Reproducible

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore")

RECORDS, LENGTH, WORDS = 4, 5, 31
USUAL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
TEXT = {**USUAL, "vocab_size": WORDS}
PLACES = {"max_position_embeddings": 24}
GROUPED = {**TEXT, **PLACES, "num_key_value_heads": 1}
PICTURE = {**USUAL, "image_size": 8, "patch_size": 4}
PAIR = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "vocab_size": WORDS,
    "max_position_embeddings": 24,
}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 20, "num_layers": 2, "num_heads": 2, "vocab_size": WORDS}


def words():
    return torch.randint(5, WORDS, (RECORDS, LENGTH))


def pictures(size=8):
    return torch.randn(RECORDS, 3, size, size)


def text():
    return {"input_ids": words()}


def pair():
    return {"input_ids": words(), "decoder_input_ids": words()}


def picture():
    return {"pixel_values": pictures()}


CLASSIFIED = "ForSequenceClassification"
PICTURES = "ForImageClassification"
CAUSAL = "ForCausalLM"
ASKED = "ForConditionalGeneration"
MODELS = {
    "Bert": (CLASSIFIED, {**TEXT, **PLACES}, text),
    "GPT2": ("LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": WORDS, "n_positions": 12}, text),
    "Llama": (CAUSAL, GROUPED, text),
    "ViT": (PICTURES, PICTURE, picture),
    "T5": (ASKED, T5, pair),
    "DistilBert": (CLASSIFIED, {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 20, "vocab_size": WORDS}, text),
    "Roberta": (CLASSIFIED, {**TEXT, **PLACES}, text),
    "Albert": (CLASSIFIED, {**TEXT, **PLACES, "embedding_size": 8}, text),
    "Electra": (CLASSIFIED, {**TEXT, **PLACES, "embedding_size": 8}, text),
    "DebertaV2": (CLASSIFIED, {**TEXT, **PLACES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, text),
    "MPNet": (CLASSIFIED, {**TEXT, **PLACES}, text),
    "XLMRoberta": (CLASSIFIED, {**TEXT, **PLACES}, text),
    "ModernBert": (CLASSIFIED, {**TEXT, **PLACES, "pad_token_id": 0, "global_attn_every_n_layers": 2}, text),
    "OPT": (CAUSAL, {**USUAL, "ffn_dim": 20, "vocab_size": WORDS, "word_embed_proj_dim": 16, **PLACES}, text),
    "GPTNeo": (
        CAUSAL,
        {
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "vocab_size": WORDS,
            **PLACES,
        },
        text,
    ),
    "GPTNeoX": (CAUSAL, {**TEXT, **PLACES}, text),
    "GPTJ": (
        CAUSAL,
        {"n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4, "vocab_size": WORDS, "n_positions": 12},
        text,
    ),
    "Bloom": (CAUSAL, {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": WORDS}, text),
    "Falcon": (CAUSAL, {**TEXT, "new_decoder_architecture": False}, text),
    "Mistral": (CAUSAL, GROUPED, text),
    "Mixtral": (CAUSAL, {**GROUPED, "num_local_experts": 3}, text),
    "Qwen2": (CAUSAL, GROUPED, text),
    "Qwen3": (CAUSAL, {**GROUPED, "head_dim": 8}, text),
    "Gemma": (CAUSAL, {**GROUPED, "head_dim": 8}, text),
    "Gemma2": (CAUSAL, {**GROUPED, "head_dim": 8}, text),
    "Phi": (CAUSAL, {**TEXT, **PLACES}, text),
    "Phi3": (CAUSAL, {**GROUPED, "pad_token_id": 0}, text),
    "StableLm": (CAUSAL, GROUPED, text),
    "Olmo": (CAUSAL, GROUPED, text),
    "Cohere": (CAUSAL, GROUPED, text),
    "Mamba": (CAUSAL, {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": WORDS, "state_size": 4}, text),
    "Bart": (ASKED, PAIR, pair),
    "MBart": (ASKED, PAIR, pair),
    "Pegasus": (ASKED, PAIR, pair),
    "MT5": (ASKED, T5, pair),
    "DeiT": (PICTURES, PICTURE, picture),
    "Beit": (PICTURES, {**PICTURE, "use_relative_position_bias": True, "drop_path_rate": 0.0}, picture),
    "Dinov2": (PICTURES, {**PICTURE, "drop_path_rate": 0.0}, picture),
    "Swin": (
        PICTURES,
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [1, 2],
            "num_heads": [2, 2],
            "window_size": 2,
            "drop_path_rate": 0.0,
        },
        lambda: {"pixel_values": pictures(16)},
    ),
    "ConvNext": (
        PICTURES,
        {"hidden_sizes": [4, 8], "depths": [1, 1], "num_stages": 2, "drop_path_rate": 0.0},
        lambda: {"pixel_values": pictures(16)},
    ),
    "Whisper": (
        ASKED,
        {
            **{name: value for name, value in PAIR.items() if name != "max_position_embeddings"},
            "num_mel_bins": 4,
            "max_source_positions": 6,
            "max_target_positions": 12,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        lambda: {"input_features": torch.randn(RECORDS, 4, 12), "decoder_input_ids": words()},
    ),
    "Wav2Vec2": (
        CLASSIFIED,
        {
            **USUAL,
            "vocab_size": 9,
            "conv_dim": [8, 8],
            "conv_stride": [2, 2],
            "conv_kernel": [3, 3],
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "classifier_proj_size": 8,
            "apply_spec_augment": False,
            "feat_extract_norm": "layer",
            "do_stable_layer_norm": True,
        },
        lambda: {"input_values": torch.randn(RECORDS, 64)},
    ),
    "XLNet": (CLASSIFIED, {"vocab_size": WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 20}, text),
    "FNet": (
        CLASSIFIED,
        {**TEXT, **PLACES, "tpu_short_seq_length": 5, "use_tpu_fourier_optimizations": False},
        text,
    ),
    "Funnel": (
        CLASSIFIED,
        {"vocab_size": WORDS, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 20, "block_sizes": [1, 1]},
        text,
    ),
    "ConvBert": (
        CLASSIFIED,
        {**TEXT, **PLACES, "embedding_size": 8, "num_attention_heads": 4, "head_ratio": 2, "conv_kernel_size": 3},
        text,
    ),
    "Mpt": (
        CAUSAL,
        {"d_model": 16, "n_heads": 2, "n_layers": 2, "vocab_size": WORDS, "expansion_ratio": 2, "max_seq_len": 12},
        text,
    ),
    "Starcoder2": (CAUSAL, GROUPED, text),
    "Qwen2Moe": (
        CAUSAL,
        {
            **GROUPED,
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 8,
        },
        text,
    ),
    "Mamba2": (
        CAUSAL,
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "vocab_size": WORDS,
            "state_size": 4,
            "num_heads": 4,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 4,
        },
        text,
    ),
    "Rwkv": (CAUSAL, {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "context_length": 8}, text),
    "Segformer": (
        PICTURES,
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
        lambda: {"pixel_values": pictures(16)},
    ),
}
FAST = ("Bert", "GPT2", "Llama", "ViT", "T5")


def built(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    kind, options, inputs = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    for option, value in config.to_dict().items():
        if isinstance(value, float) and ("drop" in option or option.endswith("pdrop")):
            setattr(config, option, 0.0)
    if kind == CLASSIFIED and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    return getattr(transformers, f"{name}{kind}")(config).train(), inputs()


def losses(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(**inputs).logits
    flat = logits.reshape(len(next(iter(inputs.values()))), -1)
    return (flat.sin() * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sum(1)


def compare(model: nn.Module, inputs: dict[str, torch.Tensor], tolerance: float) -> bool:
    """Every record's gradient against autograd on the record alone; whether something was run once a record."""
    with PerRecordGradients(model) as engine:
        batch = losses(model, inputs)
        repeats = Following(batch, engine._routes).repeats
        found = engine.backward(batch, check=True)
        rows, norms = found.materialise(), found.squared_norms("tensor")
    for record in range(RECORDS):
        alone = losses(model, {name: value[record : record + 1] for name, value in inputs.items()})
        expected = torch.autograd.grad(alone.sum(), engine.parameters, allow_unused=True)
        scale = max(float(gradient.abs().max()) for gradient in expected if gradient is not None)
        for place, (own, gradient) in enumerate(zip(rows, expected, strict=True)):
            wanted = torch.zeros_like(own[record]) if gradient is None else gradient
            assert float((own[record] - wanted).abs().max()) <= tolerance * scale
            length = float(wanted.square().sum())
            assert (
                length * (1 - 1e-4) - tolerance * scale**2
                <= float(norms[record, place])
                <= length * 1.03 + 1e-3 * scale**2
            )
    return repeats


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_gradients_are_those_of_single_records(name):
    model, inputs = built(name)
    double = name not in ("Mixtral", "Qwen2Moe", "Mamba2")  # parts of them have no float64
    if double:
        model = model.double()
        inputs = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
    compare(model, inputs, 1e-9 if double else 1e-5)


ADAPTERS = {
    "lora": lambda peft: peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]),
    "lora on embeddings": lambda peft: peft.LoraConfig(r=2, target_modules=["embed_tokens", "q_proj"]),
    "dora": lambda peft: peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], use_dora=True),
    "ia3": lambda peft: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "prompt tuning": lambda peft: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix tuning": lambda peft: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}


@pytest.mark.parametrize(
    "name", ["Bert", *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name != "Bert")]
)
def test_they_train_with_dropout_and_all_checks(name):
    """No check takes an ordinary network for one that mixes records."""
    model, inputs = built(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    given = [value.repeat(6, *[1] * (value.dim() - 1)) for value in inputs.values()]
    engine = PrivateGradients(model, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.4, rng=Reproducible(0))
    for batch in engine.batches(*given, steps=4, micro_batch_size=6):
        engine.backward(losses(model, dict(zip(inputs, batch, strict=True))) if len(batch[0]) else None)
    assert engine.steps == 4


@pytest.mark.parametrize(
    "kind", [kind if kind == "dora" else pytest.param(kind, marks=pytest.mark.slow) for kind in ADAPTERS]
)
def test_adapters_of_peft(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = pytest.importorskip("peft")
    model, inputs = built("Llama")
    model = peft.get_peft_model(model, ADAPTERS[kind](peft)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)  # adapters start at nothing
    compare(model, inputs, 1e-9)
