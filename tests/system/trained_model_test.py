#!/usr/bin/env python3
"""The model that train writes to OUTPUT/final can be loaded by transformers, and it has learned."""

import unittest

from launched import SAMPLE, LaunchedTest, metrics, settings


class TrainedModelTest(LaunchedTest):
    def test_transformers_loads_the_trained_model_and_generates(self):
        self.run_train(settings(self.output, max_steps=30, dtype="fp32"))
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model, notes = AutoModelForCausalLM.from_pretrained(self.output / "final", output_loading_info=True)
        self.assertFalse(any(notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), notes)
        before = AutoModelForCausalLM.from_pretrained(SAMPLE / "model")
        self.assertEqual(model.dtype, before.dtype)
        self.assertFalse(torch.equal(model.lm_head.weight, before.lm_head.weight))
        self.assertIs(model.lm_head.weight, model.model.embed_tokens.weight)
        tokenizer = AutoTokenizer.from_pretrained(self.output / "final")
        inputs = tokenizer("the bogon ", return_tensors="pt")
        labels = tokenizer("the hacker and the machine know it", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            self.assertEqual(model.generate(**inputs, max_new_tokens=5, min_new_tokens=5, do_sample=False).shape[1],
                             inputs["input_ids"].shape[1] + 5)
            self.assertLess(model(labels, labels=labels).loss, before(labels, labels=labels).loss - 1)
        self.assertLess(metrics(self.output)[-1]["loss"], metrics(self.output)[0]["loss"] - 1)

    def test_vectors_decay_only_where_that_is_asked_for(self):
        from safetensors.torch import load_file

        weights = {}
        for name, changes in {"none": {}, "matrices": {"weight_decay": 0.5}, "all": {"weight_decay": 0.5, "decay_all": True}}.items():
            self.run_train(settings(self.directory / name, model=SAMPLE / "model_fp32", dtype="fp32", max_steps=1, learning_rate="0.1", **changes))
            weights[name] = load_file(self.directory / name / "final" / "model.safetensors")
        for tensor, plain in weights["none"].items():
            is_vector = plain.dim() < 2
            self.assertEqual(plain.equal(weights["matrices"][tensor]), is_vector, tensor)
            self.assertFalse(plain.equal(weights["all"][tensor]), tensor)
        self.assertTrue(any(tensor.dim() < 2 for tensor in weights["none"].values()))

    def test_fp16_with_its_loss_scale_follows_fp32(self):
        losses = {}
        for dtype in ("fp16", "fp32"):
            self.run_train(settings(self.directory / dtype, max_steps=30, dtype=dtype))
            losses[dtype] = [step["loss"] for step in metrics(self.directory / dtype)]
        self.assertLess(losses["fp16"][-1], losses["fp16"][0] - 1)
        for ours, expected in zip(losses["fp16"], losses["fp32"], strict=True):
            self.assertLess(abs(ours - expected), 0.01 * expected, losses)

    def test_a_step_that_overflows_fp16_is_left_out_with_a_note(self):
        # With a loss scale of 65536 and sequences of about one trained token, gradients exceed the
        # range of fp16.
        said = self.run_train(settings(self.output, max_steps=12, dtype="fp16", batch_size=1, num_microbatches=1,
                                       sequence_length=2, max_grad_norm=0)).stdout
        self.assertIn("the gradient overflowed fp16 at a loss scale of 65536; the step is left out", said)
        self.assertEqual(len(metrics(self.output)), 12)


if __name__ == "__main__":
    unittest.main()
