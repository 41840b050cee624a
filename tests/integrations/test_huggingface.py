"""Hugging Face: tiny random models as they are, in a loop, by accelerate and by the Trainer."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from noiseproof.errors import NoiseproofError, UnsupportedError
from tests.integrations.conftest import QUIET

transformers = pytest.importorskip("transformers")

RECORDS, LENGTH, VOCABULARY, CLIP = 24, 8, 40, 0.5
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 16}


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, **TEXT, num_labels=3))


def gpt2():
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": VOCABULARY}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **TEXT))


def vit():
    config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=4, num_labels=3)
    return transformers.ViTForImageClassification(config)


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": VOCABULARY}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0, dropout_rate=0.0)
    )


def build(make):
    torch.manual_seed(0)
    model = make()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0  # so that single records can be compared
    return model.train()


def records(make):
    """Records of different lengths, so that means over a batch's tokens would mix them."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for number in range(RECORDS):
        if make is vit:
            found.append(
                {"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": torch.tensor(number % 3)}
            )
            continue
        ids = torch.randint(3, VOCABULARY, (LENGTH,), generator=generator)
        length = 3 + number % (LENGTH - 3)
        mask = (torch.arange(LENGTH) < length).long()
        labels = torch.tensor(number % 3) if make is bert else ids.masked_fill(mask == 0, -100)
        found.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return found


def clipped_sum(model, data, numbers):
    parameters = list(model.parameters())
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for number in numbers:
        one = {name: value[None] for name, value in data[number].items()}
        gradients = torch.autograd.grad(model(**one).loss, parameters, allow_unused=True)
        norm = torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]).norm()
        for place, gradient in zip(total, gradients, strict=True):
            if gradient is not None:
                place += gradient * min(1.0, CLIP / float(norm))
    return total


