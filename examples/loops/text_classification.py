"""Does one sentence follow from another? BERT by the Hugging Face Trainer, as in Opacus' tutorial on SNLI.

The sentences are made here and the model is a small random one. With a folder of pretrained weights and the hub's data:
`AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)`, `datasets.load_dataset("snli")`.
"""

from __future__ import annotations

import random
import tempfile

from tokenizers import Tokenizer as Words
from tokenizers import models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, TrainingArguments
from transformers import PreTrainedTokenizerFast as Tokenizer

from noiseproof.integrations.huggingface import PrivateTrainer

WHO, DOES = ["man", "woman", "child", "dog"], ["sleeps", "runs", "eats", "sings"]
VOCABULARY = ["[PAD]", "[UNK]", "[SEP]", "a", "no", "someone", *WHO, *DOES]


def pairs(count: int = 600) -> list[tuple[str, str, int]]:
    """Made premises and hypotheses: entailed, neutral or contradicted."""
    random.seed(0)
    made = []
    for label in range(3):
        for _ in range(count // 3):
            who, does = random.choice(WHO), random.choice(DOES)
            other = [f"someone {does}", f"a {random.choice(WHO)} {random.choice(DOES)}", f"no {who} {does}"][label]
            made.append((f"a {who} {does}", other, label))
    return made


def main(epochs: float = 2) -> None:
    """Fine-tune within epsilon 6."""
    words = Words(models.WordLevel({word: place for place, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(tokenizer_object=words, pad_token="[PAD]", sep_token="[SEP]", unk_token="[UNK]")
    data = [{**tokenizer(f"{a} [SEP] {b}", return_token_type_ids=False), "labels": y} for a, b, y in pairs()]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(VOCABULARY), num_labels=3, **sizes))
    args = TrainingArguments(
        tempfile.mkdtemp(),
        num_train_epochs=epochs,
        per_device_train_batch_size=100,
        learning_rate=3e-3,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    collator = DataCollatorWithPadding(tokenizer)
    trainer = PrivateTrainer(model=model, args=args, train_dataset=data, data_collator=collator, epsilon=6, delta=1e-4)
    trainer.train()
    print(trainer.release(preprocessing="public", classes=["entailed", "neutral", "contradicted"]).card.text)


if __name__ == "__main__":
    main()
