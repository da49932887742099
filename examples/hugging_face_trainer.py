"""The Hugging Face Trainer over two devices: it leaves a distributed model where it is."""

import tempfile

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    logging,
)

import baechi


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    ids = torch.randint(64, (16, 8))
    data = [{"input_ids": row, "labels": row} for row in ids]

    batch = {"input_ids": ids[:4], "labels": ids[:4]}
    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(model, batch, cluster=cluster, placer="m-topo", optimizer="adam")
    print("devices:", sorted(set(model.hf_device_map.values())))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=3, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no"
        )
        trainer = Trainer(model, arguments, train_dataset=data)
        trainer.remove_callback(PrinterCallback)
        result = trainer.train()
    print("steps:", result.global_step, "loss below 5:", result.training_loss < 5)


if __name__ == "__main__":
    main()
