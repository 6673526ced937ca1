#!/usr/bin/env python3
"""Masks of chats and completions: they equal those of transformers if a template marks the assistant's text; borders
inside tokens; special tokens."""

import random
import sys
import tempfile
import unittest
from pathlib import Path

import tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from chat_mask import ExampleTokenizer  # noqa: E402
from example_formats import Chat, Completion, Text  # noqa: E402
from tool import ToolError  # noqa: E402

# Marks the assistant's text, as templates that support return_assistant_tokens_mask do.
MARKED_TEMPLATE = """{% for message in messages %}<|start|>{{ message['role'] }}
{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}{% else %}{{ message['content'] }}<|end|>{% endif %}

{% endfor %}{% if add_generation_prompt %}<|start|>assistant
{% endif %}"""
PIECES = ["the", "The", " host", "store", "  ", "\n", "\n\n", ".", "é", "日本", "😀", "assistant", "<", "user\n", " of", "123", "\t", "e\u0301"]


def make_tokenizer(template: str | None, beginning: bool = False):
    """Creates a tokenizer with merges learned from the README, so tokens are longer than a character and extend over
    borders."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([(ROOT / "README.md").read_text(), "a\n\n\nb" * 50], trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<|start|>", "<|end|>", "<|begin|>")])
    single = "<|begin|> $A" if beginning else "$A"
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single=single, pair="$A $B", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))])])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|begin|>")
    wrapped.chat_template = template
    return wrapped


def random_chat(choose: random.Random) -> list[dict]:
    def content(first: str) -> str:
        return first + "".join(choose.choice(PIECES) for _ in range(choose.randint(0, 12)))

    messages = [{"role": "system", "content": content("")}] if choose.random() < 0.5 else []
    for _ in range(choose.randint(1, 4)):
        # Answers do not begin with white space: transformers would train a token that extends from
        # the prompt into the answer.
        messages += [{"role": "user", "content": content("")}, {"role": "assistant", "content": content(choose.choice(("", "x", "é")))}]
        if messages[-1]["content"][:1].isspace():
            messages[-1]["content"] = "y" + messages[-1]["content"]
    return messages


def indices(messages: list[dict]) -> list[int]:
    return [index for index, message in enumerate(messages) if message["role"] == "assistant"]


class ChatMaskTest(unittest.TestCase):
    def split(self, tokenizer, pair) -> tuple[str, str]:
        """Returns the text of the context tokens and the text of the trained tokens."""
        tokens, mask = pair
        return tuple(tokenizer.decode([token for token, trained in zip(tokens, mask) if trained == wanted]) for wanted in (0, 1))

    def test_masks_are_those_of_transformers(self):
        tokenizer = make_tokenizer(MARKED_TEMPLATE)
        golden = make_tokenizer(MARKED_TEMPLATE)
        golden.backend_tokenizer.post_processor = None  # the default post-processor excludes white space from offsets
        ours = ExampleTokenizer(tokenizer, of_text=False)
        choose, trained = random.Random(5), 0
        for number in range(300):
            messages = random_chat(choose)
            with self.subTest(number):
                expected = golden.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
                tokens, mask = ours.tokenize("p", Chat(messages, indices(messages)))
                self.assertEqual(tokens, list(expected["input_ids"]))
                self.assertEqual(mask, list(expected["assistant_masks"]))
                trained += sum(mask)
        self.assertGreater(trained, 3000)

    def test_a_token_that_reaches_from_the_prompt_into_the_answer_is_context(self):
        tokenizer = make_tokenizer(tiny_tokenizer.CHAT_TEMPLATE)
        messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "\n\nyes"}]
        tokens, mask = ExampleTokenizer(tokenizer, of_text=False).tokenize("p", Chat(messages, [1]))
        self.assertIn("\n\n", [tokenizer.decode([token]) for token in tokens], "the case is not there")
        self.assertEqual(self.split(tokenizer, (tokens, mask))[1], "\nyes<|end|>")

    def test_only_chosen_turns_are_trained(self):
        tokenizer = make_tokenizer(tiny_tokenizer.CHAT_TEMPLATE)
        messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "one"}, {"role": "user", "content": "v"},
                    {"role": "assistant", "content": "two"}]
        ours = ExampleTokenizer(tokenizer, of_text=False)
        for chosen, texts in (([1], "one<|end|>"), ([3], "two<|end|>"), ([1, 3], "one<|end|>two<|end|>"), ([], "")):
            self.assertEqual(self.split(tokenizer, ours.tokenize("p", Chat(messages, chosen)))[1], texts)

    def test_what_cannot_be_rendered_is_refused_with_its_place(self):
        messages = [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "one"}]
        ours = ExampleTokenizer(make_tokenizer(tiny_tokenizer.CHAT_TEMPLATE), of_text=False)
        with self.assertRaisesRegex(ToolError, "f: line 7: begins with a message of the assistant"):
            ours.tokenize("f: line 7", Chat(messages, [0, 2]))
        self.assertGreater(sum(ours.tokenize("f: line 7", Chat(messages, [2]))[1]), 0)
        for template, part in (("{{ raise_exception('no system\nhere') }}", "the chat template refuses it: no system$"),
                               ("{{ 1 / 0 }}", "the chat template refuses it: division by zero"), (None, "has no chat template")):
            with self.subTest(part), self.assertRaisesRegex(ToolError, f"f: line 7: .*{part}"):
                ExampleTokenizer(make_tokenizer(template), of_text=False).tokenize("f: line 7", Chat(messages, [2]))

    def test_a_completion_follows_its_prompt_and_ends(self):
        tokenizer = make_tokenizer(None, beginning=True)
        prompt, joined = "The host", tokenizer("The host store.")["input_ids"]
        ours = ExampleTokenizer(tokenizer, of_text=False)
        tokens, mask = ours.tokenize("p", Completion(prompt, " store."))
        self.assertEqual(tokens, joined + [tokenizer.eos_token_id], "the beginning once, the tokens of the whole, the end")
        self.assertEqual(self.split(tokenizer, (tokens, mask)), ("<|begin|>The host", " store.<|end|>"))
        self.assertEqual(self.split(tokenizer, ours.tokenize("p", Completion(prompt, " store<|end|>"))), ("<|begin|>The host", " store<|end|>"))
        self.assertEqual(ours.num_apart, 0)

    def test_a_prompt_that_ends_inside_a_token_keeps_its_own_tokens(self):
        tokenizer = make_tokenizer(None, beginning=True)
        alone = tokenizer("The host ")["input_ids"]
        self.assertNotEqual(tokenizer("The host store")["input_ids"][:len(alone)], alone, "the case is not there")
        ours = ExampleTokenizer(tokenizer, of_text=False)
        tokens, mask = ours.tokenize("f: line 3", Completion("The host ", "store"))
        self.assertEqual(tokens[:len(alone)], alone)
        self.assertEqual(self.split(tokenizer, (tokens, mask)), ("<|begin|>The host ", "store<|end|>"))
        self.assertEqual((ours.num_apart, ours.first_apart), (1, "f: line 3"))

    def test_of_text_all_is_trained_with_beginning_and_end(self):
        tokenizer = make_tokenizer(None, beginning=True)
        tokens, mask = ExampleTokenizer(tokenizer, of_text=True).tokenize("p", Text("The host store"))
        self.assertEqual((tokenizer.decode(tokens), set(mask)), ("<|begin|>The host store<|end|>", {1}))


if __name__ == "__main__":
    unittest.main()
