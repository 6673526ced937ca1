#!/usr/bin/env python3
"""What train leaves in OUTPUT/final is a model that transformers loads, and it has learned."""

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


if __name__ == "__main__":
    unittest.main()