@pytest.mark.parametrize("make", [bert, gpt2, llama, vit, t5])
def test_a_model_that_computes_its_own_loss_steps_by_the_clipped_gradients_of_its_records(make, quietly):
    model, data = build(make), records(make)
    numbered = [{**record, "number": number} for number, record in enumerate(data)]
    loader = DataLoader(numbered, batch_size=8, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(model, optimizer, loader, max_grad_norm=CLIP)
    for batch in loader:
        numbers = batch.pop("number").tolist()
        frozen = copy.deepcopy(model)
        model(**batch).loss.backward()
        for parameter, total in zip(model.parameters(), clipped_sum(frozen, data, numbers), strict=True):
            torch.testing.assert_close(parameter.grad, total / 8, rtol=1e-4, atol=1e-5)
        optimizer.step()


def test_what_accelerate_prepared_is_made_private_though_it_draws_ahead(quietly):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, data = build(llama), records(llama)
    numbered = [{**record, "number": number} for number, record in enumerate(data)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(numbered, batch_size=4, shuffle=True))
    engine = quietly(model, optimizer, loader, max_grad_norm=CLIP, accumulation_steps=2)
    seen = []
    for batch in loader:
        seen += batch.pop("number").tolist()
        with accelerator.accumulate(model):
            frozen = copy.deepcopy(model)
            accelerator.backward(model(**batch).loss)
            if accelerator.sync_gradients:
                for parameter, total in zip(model.parameters(), clipped_sum(frozen, data, seen), strict=True):
                    torch.testing.assert_close(parameter.grad, total / 8, rtol=1e-4, atol=1e-5)
                seen = []
            optimizer.step()
            optimizer.zero_grad()
    assert engine.steps == 3


def trainer(folder, make=llama, model=None, **options):
    from noiseproof.integrations.huggingface import PrivateTrainer

    settings = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    settings |= {"save_strategy": "no", "report_to": [], "use_cpu": True, "learning_rate": 1e-2, "disable_tqdm": True}
    names = {"epsilon", "delta", "noise_multiplier", "noise_seed"}
    settings |= {name: value for name, value in options.items() if name not in names}
    args = transformers.TrainingArguments(output_dir=str(folder), **settings)
    private = {"epsilon": 4.0, "delta": 1e-4, **{name: value for name, value in options.items() if name in names}}
    return PrivateTrainer(model=model or build(make), args=args, train_dataset=records(make), **private)


def test_the_trainer_takes_the_planned_steps_and_spends_its_budget(tmp_path):
    private = trainer(tmp_path, logging_steps=1)
    output = private.train()
    assert private.engine.steps == private.state.global_step == 6
    assert 3.9 < private.epsilon() <= 4.0
    card = private.release(preprocessing="public").card
    assert (card.verdict, card.ran["steps"]) == ("proven", 6)
    # No loss of private records stands anywhere.
    assert "train_loss" not in output.metrics
    assert all("loss" not in line for line in private.state.log_history)
    assert private.state.log_history[0]["epsilon"] > 0


def test_nothing_that_the_trainer_writes_tells_a_long_record_from_a_short_one(tmp_path):
    """Sizes of private batches: the Trainer adds up operations and tokens, and a release states the shape of a record."""

    def padded(batch):
        length = max(len(record["input_ids"]) for record in batch)
        fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        return {
            name: torch.stack(
                [nn.functional.pad(one[name], (0, length - len(one[name])), value=fill[name]) for one in batch]
            )
            for name in fill
        }

    told = []
    for length in (4, 16):
        private = trainer(tmp_path / str(length), noise_seed=3, logging_steps=1, save_strategy="epoch")
        private.data_collator = padded
        private.train_dataset[5] = {
            name: value.repeat(2)[:length] if name != "attention_mask" else torch.ones(length, dtype=torch.int64)
            for name, value in private.train_dataset[5].items()
        }
        output = private.train()
        state = json.loads(next(tmp_path.glob(f"{length}/checkpoint-6/trainer_state.json")).read_text())
        # The norm of a noised gradient may be told; times are no numbers of the batch's.
        lines = [{key: value for key, value in line.items() if key != "grad_norm"} for line in state.pop("log_history")]
        timeless = {
            key: value for key, value in output.metrics.items() if "runtime" not in key and "per_second" not in key
        }
        released = private.release(preprocessing="public").save(tmp_path / f"bundle-{length}")
        shape = json.loads((released / "settings.json").read_text())["public"]["shape"]
        told.append((state, lines, timeless, shape))
    assert told[0] == told[1]
    assert private.release(preprocessing="public", shape=(16,)).public.shape == (16,)
    with pytest.raises(UnsupportedError, match="tokens of private records"):
        trainer(tmp_path / "tokens", include_num_input_tokens_seen="all")


def test_the_trainers_gradients_are_those_of_single_records(tmp_path, monkeypatch):
    from noiseproof.integrations import huggingface

    seen = {}
    private = trainer(
        tmp_path, noise_multiplier=QUIET, epsilon=None, delta=None, noise_seed=3, max_grad_norm=CLIP, num_train_epochs=1
    )
    data = [{**record, "number": number} for number, record in enumerate(private.train_dataset)]
    private.train_dataset = data
    private.args.remove_unused_columns = False
    real = huggingface.PrivateTrainer.compute_loss

    def spy(self, model, inputs, *args, **kwargs):
        seen.setdefault("numbers", []).extend(inputs.pop("number").tolist())
        seen["frozen"] = copy.deepcopy(model)
        return real(self, model, inputs, *args, **kwargs)

    checked = []

    class Check(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            expected = clipped_sum(seen.pop("frozen"), records(llama), seen.pop("numbers"))
            for parameter, total in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, total / 8, rtol=1e-4, atol=1e-5)
            checked.append(state.global_step)

    monkeypatch.setattr(huggingface.PrivateTrainer, "compute_loss", spy)
    private.add_callback(Check())
    private.train()
    assert checked == [0, 1, 2]


def test_resuming_from_a_checkpoint_twice_forgets_nothing_that_was_spent(tmp_path):
    first = trainer(tmp_path, save_strategy="steps", save_steps=3, num_train_epochs=2)
    first.train()
    assert json.loads((tmp_path / "checkpoint-3" / "privacy.json").read_text())["spent"]
    first.engine.close()
    again = trainer(tmp_path, save_strategy="steps", save_steps=3, num_train_epochs=2)
    # Three steps would follow, but all six of the budget were taken by the process before.
    with pytest.raises(NoiseproofError, match="have been taken"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert again.engine.steps == 6


def test_a_checkpoint_that_does_not_say_what_was_spent_is_not_resumed(tmp_path):
    first = trainer(tmp_path, save_strategy="steps", save_steps=3)
    first.train()
    first.engine.close()
    (tmp_path / "checkpoint-3" / "privacy.json").unlink()
    with pytest.raises(NoiseproofError, match="not known"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_a_loss_that_mixes_records_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="records' own losses"):
        trainer(tmp_path, make=llama, label_smoothing_factor=0.1).train()


def test_pretrained_weights_come_from_a_folder_and_leave_as_a_bundle(tmp_path):
    build(llama).save_pretrained(tmp_path / "pretrained")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "pretrained")
    private = trainer(tmp_path / "out", model=model, num_train_epochs=1)
    private.train()
    release = private.release(preprocessing="public")
    release.save(tmp_path / "bundle")

    import noiseproof as npf

    loaded = npf.load_bundle(tmp_path / "bundle", module=build(llama)).module
    ids = records(llama)[0]["input_ids"][None]
    torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits)


def test_lora_trains_its_own_matrices_and_nothing_else(quietly):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        build(llama), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    )
    nn.init.normal_(next(p for name, p in model.named_parameters() if "lora_B" in name), std=0.1)
    data = records(llama)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    engine = quietly(model, optimizer, loader)
    for batch in loader:
        model(**batch).loss.backward()
        optimizer.step()
    assert engine.gradients.coordinates == 4 * 2 * (16 + 16)
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)
    assert all(
        float(p.grad.abs().sum()) > 0
        for name, p in model.named_parameters()
        if "lora_A" in name and "q_proj" in name and "layers.0" in name
    )
